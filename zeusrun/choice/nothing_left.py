"""Says why a recurrence makes no further attempt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.bandit import stopping
from zeusrun.bandit.observation import FAILED
from zeusrun.bandit.proof import Doubt, prove
from zeusrun.choice.crash import is_permanent
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Observation
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
    *earlier, last = made
    if last.cause is not None:
        if last.cause in {trial.cause for trial in earlier}:
            return f"two attempts failed with the same error, so there is no third: {last.reason}"
        same = decision.global_batch_size == last.global_batch_size
        if is_permanent(last.reason or "", last.cause, same_choice=same):
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
    disturbed = prove(trial).learning in {Doubt.RESTARTED, Doubt.CHANGED}
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
