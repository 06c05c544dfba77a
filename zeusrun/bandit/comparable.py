"""Which past trials still teach, now that the job or the machine may have changed."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.cost import cost_j
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.bandit.problem import Problem

# How these end says nothing about the batch size.
_SILENT = frozenset(
    {TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.PREEMPTED, TrialStatus.LOST}
)


def comparable(problem: Problem, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that still teach, as they read under the problem of today.

    Kept are trials of a candidate on the same hardware, with the same metric, mode, target and
    learning rate; for ``OOM`` the hardware alone decides, memory knows no target. Set aside are
    also: a miss with fewer epochs than are allowed now; a stop for a cost under another
    ``eta_knob``; and, unless ``eta_knob`` is 0, a reached trial whose energy is estimated where
    the device measures or the reverse (if the device gives no energy, the newest one decides).
    Trials in flight are kept by the same rules.

    Costs of ``REACHED`` trials are recomputed with the current ``eta_knob``; every other trial's
    ``cost_j`` becomes ``None``, so that a truncated cost cannot pass for a cost. A target reached
    after more epochs than are allowed now reads as ``MISSED``.

    Args:
        problem: What is being decided.
        trials: All trials of the job, oldest first.

    Returns:
        Trials in the order given.
    """
    return [_reread(problem, trial) for trial, why in _judge(problem, trials) if why is None]


def set_aside(problem: Problem, trials: Sequence[Trial]) -> list[str]:
    """Say how many finished trials ``comparable`` leaves out, and why.

    Args:
        problem: What is being decided.
        trials: All trials of the job, oldest first.

    Returns:
        Clauses such as ``4 trials had target 0.9``, one a reason, by first occurrence.
    """
    counts = Counter(
        why for trial, why in _judge(problem, trials) if why is not None and trial.status.finished
    )
    return [f"{n} {'trial' if n == 1 else 'trials'} {why}" for why, n in counts.items()]


def _judge(problem: Problem, trials: Sequence[Trial]) -> Iterator[tuple[Trial, str | None]]:
    judged = [(trial, _objection(problem, trial)) for trial in trials]
    measured = problem.energy_measured
    if measured is None:
        classes = [_measured(trial) for trial, why in judged if why is None]
        measured = next((known for known in reversed(classes) if known is not None), None)
    for trial, why in judged:
        priced = why is None and problem.eta_knob > 0 and not _is_late(problem, trial)
        if priced and _measured(trial) not in (None, measured):
            yield trial, f"had {'estimated' if measured else 'measured'} energy"
        else:
            yield trial, why


def _measured(trial: Trial) -> bool | None:
    if trial.status is not TrialStatus.REACHED or trial.energy_source is None:
        return None
    return trial.energy_source.measured


def _is_late(problem: Problem, trial: Trial) -> bool:
    reached = trial.status is TrialStatus.REACHED
    return reached and trial.epochs is not None and trial.epochs > problem.max_epochs


def _objection(problem: Problem, trial: Trial) -> str | None:
    status = trial.status
    if status in _SILENT:
        return f"ended as {status.value}"
    if trial.global_batch_size not in problem.candidates:
        return f"used batch size {trial.global_batch_size}, not a candidate"
    if trial.world_size != problem.world_size:
        return f"had world size {trial.world_size}"
    if (trial.gpu_model, trial.gpu_count) != (problem.gpu_model, problem.gpu_count):
        return f"ran on {trial.gpu_count} x {trial.gpu_model}" if trial.gpu_count else "had no GPU"
    if status is TrialStatus.OOM:
        return None
    return _learning_objection(problem, trial)


def _learning_objection(problem: Problem, trial: Trial) -> str | None:
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        return f"had metric {trial.metric} ({trial.mode})"
    if trial.target != problem.target:
        return f"had target {trial.target:g}"
    then, now = trial.learning_rate, problem.learning_rates.get(trial.global_batch_size)
    if then != now and (then is None or now is None or not math.isclose(then, now, rel_tol=1e-9)):
        return "had no learning rate" if then is None else f"had learning rate {then:g}"
    if trial.status is TrialStatus.MISSED and trial.max_epochs < problem.max_epochs:
        return f"missed the target in {trial.max_epochs} epochs, now {problem.max_epochs}"
    if trial.status is TrialStatus.STOPPED and trial.eta_knob != problem.eta_knob:
        return f"stopped early under eta_knob {trial.eta_knob:g}"
    return None


def _reread(problem: Problem, trial: Trial) -> Trial:
    if _is_late(problem, trial):
        return replace(trial, status=TrialStatus.MISSED, cost_j=None)
    cost = None
    if trial.status is TrialStatus.REACHED:
        cost = cost_j(trial.energy_j, trial.max_power_w, trial.time_s, problem.eta_knob)
    # Copying forty fields costs more than all the tests above: most trials need no copy.
    return trial if trial.cost_j == cost else replace(trial, cost_j=cost)
