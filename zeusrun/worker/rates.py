"""Changes the learning rate of a training, one step at a time."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def find_factor(rule: str, ratio: float) -> float:
    """Return the factor of the learning rate for a rule: ``none``, ``linear`` or ``sqrt``.

    ``ratio``: the batch size divided by the first batch size.
    """
    return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)


class Rates:
    """Scales the learning rate of every optimizer while the batch size is not the first one.

    Each change lasts for one optimizer step. So the script's scheduler and its checkpoints contain
    the unchanged values.

    Attributes:
        factor: The factor by which the learning rate is multiplied.
        scheduled: The learning rate that the script has set for the first parameter group; ``None``
            before the first step.
    """

    def __init__(self) -> None:
        self.factor = 1.0
        self.scheduled: float | None = None
        self._first: Callable[[], Any] = lambda: None  # weak reference to the first optimizer
        self._changes: list[tuple[Any, Any, Any]] = []  # group, old and new rate

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group in a step."""
        return None if self.scheduled is None else self.scheduled * self.factor

    def before(self, optimizer: Any) -> None:
        """Change the rates of an optimizer that is about to step."""
        if self._first() is None:
            self._first = weakref.ref(optimizer)
        if self._first() is optimizer:
            self.read()
        for group in optimizer.param_groups:
            if self.factor != 1 and "lr" in group:
                old, group["lr"] = group["lr"], group["lr"] * self.factor
                self._changes.append((group, old, group["lr"]))

    def read(self) -> None:
        """Read the learning rate: a scheduler may have changed it since the last step."""
        groups = getattr(self._first(), "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self.scheduled = float(rate)

    def after(self) -> None:
        """Restore the rates, unless the step itself has changed them."""
        for group, old, new in self._changes:
            if group.get("lr") is new:
                group["lr"] = old
        self._changes = []
