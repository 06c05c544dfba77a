"""Chooses the next attempt of a recurrence, or says why there is none. Writes nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import FAILED
from zeusrun.bandit.stopping import is_repeat, is_target_in_doubt
from zeusrun.launcher.choose import choose_next
from zeusrun.launcher.rundir.failure import is_permanent
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.choose import Choice
    from zeusrun.launcher.context import Submission
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Attempt:
    """An attempt of the recurrence that is recorded.

    Attributes:
        trial: As recorded.
        replaced: Whether a speed check ended it for another batch size. Then it does not count, and
            another attempt follows.
    """

    trial: Trial
    replaced: bool


@dataclass(frozen=True)
class NothingLeft:
    """Why the recurrence ends without another attempt: a sentence for people."""

    reason: str


def choose_attempt(
    submission: Submission, trials: Sequence[Trial], made: Sequence[Attempt]
) -> Choice | NothingLeft:
    """Choose the next attempt of a recurrence.

    Args:
        submission: The job and all it needs.
        trials: The newest of the job, oldest first.
        made: The attempts of this recurrence so far; empty for a new recurrence, or to continue a
            preempted trial.

    Raises:
        UsageError: If the user's own choice is not among the candidates.
    """
    if not made:
        return choose_next(submission, trials, None, 1)
    last = made[-1]
    following = choose_next(submission, trials, last.trial.recurrence, last.trial.attempt + 1)
    if last.replaced:
        return following
    reason = _why_none(submission.spec, following, [each.trial for each in made])
    return following if reason is None else NothingLeft(reason)


def _why_none(spec: JobSpec, choice: Choice, made: Sequence[Trial]) -> str | None:
    """Return why a possible attempt is not made; ``None`` to make it."""
    *earlier, last = made
    if last.cause is not None:
        if last.cause in {trial.cause for trial in earlier}:
            return f"two attempts failed with the same error, so there is no third: {last.reason}"
        same = choice.decision.global_batch_size == last.global_batch_size
        if is_permanent(last.reason or "", last.cause, same_choice=same):
            return "there is no second attempt: the same error would occur"
    if is_target_in_doubt(made, choice.runs):
        return _doubt_target(spec, made)
    return _nothing_left(spec, made) if is_repeat(choice.decision, made) else None


def _doubt_target(spec: JobSpec, made: Sequence[Trial]) -> str:
    objective = spec.objective
    best = ", ".join(
        f"{trial.best_metric:.4g} with batch size {trial.global_batch_size}"
        for trial in made
        if trial.status in FAILED and trial.best_metric is not None
    )
    goal = f"{objective.metric} {objective.target:g}"
    return (
        f"nothing has reached {goal} yet (best: {best or 'none'}). "
        "Is the target right? Correct objective.target or objective.max_epochs; otherwise the "
        "next submit continues from here"
    )


def _nothing_left(spec: JobSpec, made: Sequence[Trial]) -> str:
    values = [trial.best_metric for trial in made if trial.best_metric is not None]
    best = (min if spec.objective.mode == "min" else max)(values, default=None)
    seen = "" if best is None else f" (best {best:.4g})"
    goal = f"{spec.objective.metric} {spec.objective.target:g}{seen}"
    stopped = any(trial.status is TrialStatus.STOPPED for trial in made)
    dear = "early_stop.cost_factor (it was stopped for its cost), " if stopped else ""
    correct = f"correct objective.target, raise {dear}objective.max_epochs, or"
    if all(trial.status is TrialStatus.OOM for trial in made):
        sizes = ", ".join(str(trial.global_batch_size) for trial in made)
        return (
            f"no batch size is left that may fit in memory ({sizes} did not); add smaller "
            "batch_size.candidates, or make room"
        )
    if spec.policy.name == "fixed":
        only = made[-1].global_batch_size
        return (
            f"{only} has not reached {goal}, and policy fixed never leaves it; "
            f"{correct} choose another policy.name"
        )
    return f"no other batch size is left to try for {goal}; {correct} add batch_size.candidates"
