"""What about a stored trial is as it would be today."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

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
