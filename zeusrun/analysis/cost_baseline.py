"""What a batch size usually costs, and whether a run was off it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.spread import RUN_SD, RUN_SD_WEIGHT
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial

KNOWN = 3  # runs before anything is usual
NEWEST = 20  # of a job that moves slowly, older ones say little
FAR_SDS = 3.0
_LARGEST_LOG = 700.0  # of a number that a float can hold


@dataclass(frozen=True)
class Usual:
    """The cost of an arm, and within what it stays.

    Attributes:
        cost_j: The geometric mean of its runs.
        low_j: Three standard deviations of a run below it.
        high_j: As much above it.
        runs: How many there were.
    """

    cost_j: float
    low_j: float
    high_j: float
    runs: int


def usual_cost(earlier: Sequence[Trial], trial: Trial) -> Usual | None:
    """Return what a trial should have cost; ``None`` where too little is known.

    Only runs under the same conditions count: batch size, learning rate, objective, hardware, and
    whether energy was measured. A few runs are not taken to differ less than runs usually do.

    Args:
        earlier: The trials before it, oldest first.
        trial: The one in question.
    """
    same = [
        math.log(each.cost_j)
        for each in earlier
        if has_cost(each) and each.cost_j and conditions(each) == conditions(trial)
    ][-NEWEST:]
    if len(same) < KNOWN:
        return None
    mean = sum(same) / len(same)
    squares = sum((value - mean) ** 2 for value in same) + RUN_SD_WEIGHT * RUN_SD**2
    sd = math.sqrt(squares / (len(same) - 1 + RUN_SD_WEIGHT))
    far = FAR_SDS * sd * math.sqrt(1 + 1 / len(same))
    high_j = math.exp(min(mean + far, _LARGEST_LOG))
    return Usual(math.exp(mean), math.exp(mean - far), high_j, len(same))


def has_cost(trial: Trial) -> bool:
    """Whether a trial says what a run costs: it reached the target, undisturbed by others."""
    counts = trial.status is TrialStatus.REACHED and trial.teaches
    return counts and trial.shared is not True and trial.cost_j is not None and trial.cost_j > 0


def conditions(trial: Trial) -> tuple[object, ...]:
    """Return what the costs of a batch size can only be compared under."""
    return trial.global_batch_size, trial.learning_rate, setting(trial)


def setting(trial: Trial) -> tuple[object, ...]:
    """Return what any costs of a job can only be compared under: its objective and hardware.

    A CPU is told from another one by its maximum power alone.
    """
    source = trial.energy_source
    # Energy that does not count may come from anywhere.
    measured = trial.eta_knob != 0 and source is not None and source.measured
    objective = (trial.metric, trial.mode, trial.target, trial.eta_knob)
    no_matter = trial.eta_knob == 1 and trial.gpu_count > 0
    max_power_w = None if no_matter else trial.max_power_w
    hardware = (trial.gpu_model, trial.gpu_count, trial.world_size, max_power_w)
    return objective, hardware, measured
