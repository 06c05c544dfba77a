"""Chooses the power limit to hold, by measuring few limits during training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.problem import merged_profile, step_cost_j
from zeusrun.lever import POWER, Lever

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.problem import Observation, Problem
    from zeusrun.trial import PowerPoint

    Points = Mapping[Lever, PowerPoint]

# The best limit on average, as a share of the highest, by weight of energy: from the public power
# traces of the Zeus project (four GPU models, every limit measured).
_STARTS = (1.0, 0.90, 0.60, 0.55, 0.50)  # of the weights 0, 0.25, 0.5, 0.75 and 1

DOWN_FIRST = 0.75  # weight of energy from which a lower limit is more often the better neighbour
CLOSE = 0.0075  # a neighbour this near may be worse by noise alone: measure the next one, too
BURSTY = 0.8  # a load that draws less than this share of its limit may come in bursts
EQUAL = 0.001  # a smaller difference of cost is none
ALIKE = 0.02  # two limits with speed and power this near do not bind: they are equivalent
UNBOUND = 0.45  # no limit binds a load that draws at most this share of the lowest limit

# ``max_slowdown``: the time under a limit is modelled as ``log(t / t_top) = slope * (top / limit -
# 1) ** CURVE``. From the same traces. The model only chooses what to measure next: as the answer
# it once cost 70 %.
CURVE = 1.5
DRAW = 0.55  # with one point, the slope is the share of the top that is drawn, less this
LEAST_SLOPE = 0.05
FLAT = 0.003  # a limit that is slower than the highest by less does not show the slope
RISE = 0.03  # a limit that takes so much more energy than a higher one lies below the best
STEEP = 0.7  # log time lost per log power saved, from which energy may rise again


def next_lever(
    problem: Problem, profile: Sequence[PowerPoint], start: Lever | None = None
) -> Lever | None:
    """Return the limit to hold now; ``None`` to leave the limit as it is.

    If it is not in the profile, measure it and call again. A limit in the profile is the final
    choice. It does not depend on the order of measurement. The walk needs about two and a half
    probes where a sweep needs six or seven; ``benchmarks/power_limits.py`` measures how good the
    choice is. It begins at ``start``, the choice of a neighbouring batch size, if given.
    """
    limits, knob = problem.levers, problem.energy_weight
    if knob == 0 or not limits:
        return limits[-1] if limits else None
    points = {
        point.lever: point
        for point in profile
        if point.lever is not None and point.lever in limits and step_cost_j(point, problem, knob)
    }
    factor = problem.power_objective.factor
    if not points:
        share = 1.0 if factor is not None else _start_share(knob)
        wanted_w = start.value if start else share * limits[-1].value
        return min(limits, key=lambda limit: (abs(limit.value - wanted_w), -limit.value))
    # A limit whose probe showed no speed is not measured again, and never chosen.
    failed = {point.lever for point in profile} - points.keys()
    limits = tuple(limit for limit in limits if limit not in failed)
    costs, best, unbound = _ranking(problem, points)
    if unbound:
        return best if limits[-1] in points else limits[-1]
    drawn_w = _drawn_w(problem, points)
    if factor is not None:
        return _next_feasible(limits, points, costs, factor, drawn_w)
    # Bursts may hide a plateau and then a drop, which the walk would not find.
    if drawn_w < BURSTY * best.value and limits[0] not in costs:
        return limits[0]
    alike = [limit for limit in costs if _are_alike(points[limit], points[best])]
    return _neighbour(limits, costs, best, min(alike), down_first=knob >= DOWN_FIRST)


def _start_share(energy_weight: float) -> float:
    """Interpolate the best limit on average."""
    quarters = 4 * energy_weight
    left = min(int(quarters), len(_STARTS) - 2)
    return _STARTS[left] + (quarters - left) * (_STARTS[left + 1] - _STARTS[left])


def _ranking(problem: Problem, points: Points) -> tuple[dict[Lever, float], Lever, bool]:
    """Return the cost of a step by feasible limit, the best limit, and whether no limit binds."""
    factor, knob = problem.power_objective.factor, problem.energy_weight
    allowed = points if factor is None else _feasible(points, factor)
    costs = {limit: step_cost_j(points[limit], problem, knob) or 0.0 for limit in allowed}
    lowest_w = problem.levers[0].value if problem.levers else 0.0
    unbound = _drawn_w(problem, points) <= UNBOUND * lowest_w
    best = min(costs, key=lambda limit: (costs[limit], limit))
    if unbound and costs[max(costs)] <= (1 + EQUAL) * costs[best]:
        best = max(costs)  # as good as the cheapest
    return costs, best, unbound


def _drawn_w(problem: Problem, points: Points) -> float:
    """Return the highest power that one GPU drew."""
    return max(point.power_w for point in points.values()) / max(1, problem.hardware.gpu_count)


def _are_alike(point: PowerPoint, other: PowerPoint) -> bool:
    pairs = (point.steps_per_s, other.steps_per_s), (point.power_w, other.power_w)
    return all(abs(ours - its) <= ALIKE * abs(its) for ours, its in pairs)  # a draw may be 0 W


def _neighbour(
    limits: Sequence[Lever],
    costs: Mapping[Lever, float],
    best: Lever,
    lowest_alike: Lever,
    *,
    down_first: bool,
) -> Lever:
    """Return the next limit to measure beside the best one, or the best one."""
    for step in (-1, 1) if down_first else (1, -1):
        at = limits.index(best if step > 0 else lowest_alike)
        for index in (at + step, at + 2 * step):
            if not 0 <= index < len(limits):
                break
            if limits[index] not in costs:
                return limits[index]
            if costs[limits[index]] > (1 + CLOSE) * costs[best]:
                break
    return best


def _feasible(points: Points, factor: float) -> set[Lever]:
    """Return the measured limits that take at most ``factor`` times the time of the highest.

    Time only grows as the limit falls. So a limit below one that is too slow is excluded, even if
    a noisy probe showed it as fast.
    """
    allowed = set()
    slowest = points[max(points)].steps_per_s / factor
    for limit in sorted(points, reverse=True):
        if points[limit].steps_per_s < slowest:
            break
        allowed.add(limit)
    return allowed


def _next_feasible(
    limits: Sequence[Lever],
    points: Points,
    joules: Mapping[Lever, float],
    factor: float,
    drawn_w: float,
) -> Lever:
    """Return the limit to measure next, or the answer: the feasible limit of fewest joules.

    The walk ends once the limit below the lowest feasible one is measured as too slow, or energy
    begins to rise above it. ``joules`` are those of a step, by feasible limit.
    """
    top, lowest = limits[-1], min(joules)
    if top not in points:
        return top
    best = min(joules, key=lambda limit: (joules[limit], limit))
    too_slow = max(points.keys() - joules.keys(), default=Lever(POWER, -math.inf))
    between = [limit for limit in limits if too_slow < limit < lowest]
    if joules[lowest] <= (1 + RISE) * joules[best]:
        if between:
            return _promising(between, points, top, factor, drawn_w / top.value)
        if not _is_steep(points, lowest, top):
            return best
    at = limits.index(best)
    beside = (limits[index] for index in (at - 1, at + 1) if 0 <= index < len(limits))
    return next((limit for limit in beside if limit not in points and limit > too_slow), best)


def _promising(
    between: Sequence[Lever], points: Points, top: Lever, factor: float, share: float
) -> Lever:
    """Return the lowest limit that should be feasible; if none should, the highest of them."""
    slope = max(LEAST_SLOPE, share - DRAW) if len(points) == 1 else 0.0
    slowdowns = {limit: _slowdown(points, limit, top) for limit in points if limit != top}
    slower = [limit for limit, slowdown in slowdowns.items() if slowdown > FLAT]
    if slower:
        near = min(slower, key=lambda limit: abs(slowdowns[limit] - math.log(factor)))
        slope = slowdowns[near] / (top.value / near.value - 1) ** CURVE
    feasible = (
        limit
        for limit in between
        if slope * (top.value / limit.value - 1) ** CURVE <= math.log(factor)
    )
    return next(feasible, between[-1])


def _slowdown(points: Points, limit: Lever, top: Lever) -> float:
    """Return the logarithm of the time against that of the highest limit."""
    return math.log(points[top].steps_per_s / points[limit].steps_per_s)


def _is_steep(points: Points, limit: Lever, top: Lever) -> bool:
    """Whether time grows so fast at a limit that energy may have begun to rise."""
    if limit == top:
        return False
    # The derivative of the model.
    return CURVE * _slowdown(points, limit, top) / (1 - limit.value / top.value) > STEEP


def chosen_point(profile: Sequence[PowerPoint], problem: Problem) -> PowerPoint | None:
    """Return the measured point that the objective chooses; ``None`` without any.

    Before the walk has ended, ``max_slowdown`` compares with the highest limit measured so far.
    """
    knob = problem.energy_weight
    points = {
        point.lever or Lever(POWER, math.inf): point
        for point in profile
        if step_cost_j(point, problem, knob)
    }
    if not points:
        return None
    return points[max(points) if knob == 0 else _ranking(problem, points)[1]]


def best_limits(problem: Problem, runs: Sequence[Observation]) -> dict[int, tuple[float, int]]:
    """Return, by arm, the best measured limit and how many limits were measured."""
    best: dict[int, tuple[float, int]] = {}
    for arm in problem.candidates:
        profile = merged_profile([run for run in runs if run.arm == arm])
        point = chosen_point(profile, problem)
        if point is not None and point.power_limit_w is not None:
            best[arm] = (point.power_limit_w, len(profile))
    return best


def first_lever(problem: Problem, runs: Sequence[Observation], arm: int) -> Lever | None:
    """Return the limit to begin a trial with: the next one of the arm's own walk.

    An arm without a profile begins at the best limit of its nearest neighbour: the best limits of
    neighbours are rarely more than a step apart.
    """
    profiled = {run.arm for run in runs if run.local and run.profile}
    if not profiled or not problem.levers:
        return next_lever(problem, ())
    near = min(profiled, key=lambda other: (abs(math.log(other / arm)), other))
    profile = merged_profile([run for run in runs if run.arm == near])
    if near == arm:
        return next_lever(problem, profile)
    best = chosen_point(profile, problem)
    return next_lever(problem, (), best.lever if best else None)


def sweep_lever(problem: Problem, profile: Sequence[PowerPoint]) -> Lever | None:
    """Return the limit to hold now, measuring all of them from the highest down.

    You et al. (NSDI 2023), just-in-time profiling. Where only time counts, none is measured: the
    highest is the fastest.
    """
    limits = problem.levers
    if not limits:
        return None
    if problem.energy_weight == 0:
        return limits[-1]
    measured = {point.lever for point in profile}
    for limit in reversed(limits):
        if limit not in measured:
            return limit
    best = chosen_point([point for point in profile if point.lever in limits], problem)
    return limits[-1] if best is None else best.lever
