"""When ``submit`` and ``simulate`` stop: a hopeless trial, or a recurrence with nothing to try."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.bandit.problem import FAILED, OUTDONE, Observation, better, timed_runs, usual_speed
from zeusrun.cost import energy_text
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.bandit.problem import Pace, Problem, Running, Runs
    from zeusrun.trial import Bound, Decision, Trial

    Choose: TypeAlias = Callable[[Problem, Runs], Decision]


def hopeless(bound: Bound | None, mode: str, running: Running) -> str | None:
    """Return why a trial cannot reach the target within its bound; ``None``: it continues.

    Call it at the end of an epoch. A trial that has come a share of the way may have spent that
    share of its bound; see ``share_done``.
    """
    if bound is None or (bound.epochs is None and running.cost_j is None):
        return None
    epochs = running.epochs
    if bound.epochs is None:
        spent, allowed = running.cost_j or 0.0, bound.cost_j
        what, limit = "its cost", energy_text(allowed)
    else:
        spent, allowed = float(epochs), bound.epochs
        usual = f"{energy_text(bound.cost_j)} at its usual speed"
        what, limit = "it", f"{amount_text(allowed, running.unit)} ({usual})"
    if spent + spent / max(1, epochs) > allowed:
        left = f"{what} passed" if spent > allowed else "one more epoch would pass"
        return f"{left} the bound of {limit}"
    share = share_done(bound.paces, mode, running.best_value) if bound.paces else 1.0
    if spent <= share * allowed:
        return None
    return (
        f"after {amount_text(epochs, running.unit)} it has come {100 * share:.0f} % of the way at "
        f"most, and has used {100 * spent / allowed:.0f} % of its bound, {limit}"
    )


def amount_text(epochs: float, unit: int | None) -> str:
    """Return whole epochs, or samples with three digits where ``unit`` of them are an epoch."""
    if unit is not None:
        return f"{float(f'{epochs * unit:.3g}'):,.0f} samples"
    if epochs < 1:
        return "less than 1 epoch"
    return "1 epoch" if epochs < 2 else f"{math.floor(epochs)} epochs"


def share_done(paces: Sequence[Pace], mode: str, best_value: float | None) -> float:
    """Return which share of the way to the target a trial has come at most, up to 1.

    It is the share of their epochs after which earlier runs were better, plus one epoch.
    """
    shares = 0.0
    for pace in paces:
        ahead = (n for n, value in pace if best_value is None or better(mode, value, best_value))
        shares += min(1.0, (next(ahead, pace[-1][0]) + 1) / pace[-1][0])
    return shares / len(paces)


def count_attempts_left(made: Sequence[Trial], attempts: int) -> int:
    """Return how many attempts a recurrence may still make, at least 1.

    A speed check is no attempt, and one that may go on has not ended.
    """
    open_ = {TrialStatus.CANCELLED, TrialStatus.PREEMPTED, TrialStatus.DISPATCHED}
    return max(1, attempts - sum(trial.status not in open_ for trial in made))


def is_repeat(decision: Decision, made: Sequence[Trial]) -> bool:
    """Whether the batch size has failed in the recurrence, or one as small ran out of memory.

    The recurrence then ends: with the same data, batch size and seed most scripts miss the target
    again. A trial that was only stopped for its cost may run again without a bound.
    """
    arm = decision.global_batch_size
    final = OUTDONE if decision.bound else OUTDONE - {TrialStatus.STOPPED}
    others = final - {TrialStatus.OOM}
    failed = {trial.global_batch_size for trial in made if trial.status in others}
    too_large = [trial.last_batch_size for trial in made if trial.status is TrialStatus.OOM]
    return arm in failed or arm >= min(too_large, default=arm + 1)


def is_target_in_doubt(made: Sequence[Trial], runs: Runs) -> bool:
    """Whether two arms missed the target and no run ever reached it: the target may be wrong."""
    missed = {trial.global_batch_size for trial in made if trial.status in FAILED}
    return len(missed) > 1 and not any(run.status is TrialStatus.REACHED for run in runs)


_MAX_EPOCHS = 1e300  # JSON has no infinity


def bounded_choice(
    choose: Choose, problem: Problem, runs: Runs, made: Sequence[Trial], *, moves_on: bool = False
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
    bound = fit_bound(problem, runs, decision.global_batch_size, decision.bound)
    return replace(decision, bound=bound)


def fit_bound(problem: Problem, runs: Runs, arm: int, bound: Bound) -> Bound:
    """Return a bound that fits how fast the machine is now.

    If the speed of the batch size is known, the bound is in epochs: those that it usually pays for.
    Otherwise it grows as the batch sizes that ran in this recurrence were slower than usual. The
    run's own speed excuses nothing: it may be the batch size that is slow.
    """
    before = timed_runs(
        run
        for run in runs
        if run.recurrence != problem.recurrence
        # Not one that was stopped within its first epoch: that costs more than is known.
        and (run.status is not TrialStatus.STOPPED or run.epochs is not None or run.profile)
    )
    usual_j = {each: usual_speed(of_arm) for each, of_arm in before.items()}
    if arm in usual_j:
        return replace(bound, epochs=min(bound.cost_j / usual_j[arm], _MAX_EPOCHS))
    slower = [
        math.log(run.epoch_cost_j / usual_j[run.arm])
        for run in runs
        if run.recurrence == problem.recurrence and run.epoch_cost_j and run.arm in usual_j
    ]
    factor = math.exp(sum(slower) / len(slower)) if slower else 1.0
    return replace(bound, cost_j=bound.cost_j * max(1.0, factor))


def _may_another_run(problem: Problem, runs: Runs, decision: Decision) -> bool:
    """Whether attempts are left, and another batch size that nothing speaks against.

    None as large has ever run out of memory, and it has never crashed.
    """
    if problem.attempts_left is not None and problem.attempts_left <= 1:
        return False
    crashed = {run.arm for run in runs if run.status is TrialStatus.FAILED}
    too_large = min((run.arm for run in runs if run.status is TrialStatus.OOM), default=math.inf)
    others = (arm for arm in problem.candidates if arm not in crashed and arm < too_large)
    return any(arm != decision.global_batch_size for arm in others)


def _is_last_possible(
    choose: Choose, problem: Problem, runs: Runs, made: Sequence[Trial], decision: Decision
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
