"""How far the next attempt of a recurrence may go: for submits and simulations alike."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.bandit.observation import Observation, timed_runs, usual_speed
from zeusrun.bandit.stopping import is_repeat
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Bound, Decision, Trial

    Choose: TypeAlias = Callable[[Problem, Sequence[Observation]], Decision]

_MOST_EPOCHS = 1e300  # JSON has no infinity


def bounded_choice(
    choose: Choose,
    problem: Problem,
    runs: Sequence[Observation],
    made: Sequence[Trial],
    *,
    moves_on: bool = False,
) -> Decision:
    """Return the choice for the next attempt; ``made`` are those of the recurrence so far.

    A slow machine alone stops no run (see ``fit_bound``). A run that no other attempt could follow
    has no bound: a recurrence whose attempts were only stopped ends with a model, or has trained
    all of its epochs. ``moves_on`` says that the policy repeats no stopped batch size in a
    recurrence while another may run; it is then rarely asked what would follow.
    """
    decision = choose(problem, runs)
    if decision.bound is None:
        return decision
    surely_not = moves_on and not made and _may_another_run(problem, runs, decision)
    if not surely_not and _is_last_possible(choose, problem, runs, made, decision):
        return replace(decision, bound=None)
    return replace(
        decision, bound=fit_bound(problem, runs, decision.global_batch_size, decision.bound)
    )


def fit_bound(problem: Problem, runs: Sequence[Observation], arm: int, bound: Bound) -> Bound:
    """Return a bound that fits how fast the machine is now.

    If the speed of the batch size is known, the bound is in epochs: those that it usually pays for.
    Otherwise it grows as the batch sizes that ran in this recurrence were slower than usual. The
    run's own speed excuses nothing: it may be the batch size that is slow.
    """
    before = timed_runs(
        run for run in runs if run.recurrence != problem.recurrence and not _is_at_least(run)
    )
    usual_j = {each: usual_speed(own) for each, own in before.items()}
    if arm in usual_j:
        return replace(bound, epochs=min(bound.cost_j / usual_j[arm], _MOST_EPOCHS))
    slower = [
        math.log(run.epoch_cost_j / usual_j[run.arm])
        for run in runs
        if run.recurrence == problem.recurrence and run.epoch_cost_j and run.arm in usual_j
    ]
    factor = math.exp(sum(slower) / len(slower)) if slower else 1.0
    return replace(bound, cost_j=bound.cost_j * max(1.0, factor))


def _is_at_least(run: Observation) -> bool:
    """Whether an epoch of a run costs more than known: it was stopped within the first one."""
    return run.status is TrialStatus.STOPPED and run.epochs is None and not run.profile


def _may_another_run(problem: Problem, runs: Sequence[Observation], decision: Decision) -> bool:
    """Whether attempts are left, and another batch size that nothing speaks against.

    None as large has ever run out of memory, and it has never crashed.
    """
    if problem.attempts_left is not None and problem.attempts_left <= 1:
        return False
    crashed = {run.arm for run in runs if run.status is TrialStatus.FAILED}
    most = min((run.arm for run in runs if run.status is TrialStatus.OOM), default=math.inf)
    others = (arm for arm in problem.candidates if arm not in crashed and arm < most)
    return any(arm != decision.global_batch_size for arm in others)


def _is_last_possible(
    choose: Choose,
    problem: Problem,
    runs: Sequence[Observation],
    made: Sequence[Trial],
    decision: Decision,
) -> bool:
    """Whether no attempt would follow if this one was stopped."""
    if problem.attempts_left is None:
        return False
    if problem.attempts_left <= 1:
        return True
    arm, left = decision.global_batch_size, problem.attempts_left - 1
    stopped = Observation(arm, problem.recurrence, TrialStatus.STOPPED, decision.stage, epochs=1)
    then = replace(problem, attempts_left=left, last_attempt=left == 1)
    after = choose(then, [*runs, stopped])
    same = after.global_batch_size == arm and after.bound is not None
    return same or is_repeat(after, made)
