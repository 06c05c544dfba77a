"""Says which past trials are read otherwise than they ended, and what is kept of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.reinterpret import (
    CRASHED,
    WHOLE,
    completed,
    disturbed,
    same_energy,
    same_hardware,
    same_learning,
    unrelated_end,
)
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial

_AGAIN = "read again from {own} {curves}"
_EPOCHS = "kept for {own} epochs"
_SPEED = "kept for {own} speed"
_FEW = 3  # values to name of each kind


class _Reason(NamedTuple):
    """Why a trial is read otherwise than it ended: what was other, its value, what is kept."""

    what: str
    value: str
    kept: str


def kept(problem: Problem, trials: Sequence[Trial]) -> list[str]:
    """Say which finished trials are read otherwise than they ended, and what is kept of them.

    Returns:
        Clauses such as ``4 trials had another target (0.9): read again from their learning
        curves``, one a reason, by first occurrence. A trial is counted under its first reason.
    """
    problem = completed(problem, trials)
    values: dict[tuple[str, str], list[str]] = {}
    for trial in trials:
        reason = _reason(problem, trial) if _says_anything(trial) else None
        if reason is not None:
            values.setdefault((reason.what, reason.kept), []).append(reason.value)
    clauses = []
    for (what, kept_of_it), seen in values.items():
        distinct = list(dict.fromkeys(seen))
        few = ", ".join(distinct[:_FEW]) + (", …" if len(distinct) > _FEW else "")
        trials_, own = ("trials", "their") if len(seen) > 1 else ("trial", "its")
        curves = "learning curves" if len(seen) > 1 else "learning curve"
        told = kept_of_it.format(own=own, curves=curves)
        clauses.append(f"{len(seen)} {trials_} {what.format(own=own)} ({few}): {told}")
    return clauses


def _says_anything(trial: Trial) -> bool:
    """Whether a trial has ended, and not before there was anything to learn from it."""
    cut_short = trial.status in {TrialStatus.CANCELLED, TrialStatus.PREEMPTED}
    return trial.status.finished and not (
        cut_short and not trial.epochs and not trial.power_profile and not trial.forgotten
    )


def _reason(problem: Problem, trial: Trial) -> _Reason | None:
    status = trial.status
    unrelated = unrelated_end(trial)
    if unrelated is not None:
        return _Reason(unrelated, status.value, "left out")
    if disturbed(problem, trial):
        return _shared(problem, trial)
    if not same_hardware(problem, trial):
        return _other_hardware(problem, trial)
    if status in CRASHED:
        return None
    if not same_energy(problem, trial):
        source = trial.energy_source
        return _Reason("had another kind of energy", source.value if source else "none", _EPOCHS)
    alike = same_learning(problem, trial)
    return _reread(problem, trial) if alike else _other_learning(problem, trial)


def _shared(problem: Problem, trial: Trial) -> _Reason:
    told = _EPOCHS if trial.status in WHOLE else "read as cut short"
    if trial.status in CRASHED or not same_learning(problem, trial):
        told = "left out"
    return _Reason("shared {own} GPUs", "with other processes", told)


def _other_hardware(problem: Problem, trial: Trial) -> _Reason:
    same = (trial.gpu_model, trial.gpu_count) == (problem.gpu_model, problem.gpu_count)
    if same and trial.world_size != problem.world_size:
        what, value = "had another number of ranks", str(trial.world_size)
    else:
        what, value = "ran elsewhere", _device(trial)
    if trial.status in CRASHED or not same_learning(problem, trial):
        return _Reason(what, value, "left out")
    return _Reason(what, value, f"{_EPOCHS}, speed and power are learned again")


def _device(trial: Trial) -> str:
    if trial.gpu_count:
        return f"{trial.gpu_count} x {trial.gpu_model}"
    return "CPU" if trial.max_power_w is None else f"CPU of {trial.max_power_w:g} W"


def _other_learning(problem: Problem, trial: Trial) -> _Reason:
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        return _Reason("had another metric", f"{trial.metric}, {trial.mode}", _SPEED)
    then = trial.learning_rate
    return _Reason("had another learning rate", "none" if then is None else f"{then:g}", _SPEED)


def _reread(problem: Problem, trial: Trial) -> _Reason | None:
    if not trial.curve:
        return None
    if trial.target != problem.target:
        return _Reason("had another target", f"{trial.target:g}", _AGAIN)
    if trial.max_epochs != problem.max_epochs:
        return _Reason("had another max_epochs", str(trial.max_epochs), _AGAIN)
    if trial.eta_knob != problem.eta_knob:
        return _Reason("had another eta_knob", f"{trial.eta_knob:g}", "priced anew")
    if trial.global_batch_size not in problem.candidates:
        arm = str(trial.global_batch_size)
        return _Reason("had a batch size that is no candidate", arm, "kept for {own} neighbours")
    return None
