"""Which attempt follows: whether a preempted trial goes on, and why no other attempt is made."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit import stopping
from zeusrun.bandit.problem import FAILED
from zeusrun.bandit.proof import Doubt, prove
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.bandit.problem import Observation
    from zeusrun.choice.problem import Chooser, Machine
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Decision, Trial


def why_no_other(
    spec: JobSpec,
    made: Sequence[Trial],
    decision: Decision,
    runs: Sequence[Observation],
    trials: Sequence[Trial],
) -> str | None:
    """Return why no attempt follows those that were made; ``None`` if that of ``decision`` does.

    ``runs`` and ``trials`` are the history, as the policy reads it and as it is stored.
    """
    last = made[-1]
    if last.cause is not None:
        alike = [each.global_batch_size for each in made if each.cause == last.cause]
        # One with another batch size shows whether that is the cause.
        shown = len({*alike}) > 1 or decision.global_batch_size in alike
        if len(alike) > 1 and shown:
            return f"the same error again, so there is no other attempt: {last.reason}"
        again = {ReasonCode.CANNOT_IMPORT, ReasonCode.DISK_FULL}
        if decision.global_batch_size == last.global_batch_size:  # else its arguments may be valid
            again.add(ReasonCode.USAGE_ERROR)
        if last.reason_code in again:
            return "there is no second attempt: the same error would occur"
    teaching = [trial for trial in made if trial.teaches]
    in_doubt = stopping.is_target_in_doubt(teaching, runs)
    if in_doubt and not any(_met_target(spec, trial) for trial in trials):
        return _doubt_target(spec, made)
    return _nothing_left(spec, made) if stopping.is_repeat(decision, made) else None


def _met_target(spec: JobSpec, trial: Trial) -> bool:
    """Whether a run shows that today's target can be met, even if not in how many epochs."""
    goal = (spec.objective.metric, spec.objective.mode, spec.objective.target)
    same = (trial.metric, trial.mode, trial.target) == goal
    unsure = {Doubt.RESTARTED, Doubt.UNCLEAR, Doubt.CHANGED, Doubt.CONTINUED}
    disturbed = prove(trial).learning in unsure
    return same and disturbed and trial.status is TrialStatus.REACHED


def _doubt_target(spec: JobSpec, made: Sequence[Trial]) -> str:
    objective = spec.objective
    best = ", ".join(
        f"{trial.best_metric:.4g} with batch size {trial.global_batch_size}"
        for trial in made
        if trial.status in FAILED and trial.best_metric is not None
    )
    goal = f"{objective.metric} {objective.target:g}"
    return (
        f"nothing has reached {goal} yet (best: {best or 'none'}). After two batch sizes have "
        f"missed it, zeusrun makes no other attempt (attempts is {spec.attempts}), because the "
        "target may be wrong. Correct objective.target or objective.max_epochs; otherwise the next "
        "submit continues from here"
    )


def _nothing_left(spec: JobSpec, made: Sequence[Trial]) -> str:
    values = [trial.best_metric for trial in made if trial.best_metric is not None]
    best = (min if spec.objective.mode == "min" else max)(values, default=None)
    seen = "" if best is None else f" (best {best:.4g})"
    goal = f"{spec.objective.metric} {spec.objective.target:g}{seen}"
    stopped = any(trial.status is TrialStatus.STOPPED for trial in made)
    cost_key = "early_stop.cost_factor (it was stopped for its cost), " if stopped else ""
    correct = f"correct objective.target, raise {cost_key}objective.max_epochs, or"
    if all(trial.status is TrialStatus.OOM for trial in made):
        sizes = ", ".join(str(trial.last_batch_size) for trial in made)
        return (
            f"no batch size is left that may fit in memory ({sizes} did not); add smaller "
            "batch_size.candidates, or free memory"
        )
    if spec.policy.name == "fixed":
        only = made[-1].global_batch_size
        return (
            f"{only} has not reached {goal}, and policy fixed tries no other batch size; "
            f"{correct} choose another policy.name"
        )
    return f"no other batch size is left to try for {goal}; {correct} add batch_size.candidates"


def list_preempted(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that later submits will continue, oldest first; no forgotten ones."""
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.recurrence, -trial.attempt)):
        if trial.status is TrialStatus.PREEMPTED:
            found += [] if trial.forgotten else [trial]
        elif trial.status.finished and trial.reason_code is not ReasonCode.CANCELLED_LATER:
            break
    return found[::-1]


def find_preempted(
    trials: Sequence[Trial], allocation: str | None = None, reserved: Collection[str] = ()
) -> Trial | None:
    """Return the oldest trial that the next submit will continue; ``None`` if there is none.

    A submit in an ``allocation`` continues the trial of that first. Trials of the ``reserved`` ones
    are left to them.
    """
    inside = [trial for trial in trials if allocation and trial.allocation == allocation]
    for trial in reversed(inside):  # it could not continue the earlier ones
        if trial.status is TrialStatus.PREEMPTED and not trial.forgotten:
            return trial
    others = (trial for trial in list_preempted(trials) if trial.allocation not in reserved)
    return next(others, None)


def why_not_continued(
    chooser: Chooser, machine: Machine, trial: Trial, *, has_files: bool
) -> str | None:
    """Return why a preempted trial cannot be continued as it began; ``None`` if it can."""
    spec, arm, forced = chooser.spec, trial.global_batch_size, chooser.forced
    # It was chosen in this allocation, which has only started again.
    chosen = trial.allocation is not None and trial.allocation == machine.allocation
    names = ("metric", "target", "mode", "eta_knob", "max_epochs")
    then, now = ([getattr(each, name) for name in names] for each in (trial, spec.objective))
    refusals = {
        "its run directory is gone": not has_files,
        "a chosen batch size starts a new run": forced is not None
        and not (chosen and forced.batch_size == arm),
        f"{arm} is no longer a candidate": arm not in spec.batch_size.candidates,
        "the objective has changed": then != now,
        "adapt or sync has changed": trial.variant != spec.variant,
        "the learning rate has changed": trial.learning_rate != spec.learning_rate_for(arm),
        "it ran on other devices": trial.hardware != machine.hardware,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)
