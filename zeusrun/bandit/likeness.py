"""What about a stored trial is as it would be today."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial


def same_hardware(problem: Problem, trial: Trial) -> bool:
    """Whether a trial ran on devices like the job's; for CPUs, also of the same maximum power."""
    then_w, now_w = trial.max_power_w, problem.max_power_w
    if problem.gpu_count == 0 and None not in (then_w, now_w) and then_w != now_w:
        return False
    now = (problem.gpu_model, problem.gpu_count, problem.world_size)
    return (trial.gpu_model, trial.gpu_count, trial.world_size) == now


def same_split(problem: Problem, trial: Trial) -> bool:
    """Whether as many samples were on a device at once as today: memory and speed depend on it."""
    return trial.micro_batch_size == problem.micro_batch_sizes.get(trial.global_batch_size)


def was_disturbed(problem: Problem, trial: Trial) -> bool:
    """Whether speed, cost and crashes do not count, because others used its GPUs or CPUs."""
    return trial.shared is True and not problem.learn_from_shared


def same_energy(problem: Problem, trial: Trial) -> bool:
    """Whether joules then and now are both measured, or both estimated."""
    source = trial.energy_source
    return problem.eta_knob == 0 or source is None or source.measured == problem.energy_measured


def same_learning(problem: Problem, trial: Trial) -> bool:
    """Whether the batch size would take as many epochs today as it did in the trial."""
    if (trial.metric, trial.mode) != (problem.metric, problem.mode):
        return False
    then = trial.learning_rate
    now = problem.learning_rates.get(trial.global_batch_size, then)
    if then is None or now is None:
        return then == now
    return then == now or math.isclose(then, now, rel_tol=1e-9)


def why_unrelated(trial: Trial) -> str | None:
    """Return why nothing can be learned from a finished trial; ``None`` if something can."""
    if trial.forgotten:
        return "forgotten by 'history --forget'"
    if not trial.teaches:
        return f"trained with batch size {trial.observed_batch_size}, not with its own"
    if trial.status is TrialStatus.LOST:
        return "ended without an outcome"
    if trial.status is TrialStatus.FAILED and trial.cause is None:
        return "failed without a crash"  # somebody ended it, or it never reported the metric
    if trial.status is TrialStatus.STOPPED and not trial.steps:  # it may have evaluated as epoch 0
        unknown = trial.time_s is None and not trial.epochs
        if all(point.epoch == 0 for point in trial.curve) if trial.curve else unknown:
            return "was stopped before the first step"
    return None
