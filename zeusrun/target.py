"""Whether a metric meets its target: one rule for the launcher, the worker and the policies."""

from __future__ import annotations

import math
import re

_LOWER_IS_BETTER = {"err", "perplexity", "ppl", "wer", "cer", "mae", "mse", "rmse", "mape", "nll"}
_FLOAT32_EPSILON = 2.0**-23  # relative spacing of float32 (IEEE 754)


def worst_that_reaches(target: float, mode: str) -> float:
    """Return the worst value of a metric that meets a target.

    A value computed in float32 may be slightly off: ``float32(0.95)`` is 0.949999988. So the
    target is relaxed by the spacing of float32, a ten-millionth of its size.
    """
    tolerance = abs(target) * _FLOAT32_EPSILON
    return target + tolerance if mode == "min" else target - tolerance


def describe_target(target: float, mode: str) -> str:
    """Return what a metric must be, such as ``≥ 0.95``."""
    return f"{'≤' if mode == 'min' else '≥'} {target:g}"


def meets_target(value: float, target: float, mode: str) -> bool:
    """Whether a metric meets its target; a value that is not finite never does."""
    if not math.isfinite(value):
        return False
    edge = worst_that_reaches(target, mode)
    return value <= edge if mode == "min" else value >= edge


def better_value(value: float, best: float | None, mode: str) -> float | None:
    """Return the better of a value and the best so far, ignoring a value that is not finite."""
    if not math.isfinite(value):
        return best
    if best is None:
        return value
    return min(best, value) if mode == "min" else max(best, value)


def likely_mode(metric: str) -> str:
    """Return ``min`` or ``max``, whichever the name of a metric suggests."""
    words = re.findall(r"[a-z]+", metric.lower())
    lower = any(word in _LOWER_IS_BETTER or word.endswith(("loss", "error")) for word in words)
    return "min" if lower else "max"
