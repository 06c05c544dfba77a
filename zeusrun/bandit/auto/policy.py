"""Policy ``auto``: runs the cheapest arm so far, unless trying another one is expected to pay.

docs/policies.md derives it; benchmarks/ablations.py prints what each part is worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.beliefs import LEAST_SAVING, assess, newest_paces, saved_by_check, way_gone
from zeusrun.bandit.auto.evidence import PROVEN, was_bounded
from zeusrun.bandit.auto.words import (
    belief_of,
    why_after_crash,
    why_first,
    why_incumbent,
    why_retry,
    why_try,
)
from zeusrun.bandit.baselines import WalkingPolicy
from zeusrun.bandit.power import first_lever
from zeusrun.trial import Bound, Decision, Stage, TrialStatus, adapts

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.random import Generator

    from zeusrun.bandit.auto.beliefs import Assessment
    from zeusrun.bandit.problem import ArmBelief, Problem, Runs

SPEED_CHECK_S = 30.0  # of training show an arm's speed
LOST_SHARE = 0.2  # of the cost of a run; after larger losses, only proven arms follow
PACES = 5  # learning curves that a trial is compared with


class Auto(WalkingPolicy):
    """The default policy; see the module. It uses no random number."""

    name = "auto"

    def choose(self, problem: Problem, runs: Runs, rng: Generator) -> Decision:
        """Choose the next trial."""
        now = assess(problem, runs)
        index, stage, why = _select(now)
        arm = problem.candidates[index]
        bound = _bound(now, index, proven=stage in PROVEN)
        return Decision(arm, stage, why, first_lever(problem, runs, arm), bound)

    def explain(self, problem: Problem, runs: Runs, rng: Generator) -> list[ArmBelief]:
        """Return what is believed of every candidate."""
        now = assess(problem, runs)
        index, _, why = _select(now)
        return [
            belief_of(now, i, _bound(now, i, proven=False), why if i == index else None)
            for i in range(len(problem.candidates))
        ]


def bound_of_proven(problem: Problem, runs: Runs) -> Bound | None:
    """Return the bound of a trial that does not explore; ``None`` if nothing bounds its cost.

    Used for a trial that continues after preemption.
    """
    now = assess(problem, runs)
    incumbent = now.beliefs.incumbent
    return None if incumbent is None else _bound(now, incumbent, proven=True)


def _select(now: Assessment) -> tuple[int, Stage, str]:
    """Return the index of the arm to run next, the stage, and why."""
    evidence, arms, values = now.evidence, now.beliefs.arms, now.values
    incumbent, last = now.beliefs.incumbent, now.problem.last_attempt
    if incumbent is None:
        index = _first(now)
        return index, Stage.EXPLORE, why_first(now, index)
    if evidence.crashed_now and arms[incumbent] not in evidence.crashed_now | evidence.failed_now:
        return incumbent, Stage.RETRY, why_after_crash(now, incumbent)
    if evidence.failed_now and (last or _enough_of_trying(now, incumbent)):
        chosen = _likeliest if last and evidence.proven_failed_now else _proven
        index = chosen(now, incumbent)
        return index, Stage.RETRY, why_retry(now, index)
    if values is None or last or values.max() <= LEAST_SAVING:
        return incumbent, Stage.EXPLOIT, why_incumbent(now, incumbent)
    best = int(values.argmax())
    why = why_try(now, best, incumbent)
    if _needs_speed_check(now, best):
        why = f"{why}; at first, only {SPEED_CHECK_S:g} s are spent, to measure its speed"
        return best, Stage.SPEED_CHECK, why
    return best, Stage.EXPLORE, why


def _first(now: Assessment) -> int:
    """Choose while nothing has reached the target: untried arms, the nearest first.

    The search begins at the default or, after the job has changed, at the arm that reached the
    target last: the best arm now is rarely far from it. When no arm is left, that one runs again.
    While it is in flight, the next larger arm runs: a smaller one usually costs more an epoch.
    """
    problem, evidence = now.problem, now.evidence
    begin = evidence.last_reached or problem.default
    untried = [
        arm
        for arm in evidence.fitting
        if not evidence.out_of_memory.get(arm)
        and all(was_bounded(run) for run in evidence.results.get(arm, ()))
    ]
    idle = [arm for arm in untried if arm not in evidence.in_flight]
    options = idle or untried or evidence.fitting or [problem.default]
    up = begin in evidence.in_flight
    arm = min(options, key=lambda arm: (up and arm < begin, abs(math.log(arm / begin)), arm))
    return problem.candidates.index(arm)


def _usable(now: Assessment, failed: Collection[int]) -> tuple[list[int], set[int]]:
    """Return indexes of arms that have reached the target and not failed, and all free arms."""
    free = set(now.evidence.fitting).difference(failed)
    usable = free & now.evidence.reached.keys()
    return [i for i, arm in enumerate(now.beliefs.arms) if arm in usable], free


def _proven(now: Assessment, incumbent: int) -> int:
    """Choose, after a failure, the cheapest proven arm that has not failed in this recurrence."""
    proven, free = _usable(now, now.evidence.failed_now)
    expected = now.beliefs.mean + now.beliefs.covariance.diagonal() / 2
    nearest = _nearest(now, free, incumbent)
    return min(proven, key=lambda i: float(expected[i]), default=nearest)


def _nearest(now: Assessment, free: Collection[int], incumbent: int) -> int:
    """Return the free arm that has failed least often since a run reached the target.

    Of several, it is the nearest to the arm of that run; of two as near, the cheaper one. The arms
    nearby may no longer reach the target.
    """
    arms, mean = now.beliefs.arms, now.beliefs.mean
    begin = now.evidence.last_reached or arms[incumbent]

    def rank(i: int) -> tuple[int, float, float]:
        failed = now.evidence.failed_since[arms[i]]
        return failed, round(abs(math.log(arms[i] / begin)), 9), float(mean[i])

    return min((i for i, arm in enumerate(arms) if arm in free), key=rank, default=incumbent)


def _likeliest(now: Assessment, incumbent: int) -> int:
    """Choose the arm most likely to reach the target, for the last attempt after the best failed.

    That attempt has no bound, so an arm that was only stopped in the recurrence may run again; one
    that missed the target may not. The chance is that of fewer epochs than ``max_epochs``. The
    learning curves of stopped runs show how many epochs they would have taken, and by how much the
    job differs today.
    """
    beliefs = now.beliefs
    proven, free = _usable(now, now.evidence.missed_now)
    sd = np.sqrt(np.maximum(0.0, beliefs.covariance.diagonal()) + now.evidence.run_sd**2)
    log_epochs = beliefs.log_epochs.copy()
    today = {beliefs.arms.index(arm): math.log(epochs) for arm, epochs in _extrapolated(now)}
    if today:
        log_epochs += sum(log - log_epochs[i] for i, log in today.items()) / len(today)
        log_epochs[list(today)] = list(today.values())
    spare = (math.log(now.problem.epoch_limit) - log_epochs) / sd
    nearest = _nearest(now, free, incumbent)
    return max(proven, key=lambda i: float(spare[i]), default=nearest)


def _extrapolated(now: Assessment) -> Iterator[tuple[int, float]]:
    """Yield arms stopped in the recurrence, and the epochs that they would have taken."""
    problem, evidence = now.problem, now.evidence
    paces = newest_paces(evidence)
    for arm in evidence.failed_now.difference(evidence.missed_now).intersection(problem.candidates):
        for run in evidence.results.get(arm, ())[-1:]:  # none if it is from before the job changed
            if run.status is TrialStatus.STOPPED and paces and run.pace and run.epochs:
                yield arm, run.epochs / way_gone(problem.mode, paces, run.pace[-1][1])


def _enough_of_trying(now: Assessment, incumbent: int) -> bool:
    """Whether the recurrence has lost so much that only a proven arm may follow."""
    evidence, cost_j = now.evidence, now.beliefs.incumbent_cost_j
    if cost_j is None or now.beliefs.arms[incumbent] in evidence.failed_now:
        return True
    return evidence.lost_now_j > LOST_SHARE * cost_j


def _needs_speed_check(now: Assessment, index: int) -> bool:
    """Whether an arm's speed is unknown, and to measure it first saves more than it costs."""
    power_w, cost_j = now.problem.max_power_w, now.beliefs.incumbent_cost_j
    if adapts(now.problem.variant):  # the speed at its first batch size says little
        return False
    if not now.problem.speed_checks:
        return False
    if now.beliefs.arms[index] in now.evidence.speeds or not power_w or not cost_j:
        return False
    return saved_by_check(now, index, SPEED_CHECK_S * power_w / cost_j) > 0


def _bound(now: Assessment, index: int, *, proven: bool) -> Bound | None:
    """Return the user's bound for a proven arm, and a tighter one for a try.

    If the best arm has failed in the recurrence, the cost of a run today is unknown, and old bounds
    may stop every batch size. The last attempt then has no bound.
    """
    beliefs, factor = now.beliefs, now.problem.cost_factor
    incumbent, cost_j = beliefs.incumbent, beliefs.incumbent_cost_j
    if factor is None or incumbent is None or cost_j is None:
        return None
    if now.problem.last_attempt and now.evidence.proven_failed_now:
        return None
    if proven or index == incumbent:
        return Bound(max(factor, now.evidence.widest[beliefs.arms[incumbent]]) * cost_j)
    newest = now.evidence.reached[beliefs.arms[incumbent]][: -PACES - 1 : -1]
    paces = tuple(run.pace for run in newest if run.pace)
    return Bound((beliefs.bound_factor or factor) * cost_j, paces)
