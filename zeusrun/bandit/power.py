"""Which power limit to hold: a short walk over the limits while the training goes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.observation import merged_profile, step_cost_j
from zeusrun.bandit.power_slowdown import feasible, next_feasible_w

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import PowerPoint

# Where the best limit lies on average, as a share of the highest, by weight of energy: from the
# public power traces of the Zeus project (four GPU models, every limit measured).
_KNOBS = (0.0, 0.25, 0.5, 0.75, 1.0)
_STARTS = (1.0, 0.90, 0.60, 0.55, 0.50)

DOWN_FIRST = 0.75  # weight of energy from which a lower limit is more often the better neighbour
CLOSE = 0.0075  # neighbours this near may be worse by noise alone: look one further
BURSTY = 0.8  # drawing less than this share of its limit, the load may come in bursts
EQUAL = 0.001  # no difference at all
ALIKE = 0.02  # speed and draw this near: neither limit binds, so that both are one and the same
UNBOUND = 0.45  # drawing at most this share of the lowest limit, no limit binds: to the top


def next_limit_w(
    problem: Problem, profile: Sequence[PowerPoint], start_w: float | None = None
) -> float | None:
    """Return the limit to hold now: one that is not in the profile is to be measured there.

    Once the answer is in the profile it is the choice, and stays it. It depends on what was
    measured, not in which order. Needs about two and a half probes where a sweep needs six or
    seven; ``benchmarks/power_limits.py`` says how good the choice is.

    Args:
        problem: What is being decided; ``power_limits_w`` may be tried, and ``power_objective``
            says which of them is best.
        profile: What was measured so far.
        start_w: Where to begin: the choice of a neighbouring batch size, if there is one.

    Returns:
        Watts per GPU; ``None`` to leave the limit as found.
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
    # A limit whose probe came to nothing is not measured again, and never the choice.
    failed = {point.power_limit_w for point in profile} - points.keys()
    limits = tuple(limit for limit in limits if limit not in failed)
    costs = _costs(problem, points)
    unbound = _unbound(problem, points)
    best_w = _best_w(costs, unbound=unbound)
    if unbound:
        return best_w if limits[-1] in points else limits[-1]
    drawn_w = _drawn_w(problem, points)
    if factor is not None:
        return next_feasible_w(limits, points, factor, drawn_w)
    # Bursts may hide a plateau and then a drop, which no walk would see.
    if drawn_w < BURSTY * best_w and limits[0] not in costs:
        return limits[0]
    alike = [limit for limit in costs if _are_alike(points[limit], points[best_w])]
    return _neighbour_w(limits, costs, best_w, alike, down_first=knob >= DOWN_FIRST)


def _costs(problem: Problem, points: Mapping[float, PowerPoint]) -> dict[float, float]:
    """Return what a step costs under the limits that may be chosen, as the objective sees it."""
    factor, knob = problem.power_objective.factor, problem.energy_weight
    allowed = points if factor is None else feasible(points, factor)
    return {limit: step_cost_j(points[limit], problem, knob) or 0.0 for limit in allowed}


def _drawn_w(problem: Problem, points: Mapping[float, PowerPoint]) -> float:
    """Return the most that a GPU drew."""
    return max(point.power_w for point in points.values()) / max(1, problem.gpu_count)


def _unbound(problem: Problem, points: Mapping[float, PowerPoint]) -> bool:
    """Whether so little is drawn that no limit can bind."""
    lowest_w = min(problem.power_limits_w, default=0.0)
    return _drawn_w(problem, points) <= UNBOUND * lowest_w


def _best_w(costs: Mapping[float, float], *, unbound: bool) -> float:
    """Return the limit of least cost; the highest, where none binds and it is as good."""
    best_w = min(costs, key=lambda limit: (costs[limit], limit))
    highest_w = max(costs)
    as_good = unbound and costs[highest_w] <= (1 + EQUAL) * costs[best_w]
    return highest_w if as_good else best_w


def _are_alike(point: PowerPoint, other: PowerPoint) -> bool:
    speed, draw = point.steps_per_s / other.steps_per_s, point.power_w / other.power_w
    return abs(speed - 1) <= ALIKE and abs(draw - 1) <= ALIKE


def _neighbour_w(
    limits: Sequence[float],
    costs: Mapping[float, float],
    best_w: float,
    alike: Sequence[float],
    *,
    down_first: bool,
) -> float:
    """Return the next limit to measure beside the best, or the best if it has proved so.

    Where limits do not bind, noise alone says which of those ``alike`` is the best, so the way
    down begins at the lowest of them.
    """
    for step in (-1, 1) if down_first else (1, -1):
        at = limits.index(best_w if step > 0 else min(alike))
        for index in (at + step, at + 2 * step):
            if not 0 <= index < len(limits):
                break
            if limits[index] not in costs:
                return limits[index]
            if costs[limits[index]] > (1 + CLOSE) * costs[best_w]:
                break
    return best_w


def chosen_point(profile: Sequence[PowerPoint], problem: Problem) -> PowerPoint | None:
    """Return the point of the limit that the objective chooses among those measured.

    While a walk is under way that is the best so far; ``max_slowdown`` then holds against the
    highest limit measured.

    Returns:
        ``None`` where nothing is known of any.
    """
    knob = problem.energy_weight
    points = {_limit(point): point for point in profile if step_cost_j(point, problem, knob)}
    if not points:
        return None
    if knob == 0:
        return points[max(points)]
    return points[_best_w(_costs(problem, points), unbound=_unbound(problem, points))]


def best_limits(problem: Problem, runs: Sequence[Run]) -> dict[int, tuple[float, int]]:
    """Return the limit that is best among those measured, and of how many, by arm."""
    best: dict[int, tuple[float, int]] = {}
    for arm in problem.candidates:
        profile = merged_profile([run for run in runs if run.arm == arm])
        point = chosen_point(profile, problem)
        if point is not None and point.power_limit_w is not None:
            best[arm] = (point.power_limit_w, len(profile))
    return best


def _limit(point: PowerPoint) -> float:
    """Return the limit of a point; none set is above all."""
    return math.inf if point.power_limit_w is None else point.power_limit_w


def first_limit_w(problem: Problem, runs: Sequence[Run], arm: int) -> float | None:
    """Return the limit to begin a trial with: the arm's own walk goes on where it stands.

    An arm without one begins where that of its nearest neighbour ended; the best limit of two
    neighbouring batch sizes is rarely more than a step apart.
    """
    if not problem.power_limits_w:
        return None
    profiled = {run.arm for run in runs if run.local and run.profile}
    if not profiled:
        return next_limit_w(problem, ())
    near = min(profiled, key=lambda other: (abs(math.log(other / arm)), other))
    profile = merged_profile([run for run in runs if run.arm == near])
    if near == arm:
        return next_limit_w(problem, profile)
    best = chosen_point(profile, problem)
    return next_limit_w(problem, (), best.power_limit_w if best else None)


def sweep_limit_w(problem: Problem, profile: Sequence[PowerPoint]) -> float | None:
    """Return the limit to hold now, trying all of them from the highest down.

    You et al. (NSDI 2023), just-in-time profiling; for policy ``zeus``. Where time alone counts
    none is tried: nothing is faster than the highest.
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
