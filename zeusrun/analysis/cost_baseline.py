"""The usual cost of a batch size, and its bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.spread import RUN_SD, RUN_SD_WEIGHT
from zeusrun.bandit.observation import finite_exp
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial

KNOWN = 3  # runs before there is a baseline
NEWEST = 20  # older runs say little about a job that changes slowly
FAR_SDS = 3.0


@dataclass(frozen=True)
class CostBaseline:
    """The geometric mean cost of an arm's runs, and three standard deviations around it."""

    cost_j: float
    low_j: float
    high_j: float
    runs: int


def find_baseline(earlier: Sequence[Trial], trial: Trial) -> CostBaseline | None:
    """Return the usual cost of a trial by earlier ones, oldest first; ``None`` if too few.

    Only runs under the same ``conditions`` count. The spread of few runs is combined with the usual
    spread of runs.
    """
    own = conditions(trial)
    same = [
        math.log(each.cost_j)
        for each in earlier
        if has_cost(each) and each.cost_j and conditions(each) == own
    ][-NEWEST:]
    if len(same) < KNOWN:
        return None
    mean = sum(same) / len(same)
    squares = sum((value - mean) ** 2 for value in same) + RUN_SD_WEIGHT * RUN_SD**2
    sd = math.sqrt(squares / (len(same) - 1 + RUN_SD_WEIGHT))
    far = FAR_SDS * sd * math.sqrt(1 + 1 / len(same))
    return CostBaseline(math.exp(mean), math.exp(mean - far), finite_exp(mean + far), len(same))


def has_cost(trial: Trial) -> bool:
    """Whether a trial shows the cost of a run: it reached the target, on GPUs of its own."""
    counts = trial.status is TrialStatus.REACHED and trial.teaches
    return counts and trial.shared is not True and trial.cost_j is not None and trial.cost_j > 0


def conditions(trial: Trial) -> tuple[object, ...]:
    """Return what must be equal for costs of a batch size to be compared."""
    return trial.global_batch_size, trial.learning_rate, trial.variant, setting(trial)


def setting(trial: Trial) -> tuple[object, ...]:
    """Return what must be equal for any costs of a job to be compared: objective and hardware.

    CPUs differ by their maximum power alone.
    """
    source = trial.energy_source
    # The source of energy does not matter if energy does not count.
    measured = trial.eta_knob != 0 and source is not None and source.measured
    objective = (trial.metric, trial.mode, trial.target, trial.eta_knob)
    max_power_w = None if trial.eta_knob == 1 and trial.gpu_count > 0 else trial.max_power_w
    hardware = (trial.gpu_model, trial.gpu_count, trial.world_size, max_power_w)
    return objective, hardware, measured
