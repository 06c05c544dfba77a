"""The usual cost of a batch size, and its bounds."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import MOST
from zeusrun.analysis.curve_unit import amount_in, curve_unit
from zeusrun.bandit.auto.spread import RUN_SD, RUN_SD_WEIGHT
from zeusrun.bandit.observation import finite_exp
from zeusrun.bandit.proof import as_undisturbed, prove
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
        math.log(cost_j)
        for each in earlier
        if conditions(each) == own and (cost_j := run_cost_j(each)) is not None
    ][-NEWEST:]
    if len(same) < KNOWN:
        return None
    mean = sum(same) / len(same)
    squares = sum((value - mean) ** 2 for value in same) + RUN_SD_WEIGHT * RUN_SD**2
    sd = math.sqrt(squares / (len(same) - 1 + RUN_SD_WEIGHT))
    far = FAR_SDS * sd * math.sqrt(1 + 1 / len(same))
    return CostBaseline(math.exp(mean), math.exp(mean - far), finite_exp(mean + far), len(same))


def proves_cost(trial: Trial) -> bool:
    """Whether a trial proves what a run takes: it reached the target, and nothing is in doubt."""
    return trial.status is TrialStatus.REACHED and prove(trial) == (None, None)


def run_cost_j(trial: Trial) -> float | None:
    """Return what a run costs without interruptions, by a trial; ``None`` if it does not show it.

    Costs are compared by it. ``Trial.cost_j`` is what was paid.
    """
    cost_j = as_undisturbed(trial).cost_j if proves_cost(trial) else None
    return cost_j if cost_j and 0 < cost_j < MOST else None


def has_cost(trial: Trial) -> bool:
    """Whether a trial shows the cost of a run."""
    return run_cost_j(trial) is not None


def usual_cost_j(earlier: Sequence[Trial], trial: Trial) -> float | None:
    """Return what the epochs of a trial usually cost, by the newest runs of the same training.

    Where it reports within epochs, its samples.
    """
    own, unit = conditions(trial), curve_unit([trial])
    known = [
        cost_j / amount
        for each in earlier
        if (amount := amount_in(each, unit))
        and conditions(each) == own
        and each.fingerprint == trial.fingerprint
        and (cost_j := run_cost_j(each)) is not None
    ]
    amount = amount_in(trial, unit)
    return amount * statistics.median(known[-KNOWN:]) if known and amount else None


def conditions(trial: Trial) -> tuple[object, ...]:
    """Return what must be equal for costs of a batch size to be compared."""
    return trial.global_batch_size, trial.learning_rate, trial.variant, setting(trial)


SETTING = ("the objective", "the hardware", "how energy is measured")
"""What the parts of ``setting`` are."""


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
