"""When a metric meets its target: one rule for the launcher, the worker and the policies. Pure."""

from __future__ import annotations

import math

_FLOAT32_EPSILON = 2.0**-23  # relative spacing of float32 (IEEE 754)


def worst_that_reaches(target: float, mode: str) -> float:
    """Return the worst value of a metric that meets a target.

    A value equal to the target meets it also where it was computed in float32: ``float32(0.95)``
    is 0.949999988. So the target is relaxed by float32's spacing, a ten-millionth of its size.

    Args:
        target: The value to reach.
        mode: ``min`` if a lower metric is better, else ``max``.
    """
    tolerance = abs(target) * _FLOAT32_EPSILON
    return target + tolerance if mode == "min" else target - tolerance


def meets_target(value: float, target: float, mode: str) -> bool:
    """Whether a metric meets its target; NaN never does."""
    if math.isnan(value):
        return False
    edge = worst_that_reaches(target, mode)
    return value <= edge if mode == "min" else value >= edge


def better_value(value: float, best: float | None, mode: str) -> float | None:
    """Return the better of a value and the best so far; a value that is not finite never counts."""
    if not math.isfinite(value):
        return best
    if best is None:
        return value
    return min(best, value) if mode == "min" else max(best, value)
