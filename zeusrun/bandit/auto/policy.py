"""Policy ``auto``: beliefs, the value of trying, a bound for every trial, a walk over limits.

Every recurrence runs the arm that has proved cheapest, unless another one is worth a try: what
its run would teach, over the recurrences to come, is more than what it costs. No randomness.
docs/policies.md derives it, and says what each part is worth.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.assessment import Position, assess
from zeusrun.bandit.auto.beliefs import way_gone
from zeusrun.bandit.auto.evidence import PROVEN, was_bounded
from zeusrun.bandit.auto.explain import (
    belief_of,
    why_after_crash,
    why_first,
    why_incumbent,
    why_retry,
    why_try,
)
from zeusrun.bandit.power import first_limit_w, next_limit_w
from zeusrun.bandit.stopping import hopeless
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run, Running
    from zeusrun.bandit.problem import ArmBelief, Problem
    from zeusrun.trial import PowerPoint

LOOK_S = 30.0  # of training show an arm's speed
LOOK_SHARE = 0.2  # of a run that a look may cost
LOST_SHARE = 0.2  # of a run that failures may cost before only the proven may follow
LEAP = 3  # failures of a recurrence after which the best is not near where it was
PACES = 5  # learning curves that a trial is compared with


class Auto:
    """The default policy; see the module. It uses no random number."""

    name = "auto"

    def choose(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> Decision:
        """Choose the next trial."""
        position = assess(problem, runs)
        index, stage, why = _select(position)
        arm = position.beliefs.arms[index]
        limit_w = first_limit_w(problem, runs, arm)
        proven = stage in PROVEN
        return Decision(arm, stage, why, limit_w, _bound(position, index, proven=proven))

    def next_limit_w(
        self, problem: Problem, decision: Decision, profile: Sequence[PowerPoint]
    ) -> float | None:
        """Return the next limit of a short walk, or its choice."""
        return next_limit_w(problem, profile, decision.power_limit_w)

    def review(self, problem: Problem, decision: Decision, running: Running) -> str | None:
        """Return why the trial cannot reach the target within its bound any more."""
        return hopeless(decision.bound, problem.mode, running)

    def explain(self, problem: Problem, runs: Sequence[Run], rng: Generator) -> list[ArmBelief]:
        """Return what is believed of every candidate."""
        position = assess(problem, runs)
        index, _, why = _select(position)
        return [
            belief_of(position, i, _bound(position, i, proven=False), why if i == index else None)
            for i in range(len(problem.candidates))
        ]


def bound_of_proven(problem: Problem, runs: Sequence[Run]) -> Bound | None:
    """Return the bound of a trial that is no exploration; ``None`` if nothing bounds its cost.

    It applies to a batch size that the user names and to a trial that continues after preemption.
    """
    position = assess(problem, runs)
    incumbent = position.beliefs.incumbent
    return None if incumbent is None else _bound(position, incumbent, proven=True)


def _select(position: Position) -> tuple[int, Stage, str]:
    """Return the index of the arm to run next, and why."""
    evidence, beliefs, values = position.evidence, position.beliefs, position.values
    incumbent = beliefs.incumbent
    if incumbent is None:
        index = _first(position)
        return index, Stage.EXPLORE, why_first(position, index)
    tried_now = evidence.crashed_now | evidence.failed_now
    if evidence.crashed_now and beliefs.arms[incumbent] not in tried_now:
        return incumbent, Stage.RETRY, why_after_crash(position, incumbent)
    last = position.problem.last_attempt
    if evidence.failed_now and (last or _enough_of_trying(position, incumbent)):
        chosen = _likeliest if last and evidence.proven_failed_now else _proven
        index = chosen(position, incumbent)
        return index, Stage.RETRY, why_retry(position, index)
    best = incumbent if values is None or last else int(values.argmax())
    if best == incumbent:
        return incumbent, Stage.EXPLOIT, why_incumbent(position, incumbent)
    why = why_try(position, best, incumbent)
    if _worth_a_look(position, best):
        return best, Stage.LOOK, f"{why}; its speed is unknown, so {LOOK_S:g} s of it come first"
    return best, Stage.EXPLORE, why


def _first(position: Position) -> int:
    """Nothing has reached the target: what was not tried, outwards from where to begin.

    That is the default, or after the job has moved the arm that reached the target last: the best
    one now is rarely far from it. When none is left, that one alone, until the target or something
    else changes. It may be in flight already: until something has reached the target no trial has
    a bound, and spreading out costs more than it teaches (docs/policies.md).
    """
    problem, evidence = position.problem, position.evidence
    begin = evidence.last_reached or problem.default
    untried = [
        arm
        for arm in evidence.fitting
        if not evidence.out_of_memory.get(arm)
        and all(was_bounded(run) for run in evidence.results.get(arm, ()))
    ]
    if problem.last_attempt and len(evidence.failed_now) >= LEAP:
        # The best has moved far. What has needed the fewest epochs can spare most of them.
        proven = [arm for arm in untried if arm in evidence.successes]
        if proven:
            arm = min(proven, key=lambda arm: evidence.successes[arm])
            return problem.candidates.index(arm)
    options = untried or evidence.fitting or [problem.default]
    arm = min(options, key=lambda arm: (abs(math.log(arm / begin)), arm))
    return problem.candidates.index(arm)


def _proven(position: Position, incumbent: int) -> int:
    """After a failure: what is proven and has not failed in this recurrence, at the least cost."""
    evidence, beliefs = position.evidence, position.beliefs
    free = set(evidence.fitting) - evidence.failed_now
    expected = beliefs.mean + beliefs.covariance.diagonal() / 2
    proven = [i for i, arm in enumerate(beliefs.arms) if arm in free & set(evidence.reached)]
    return min(
        proven, key=lambda i: float(expected[i]), default=_nearest(position, free, incumbent)
    )


def _nearest(position: Position, free: Collection[int], incumbent: int) -> int:
    """Return what is nearest to the arm that reached the target last, of two the cheaper one."""
    arms, mean = position.beliefs.arms, position.beliefs.mean
    begin = position.evidence.last_reached or arms[incumbent]

    def rank(i: int) -> tuple[float, float]:
        return round(abs(math.log(arms[i] / begin)), 9), float(mean[i])

    return min((i for i, arm in enumerate(arms) if arm in free), key=rank, default=incumbent)


def _likeliest(position: Position, incumbent: int) -> int:
    """The last attempt after the best known has failed: what is most likely to reach the target.

    It is not bounded, so what was only stopped in the recurrence may run again; what missed the
    target may not. The chance is that of fewer epochs than ``max_epochs``: the learning curve of
    what was stopped shows how many it would have taken, and how far off the others may be today.
    """
    evidence, beliefs = position.evidence, position.beliefs
    free = set(evidence.fitting) - evidence.missed_now
    proven = [i for i, arm in enumerate(beliefs.arms) if arm in free & set(evidence.reached)]
    sd = np.sqrt(np.maximum(0.0, beliefs.covariance.diagonal()) + beliefs.run_sd**2)
    log_epochs = beliefs.log_epochs.copy()
    today = {beliefs.arms.index(arm): math.log(epochs) for arm, epochs in _stretched(position)}
    if today:
        log_epochs += sum(log - log_epochs[i] for i, log in today.items()) / len(today)
        log_epochs[list(today)] = list(today.values())
    spare = (math.log(position.problem.max_epochs) - log_epochs) / sd
    return max(proven, key=lambda i: float(spare[i]), default=_nearest(position, free, incumbent))


def _stretched(position: Position) -> Iterator[tuple[int, float]]:
    """Yield arms that were stopped in the recurrence, and the epochs that they would have taken."""
    problem, evidence = position.problem, position.evidence
    paces = [runs[-1].pace for runs in evidence.reached.values() if runs[-1].pace]
    for arm in evidence.failed_now.difference(evidence.missed_now).intersection(problem.candidates):
        for run in evidence.results.get(arm, ())[-1:]:  # none, if it is of before the job moved
            if run.status is TrialStatus.STOPPED and paces and run.pace and run.epochs:
                yield arm, run.epochs / way_gone(problem.mode, paces, run.pace[-1][1])


def _enough_of_trying(position: Position, incumbent: int) -> bool:
    """Whether the recurrence has lost so much that only what is proven may follow."""
    evidence, cost_j = position.evidence, position.beliefs.incumbent_cost_j
    if cost_j is None or position.beliefs.arms[incumbent] in evidence.failed_now:
        return True
    return evidence.lost_now_j > LOST_SHARE * cost_j


def _worth_a_look(position: Position, index: int) -> bool:
    """Whether an arm's speed is unknown, and seeing it costs little of what a run costs."""
    power_w, cost_j = position.problem.max_power_w, position.beliefs.incumbent_cost_j
    if position.beliefs.arms[index] in position.evidence.epoch_cost_j or not power_w or not cost_j:
        return False
    return LOOK_S * power_w < LOOK_SHARE * cost_j


def _bound(position: Position, index: int, *, proven: bool) -> Bound | None:
    """What is proven may cost what the user allows, a try only what keeps it of interest.

    Once the best known has failed in the recurrence, what a run costs today is not known. Then the
    last attempt is not bounded: a bound of before may stop every batch size.
    """
    beliefs, factor = position.beliefs, position.problem.cost_factor
    incumbent, cost_j = beliefs.incumbent, beliefs.incumbent_cost_j
    if factor is None or incumbent is None or cost_j is None:
        return None
    if position.problem.last_attempt and position.evidence.proven_failed_now:
        return None
    if proven or index == incumbent:
        return Bound(factor * cost_j)
    newest = position.evidence.reached[beliefs.arms[incumbent]][: -PACES - 1 : -1]
    paces = tuple(run.pace for run in newest if run.pace)
    return Bound((beliefs.bound_factor or factor) * cost_j, paces)
