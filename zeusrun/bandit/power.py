"""Chooses the power limit to hold, by measuring few limits during training."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.observation import merged_profile, step_cost_j

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.observation import Observation
    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import PowerPoint

    Points = Mapping[float, PowerPoint]

# The best limit on average, as a share of the highest, by weight of energy: from the public power
# traces of the Zeus project (four GPU models, every limit measured).
_KNOBS = (0.0, 0.25, 0.5, 0.75, 1.0)
_STARTS = (1.0, 0.90, 0.60, 0.55, 0.50)

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


def next_limit_w(
    problem: Problem, profile: Sequence[PowerPoint], start_w: float | None = None
) -> float | None:
    """Return the limit to hold now, in watts per GPU; ``None`` to leave the limit as it is.

    If it is not in the profile, measure it and call again. A limit in the profile is the final
    choice. It does not depend on the order of measurement. The walk needs about two and a half
    probes where a sweep needs six or seven; ``benchmarks/power_limits.py`` measures how good the
    choice is. It begins at ``start_w``, the choice of a neighbouring batch size, if given.
    """
    limits, knob = problem.power_limits_w, problem.energy_weight
    if knob == 0 or not limits:
        return limits[-1] if limits else None
    points = {
        point.power_limit_w: point
        for point in profile
        if point.power_limit_w is not None
        and point.power_limit_w in limits
        and step_cost_j(point, problem, knob)
    }
    factor = problem.power_objective.factor
    if not points:
        share = 1.0 if factor is not None else float(np.interp(knob, _KNOBS, _STARTS))
        wanted_w = start_w or share * limits[-1]
        return min(limits, key=lambda limit: (abs(limit - wanted_w), -limit))
    # A limit whose probe showed no speed is not measured again, and never chosen.
    failed = {point.power_limit_w for point in profile} - points.keys()
    limits = tuple(limit for limit in limits if limit not in failed)
    costs, best_w, unbound = _ranking(problem, points)
    if unbound:
        return best_w if limits[-1] in points else limits[-1]
    drawn_w = _drawn_w(problem, points)
    if factor is not None:
        return _next_feasible_w(limits, points, costs, factor, drawn_w)
    # Bursts may hide a plateau and then a drop, which the walk would not find.
    if drawn_w < BURSTY * best_w and limits[0] not in costs:
        return limits[0]
    alike = [limit for limit in costs if _are_alike(points[limit], points[best_w])]
    return _neighbour_w(limits, costs, best_w, min(alike), down_first=knob >= DOWN_FIRST)


def _ranking(problem: Problem, points: Points) -> tuple[dict[float, float], float, bool]:
    """Return the cost of a step by feasible limit, the best limit, and whether no limit binds."""
    factor, knob = problem.power_objective.factor, problem.energy_weight
    allowed = points if factor is None else _feasible(points, factor)
    costs = {limit: step_cost_j(points[limit], problem, knob) or 0.0 for limit in allowed}
    lowest_w = min(problem.power_limits_w, default=0.0)
    unbound = _drawn_w(problem, points) <= UNBOUND * lowest_w
    best_w = min(costs, key=lambda limit: (costs[limit], limit))
    if unbound and costs[max(costs)] <= (1 + EQUAL) * costs[best_w]:
        best_w = max(costs)  # as good as the cheapest
    return costs, best_w, unbound


def _drawn_w(problem: Problem, points: Points) -> float:
    """Return the highest power that one GPU drew."""
    return max(point.power_w for point in points.values()) / max(1, problem.gpu_count)


def _are_alike(point: PowerPoint, other: PowerPoint) -> bool:
    pairs = (point.steps_per_s, other.steps_per_s), (point.power_w, other.power_w)
    return all(abs(own - its) <= ALIKE * abs(its) for own, its in pairs)  # a draw may be 0 W


def _neighbour_w(
    limits: Sequence[float],
    costs: Mapping[float, float],
    best_w: float,
    lowest_alike_w: float,
    *,
    down_first: bool,
) -> float:
    """Return the next limit to measure beside the best one, or the best one."""
    for step in (-1, 1) if down_first else (1, -1):
        at = limits.index(best_w if step > 0 else lowest_alike_w)
        for index in (at + step, at + 2 * step):
            if not 0 <= index < len(limits):
                break
            if limits[index] not in costs:
                return limits[index]
            if costs[limits[index]] > (1 + CLOSE) * costs[best_w]:
                break
    return best_w


def _feasible(points: Points, factor: float) -> set[float]:
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


def _next_feasible_w(
    limits: Sequence[float],
    points: Points,
    joules: Mapping[float, float],
    factor: float,
    drawn_w: float,
) -> float:
    """Return the limit to measure next, or the answer: the feasible limit of fewest joules.

    The walk ends once the limit below the lowest feasible one is measured as too slow, or energy
    begins to rise above it. ``joules`` are those of a step, by feasible limit.
    """
    top, lowest = limits[-1], min(joules)
    if top not in points:
        return top
    best_w = min(joules, key=lambda limit: (joules[limit], limit))
    too_slow = max(points.keys() - joules.keys(), default=-math.inf)
    between = [limit for limit in limits if too_slow < limit < lowest]
    if joules[lowest] <= (1 + RISE) * joules[best_w]:
        if between:
            return _promising_w(between, points, top, factor, drawn_w / top)
        if not _is_steep(points, lowest, top):
            return best_w
    at = limits.index(best_w)
    beside = (limits[index] for index in (at - 1, at + 1) if 0 <= index < len(limits))
    return next((limit for limit in beside if limit not in points and limit > too_slow), best_w)


def _promising_w(
    between: Sequence[float], points: Points, top: float, factor: float, share: float
) -> float:
    """Return the lowest limit that should be feasible; if none should, the highest of them."""
    slope = max(LEAST_SLOPE, share - DRAW) if len(points) == 1 else 0.0
    slowdowns = {limit: _slowdown(points, limit, top) for limit in points if limit != top}
    slower = [limit for limit, slowdown in slowdowns.items() if slowdown > FLAT]
    if slower:
        near = min(slower, key=lambda limit: abs(slowdowns[limit] - math.log(factor)))
        slope = slowdowns[near] / (top / near - 1) ** CURVE
    feasible = (w for w in between if slope * (top / w - 1) ** CURVE <= math.log(factor))
    return next(feasible, between[-1])


def _slowdown(points: Points, limit: float, top: float) -> float:
    """Return the logarithm of the time against that of the highest limit."""
    return math.log(points[top].steps_per_s / points[limit].steps_per_s)


def _is_steep(points: Points, limit: float, top: float) -> bool:
    """Whether time grows so fast at a limit that energy may have begun to rise."""
    if limit == top:
        return False
    derivative = CURVE * _slowdown(points, limit, top) / (1 - limit / top)  # of the model
    return derivative > STEEP


def chosen_point(profile: Sequence[PowerPoint], problem: Problem) -> PowerPoint | None:
    """Return the measured point that the objective chooses; ``None`` without any.

    Before the walk has ended, ``max_slowdown`` compares with the highest limit measured so far.
    """
    knob = problem.energy_weight
    points = {
        math.inf if point.power_limit_w is None else point.power_limit_w: point
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


def first_limit_w(problem: Problem, runs: Sequence[Observation], arm: int) -> float | None:
    """Return the limit to begin a trial with: the next one of the arm's own walk.

    An arm without a profile begins at the best limit of its nearest neighbour: the best limits of
    neighbours are rarely more than a step apart.
    """
    profiled = {run.arm for run in runs if run.local and run.profile}
    if not profiled or not problem.power_limits_w:
        return next_limit_w(problem, ())
    near = min(profiled, key=lambda other: (abs(math.log(other / arm)), other))
    profile = merged_profile([run for run in runs if run.arm == near])
    if near == arm:
        return next_limit_w(problem, profile)
    best = chosen_point(profile, problem)
    return next_limit_w(problem, (), best.power_limit_w if best else None)


def sweep_limit_w(problem: Problem, profile: Sequence[PowerPoint]) -> float | None:
    """Return the limit to hold now, measuring all of them from the highest down.

    You et al. (NSDI 2023), just-in-time profiling. Where only time counts, none is measured: the
    highest is the fastest.
    """
    limits = problem.power_limits_w
    if not limits:
        return None
    if problem.energy_weight == 0:
        return limits[-1]
    measured = {point.power_limit_w for point in profile}
    for limit in reversed(limits):
        if limit not in measured:
            return limit
    best = chosen_point([point for point in profile if point.power_limit_w in limits], problem)
    return limits[-1] if best is None else best.power_limit_w
