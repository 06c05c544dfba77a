"""Finds the power limit of fewest joules among those that slow training down by little enough."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeusrun.trial import PowerPoint

# How much time a limit takes: ``log(t / t_top) = slope * (top / limit - 1) ** CURVE``. From the
# public power traces; it only says where to look next, and trusting it once cost 70 %.
CURVE = 1.5
DRAW = 0.55  # before there is more to go by, slope is by how much the top's draw exceeds this share
LEAST_SLOPE = 0.05
FLAT = 0.003  # slower than the highest limit by less than this says nothing of the slope
RISE = 0.03  # a limit that takes so much more energy than a higher one lies below the best
STEEP = 0.7  # time gained per power given (both logarithmic) from which energy may rise below


def feasible(points: Mapping[float, PowerPoint], factor: float) -> Collection[float]:
    """Return the limits measured that take at most ``factor`` times the time of the highest.

    Time only grows as the limit falls: what lies below a limit that takes too long is not
    believed to be fast enough, whatever one noisy probe says.
    """
    allowed = set()
    slowest = points[max(points)].steps_per_s / factor
    for limit in sorted(points, reverse=True):
        if points[limit].steps_per_s < slowest:
            break
        allowed.add(limit)
    return allowed


def next_feasible_w(
    limits: Sequence[float],
    points: Mapping[float, PowerPoint],
    factor: float,
    drawn_w: float,
) -> float:
    """Return the limit to measure next, or the answer: measured, feasible, of fewest joules.

    The lowest feasible limit is bracketed: the one below the answer has always been measured and
    takes too long, unless energy had begun to rise before.

    Args:
        limits: Those that may be set, ascending; at least one.
        points: What was measured of them; at least one.
        factor: Times the time of the highest limit that may be taken.
        drawn_w: The most that a GPU drew.
    """
    top = limits[-1]
    if top not in points:
        return top
    allowed = feasible(points, factor)
    joules = {limit: points[limit].power_w / points[limit].steps_per_s for limit in allowed}
    best = min(joules, key=lambda limit: (joules[limit], limit))
    lowest = min(allowed)
    too_slow = max((limit for limit in points if limit not in allowed), default=-math.inf)
    between = [limit for limit in limits if too_slow < limit < lowest]
    if joules[lowest] <= (1 + RISE) * joules[best]:
        if between:
            return _promising_w(between, points, top, factor, drawn_w / top)
        if not _steep(points, lowest, top):
            return best
    return _beside_w(limits, points, best, above=too_slow)


def _promising_w(
    between: Sequence[float],
    points: Mapping[float, PowerPoint],
    top: float,
    factor: float,
    share: float,
) -> float:
    """Return the lowest limit that ought to be feasible; if none ought, the highest of them."""
    slope = max(LEAST_SLOPE, share - DRAW) if len(points) == 1 else 0.0
    slowdowns = {limit: _slowdown(points, limit, top) for limit in points if limit != top}
    told = [limit for limit, slowdown in slowdowns.items() if slowdown > FLAT]
    if told:
        near = min(told, key=lambda limit: abs(slowdowns[limit] - math.log(factor)))
        slope = slowdowns[near] / (top / near - 1) ** CURVE
    ought = (w for w in between if slope * (top / w - 1) ** CURVE <= math.log(factor))
    return next(ought, between[-1])


def _slowdown(points: Mapping[float, PowerPoint], limit: float, top: float) -> float:
    """Return the logarithm of the time against that of the highest limit."""
    return math.log(points[top].steps_per_s / points[limit].steps_per_s)


def _steep(points: Mapping[float, PowerPoint], limit: float, top: float) -> bool:
    """Whether time grows so fast at a limit that energy may have begun to rise."""
    if limit == top:
        return False
    # The derivative of the model.
    gain = CURVE * _slowdown(points, limit, top) / (1 - limit / top)
    return gain > STEEP


def _beside_w(
    limits: Sequence[float], points: Mapping[float, PowerPoint], best: float, *, above: float
) -> float:
    """Return a neighbour of the best that is to be measured and may be feasible, or the best."""
    at = limits.index(best)
    beside = (limits[index] for index in (at - 1, at + 1) if 0 <= index < len(limits))
    return next((limit for limit in beside if limit not in points and limit > above), best)
