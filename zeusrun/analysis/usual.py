"""What the runs of a job usually take: recurrences, start-up, epochs to the target, and cost."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.analysis.estimates import MOST, group_by
from zeusrun.bandit.problem import RUN_SD, RUN_SD_WEIGHT, finite_exp
from zeusrun.bandit.proof import as_undisturbed, is_resized, prove
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import Trial

NEWEST_RECURRENCES = 50  # recurrences: a job gets faster, and its data grow
NEWEST_RUNS = 20  # older ones say little about a job that changes slowly
KNOWN = 3  # runs before there is a baseline of their cost
FAR_SDS = 3.0
_COMPLETE = {TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED}


@dataclass(frozen=True)
class Usual:
    """Medians over past runs of the job; ``None``: there is no such run."""

    startup_s: float | None = None  # on the same devices
    epochs: float | None = None  # to the target, with the same batch size


UNKNOWN = Usual()


def find_usual(trial: Trial, earlier: Sequence[Trial]) -> Usual:
    """Return what a trial will probably take; ``earlier`` are of its job, oldest first."""
    learning = _learning(trial)
    reached = (
        each
        for each in earlier
        if each.status is TrialStatus.REACHED and prove(each).learning is None
    )
    return Usual(
        _median(each.startup_s for each in earlier if each.hardware == trial.hardware),
        _median(each.epochs for each in reached if _learning(each) == learning),
    )


def _learning(trial: Trial) -> tuple[object, ...]:
    objective = (trial.metric, trial.mode, trial.target)
    return trial.global_batch_size, trial.learning_rate, trial.variant, *objective


def _median(values: Iterable[float | None]) -> float | None:
    known = [each for each in values if each is not None and math.isfinite(each)][-NEWEST_RUNS:]
    return statistics.median(known) if known else None


def recurrence_durations_s(trials: Sequence[Trial]) -> list[float]:
    """Return what the newest 50 recurrences of a job took, in seconds, oldest first.

    The attempts of a recurrence are added, each with its start-up and its shutdown. Recurrences
    that crashed, were ended by somebody, or have not ended do not count.
    """
    durations = []
    for _, group in sorted(group_by(trials, lambda trial: trial.recurrence).items()):
        attempts = sorted(group, key=lambda trial: trial.attempt)
        if attempts[-1].status in _COMPLETE and not any(each.forgotten for each in attempts):
            taken = [_took_s(each) for each in attempts]
            durations += [] if None in taken else [sum(filter(None, taken))]
    return durations[-NEWEST_RECURRENCES:]


def upper_duration_s(durations_s: Sequence[float]) -> float:
    """Return the 95th percentile of at least one duration; of fewer than 20, the longest."""
    return sorted(durations_s)[math.ceil(0.95 * len(durations_s)) - 1]


def _took_s(trial: Trial) -> float | None:
    """Return the seconds of a finished trial: as measured, else by the clock; or ``None``."""
    if trial.time_s is not None:
        return (trial.startup_s or 0.0) + trial.time_s + (trial.shutdown_s or 0.0)
    try:
        began = datetime.fromisoformat(trial.started_at)
        return max(0.0, (datetime.fromisoformat(trial.finished_at or "") - began).total_seconds())
    except (ValueError, TypeError):
        return None


@dataclass(frozen=True)
class CostBaseline:
    """The geometric mean cost of an arm's runs, and three standard deviations above it."""

    cost_j: float
    high_j: float
    runs: int


def find_baseline(earlier: Sequence[Trial], trial: Trial) -> CostBaseline | None:
    """Return the usual cost of a trial by earlier ones, oldest first; ``None`` if too few.

    Only runs under the same ``conditions`` count. The spread of few runs is combined with the usual
    spread of runs.
    """
    wanted = conditions(trial)
    same = [
        math.log(cost_j)
        for each in earlier
        if conditions(each) == wanted and (cost_j := run_cost_j(each)) is not None
    ][-NEWEST_RUNS:]
    if len(same) < KNOWN:
        return None
    mean = sum(same) / len(same)
    squares = sum((value - mean) ** 2 for value in same) + RUN_SD_WEIGHT * RUN_SD**2
    sd = math.sqrt(squares / (len(same) - 1 + RUN_SD_WEIGHT))
    far = FAR_SDS * sd * math.sqrt(1 + 1 / len(same))
    return CostBaseline(math.exp(mean), finite_exp(mean + far), len(same))


def proves_cost(trial: Trial) -> bool:
    """Whether a trial proves what a run takes: it reached the target, and nothing is in doubt.

    A few epochs with the ranks of the trial show their speed, but not what a run takes.
    """
    reached = trial.status is TrialStatus.REACHED and not is_resized(trial)
    return reached and prove(trial) == (None, None)


def run_cost_j(trial: Trial) -> float | None:
    """Return what a run costs without interruptions, by a trial; ``None`` if it does not show it.

    Costs are compared by it. ``Trial.cost_j`` is what was paid.
    """
    cost_j = as_undisturbed(trial).cost_j if proves_cost(trial) else None
    return cost_j if cost_j and 0 < cost_j < MOST else None


def has_cost(trial: Trial) -> bool:
    """Whether a trial shows the cost of a run."""
    return run_cost_j(trial) is not None


def conditions(trial: Trial) -> tuple[object, ...]:
    """Return what must be equal for costs of a batch size to be compared."""
    return trial.global_batch_size, trial.learning_rate, trial.variant, setting(trial)


SETTING = ("the objective", "the hardware", "how energy is measured")
"""What the parts of ``setting`` are."""


def setting(trial: Trial) -> tuple[object, ...]:
    """Return what must be equal for any costs of a job to be compared: objective and hardware.

    CPUs differ by their maximum power alone. A run that changed its ranks is like no other.
    """
    source = trial.energy_source
    # The source of energy does not matter if energy does not count.
    measured = trial.eta_knob != 0 and source is not None and source.measured
    objective = (trial.metric, trial.mode, trial.target, trial.eta_knob)
    max_power_w = None if trial.eta_knob == 1 and trial.gpu_count > 0 else trial.max_power_w
    ranks = trial.world_sizes if is_resized(trial) else ()
    return objective, (trial.hardware, ranks, max_power_w), measured
