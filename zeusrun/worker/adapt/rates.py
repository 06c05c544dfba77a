"""The learning rate and Adam's β2 while the batch size differs from the first one.

They change for the length of an optimizer step only. So a scheduler of the script, and what it
saves in a checkpoint, never see a changed one.
"""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def find_factor(
    rule: str, ratio: float, first: int, trace: float | None, square: float | None
) -> float | None:
    """Return by what a rule multiplies the learning rate; ``None`` if it is not known now.

    Args:
        rule: ``none``, ``linear``, ``sqrt``, or ``adascale``, the gain of Johnson et al., 2020
            (arXiv:2007.05105, section 3).
        ratio: The batch size over the first one.
        first: The first batch size.
        trace: The trace of the covariance of single samples' gradients.
        square: The squared norm of the gradient.
    """
    if rule != "adascale" or ratio == 1:
        return {"linear": ratio, "sqrt": math.sqrt(ratio)}.get(rule, 1.0)
    if trace is None or square is None or trace <= 0:
        return None
    square = max(0.0, square)
    gain = (trace / first + square) / (trace / (first * ratio) + square)
    return min(max(gain, 1.0), ratio) if ratio > 1 else min(gain, 1.0)


class Rates:
    """Changes the learning rate and β2 of every optimizer around its step.

    Attributes:
        factor: By what the learning rate is multiplied.
        power: To which β2 is raised.
        scheduled: The learning rate of the first parameter group, as the script has it; ``None``
            before the first step.
        highest: The highest of those so far.
    """

    def __init__(self) -> None:
        self.factor = self.power = 1.0
        self.scheduled: float | None = None
        self.highest = 0.0
        self._first: Callable[[], Any] = lambda: None  # the optimizer that stepped first
        self._kept: list[tuple[Any, str, Any, Any]] = []

    @property
    def learning_rate(self) -> float | None:
        """The learning rate of the first parameter group in a step."""
        return None if self.scheduled is None else self.scheduled * self.factor

    def before(self, optimizer: Any) -> None:
        """Change the values of an optimizer that is about to step."""
        self.after()  # a step that raised has left them changed
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
        """Read the learning rate again: a scheduler may have changed it since the last step."""
        groups = getattr(self._first(), "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if rate is not None:
            self.scheduled = float(rate)
            self.highest = max(self.highest, self.scheduled)

    def after(self) -> None:
        """Restore the values, unless the step itself has changed them."""
        for group, key, value, changed in self._kept:
            if group.get(key) is changed:
                group[key] = value
        self._kept = []

    def _change(self, group: Any, key: str, value: Any) -> None:
        self._kept.append((group, key, group[key], value))
        group[key] = value
