"""Changes the learning rate and Adam's β2 while the batch size differs from the first one.

The change lasts for one optimizer step at a time. So the script's scheduler and its checkpoints
contain the unchanged values.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def find_factor(rule: str, ratio: float) -> float:
    """Return the factor of the learning rate: ``none``, ``linear`` or ``sqrt`` in the batch size.

    ``ratio``: the batch size divided by the first one.
    """
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)


class Rates:
    """Changes the learning rate and β2 of every optimizer around its step.

    Attributes:
        factor: Of the learning rate.
        power: Of β2.
        scheduled: The learning rate that the script has set for the first parameter group; ``None``
            before the first step.
    """

    def __init__(self) -> None:
        self.factor = self.power = 1.0
        self.scheduled: float | None = None
        self._first: Callable[[], Any] = lambda: None  # weak reference to the first optimizer
        self._changes: list[tuple[Any, str, Any, Any]] = []  # group, key, old and new value

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group in a step."""
        return None if self.scheduled is None else self.scheduled * self.factor

    def before(self, optimizer: Any) -> None:
        """Change the values of an optimizer that is about to step."""
        if self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self.read()
        for group in optimizer.param_groups:
            if self.factor != 1 and "lr" in group:
                self._change(group, "lr", group["lr"] * self.factor)
            betas = group.get("betas")
            if self.power != 1 and isinstance(betas, tuple) and len(betas) == 2:
                self._change(group, "betas", (betas[0], betas[1] ** self.power))

    def read(self) -> None:
        """Read the learning rate: a scheduler may have changed it since the last step."""
        groups = getattr(self._first(), "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self.scheduled = float(rate)

    def after(self) -> None:
        """Restore the values, unless the step itself has changed them."""
        for group, key, old, new in self._changes:
            if group.get(key) is new:
                group[key] = old
        self._changes = []

    def _change(self, group: Any, key: str, value: Any) -> None:
        self._changes.append((group, key, group[key], value))
        group[key] = value
