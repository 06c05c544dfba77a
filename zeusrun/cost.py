"""The cost of a run in joules, and joules as text."""

from __future__ import annotations

import math
from typing import TypeVar

_Amount = TypeVar("_Amount", int, float)
_MOST = 1e6  # more gigajoules come from a damaged record, and would fill a line with digits


def cost_j(
    energy_j: float | None, max_power_w: float | None, time_s: float | None, eta_knob: float
) -> float | None:
    """Return the cost metric, which weighs energy against time at the devices' maximum power.

    ``eta_knob * energy_j + (1 - eta_knob) * max_power_w * time_s``; You, Chung and Chowdhury,
    "Zeus", NSDI 2023, the cost metric. ``max_power_w`` is summed over the job's devices. A value of
    weight 0 is not needed.

    Returns:
        Joules; ``None`` if a value that is needed is unknown or not finite.

    Raises:
        ValueError: If ``eta_knob`` is outside 0 to 1.
    """
    if not 0 <= eta_knob <= 1:
        raise ValueError(f"eta_knob must be from 0 to 1, not {eta_knob}")
    cost = 0.0
    if eta_knob > 0:
        if energy_j is None:
            return None
        cost = eta_knob * energy_j
    if eta_knob < 1:
        if max_power_w is None or time_s is None:
            return None
        cost += (1 - eta_knob) * max_power_w * time_s
    return cost if math.isfinite(cost) else None


def energy_text(energy_j: float, like_j: float | None = None) -> str:
    """Write joules with three significant digits and a prefix, such as ``2.10 kJ``.

    ``like_j``: with the prefix and the decimals of this amount.
    """
    like_j = energy_j if like_j is None else like_j
    if abs(like_j) < _NOTHING_J:
        return "0 J"
    for unit in ("J", "kJ", "MJ"):
        if abs(like_j) < 999.5:  # 999.5 would round up to 1,000
            return f"{_three_digits(energy_j, like_j)} {unit}"
        energy_j, like_j = energy_j / 1000, like_j / 1000
    return f"{_three_digits(energy_j, like_j)} GJ"


_NOTHING_J = 1e-9  # less is a rounding error of a sum


def _three_digits(number: float, like: float) -> str:
    if abs(like) >= _MOST or (number == like and abs(like) < 0.9995):
        return f"{number:.3g}"
    digits = 2 - max(-2, math.floor(math.log10(float(f"{abs(like):.3g}"))))
    return f"{number + 0.0:.{max(0, digits)}f}"


def add(first: float | None, second: float | None) -> float | None:
    """Add two amounts; unknown if one of them is."""
    return None if first is None or second is None else first + second


def add_known(first: _Amount | None, second: _Amount | None) -> _Amount | None:
    """Add two amounts; an unknown one counts as zero."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
