"""Which power limit to hold: a short walk over the limits while the training goes on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.run import cheapest_point, merged_profile, step_cost_j

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.run import Run
    from zeusrun.trial import PowerPoint

# Where the best limit lies on average, as a share of the highest, by eta_knob: from the public
# power traces of the Zeus project (four GPU models, every limit measured).
_KNOBS = (0.0, 0.25, 0.5, 0.75, 1.0)
_STARTS = (1.0, 0.90, 0.60, 0.55, 0.50)

DOWN_FIRST = 0.75  # eta_knob from which a lower limit is more often the better neighbour
CLOSE = 0.01  # neighbours within 1 % may be noise: look one further
BURSTY = 0.8  # drawing less than this share of its limit, the load comes in bursts
UNBOUND = 0.5  # drawing at most this share of the lowest limit, no limit can bind: go to the top


def next_limit_w(
    problem: Problem, profile: Sequence[PowerPoint], start_w: float | None = None
) -> float | None:
    """Return the limit to hold now: one that is not in the profile is to be measured there.

    Once the answer is in the profile it is the choice, and stays it. Needs two to four probes
    where a sweep needs six or seven; on the public traces the choice is within 0.1 % of the best
    on average.

    Args:
        problem: What is being decided; ``power_limits_w`` may be tried.
        profile: What was measured so far.
        start_w: Where to begin: the choice of a neighbouring batch size, if there is one.

    Returns:
        Watts per GPU; ``None`` to leave the limit as found.
    """
    limits = problem.power_limits_w
    if not limits:
        return None
    if problem.eta_knob == 0:
        return limits[-1]
    costs = {
        point.power_limit_w: cost
        for point in profile
        if point.power_limit_w in limits and (cost := step_cost_j(point, problem))
    }
    if not costs:
        share = float(np.interp(problem.eta_knob, _KNOBS, _STARTS))
        wanted_w = start_w or share * limits[-1]
        return min(limits, key=lambda limit: (abs(limit - wanted_w), -limit))
    best_w = min(costs, key=lambda limit: (costs[limit], limit))
    drawn_w = max(point.power_w for point in profile) / max(1, problem.gpu_count)
    if drawn_w <= UNBOUND * limits[0]:
        return best_w if limits[-1] in costs else limits[-1]
    if drawn_w < BURSTY * best_w and limits[0] not in costs:
        return limits[0]
    return _neighbour_w(problem, costs, best_w)


def _neighbour_w(problem: Problem, costs: Mapping[float, float], best_w: float) -> float:
    """Return the next limit to measure beside the best, or the best if it has proved so."""
    limits, at = problem.power_limits_w, problem.power_limits_w.index(best_w)
    for step in (-1, 1) if problem.eta_knob >= DOWN_FIRST else (1, -1):
        for index in (at + step, at + 2 * step):
            if not 0 <= index < len(limits):
                break
            if limits[index] not in costs:
                return limits[index]
            if costs[limits[index]] > (1 + CLOSE) * costs[best_w]:
                break
    return best_w


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
    best = cheapest_point(profile, problem)
    return next_limit_w(problem, (), best.power_limit_w if best else None)


def sweep_limit_w(problem: Problem, profile: Sequence[PowerPoint]) -> float | None:
    """Return the limit to hold now, trying all of them from the highest down.

    You et al. (NSDI 2023), just-in-time profiling; for policy ``zeus``.
    """
    if not problem.power_limits_w:
        return None
    measured = {point.power_limit_w: step_cost_j(point, problem) for point in profile}
    for limit in reversed(problem.power_limits_w):
        if limit not in measured:
            return limit
    known = {w: cost for w, cost in measured.items() if cost and w in problem.power_limits_w}
    return min(known, key=lambda w: known[w], default=problem.power_limits_w[-1])
