"""What the runs of a job usually take: whole recurrences, start-up, epochs to the target."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import by_recurrence
from zeusrun.bandit.proof import prove
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import Trial

NEWEST = 50  # recurrences: a job gets faster, and its data grow
_NEWEST_RUNS = 20
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
    newest = [value for value in values if value is not None][-_NEWEST_RUNS:]
    return statistics.median(newest) if newest else None


def recurrence_durations_s(trials: Sequence[Trial]) -> list[float]:
    """Return what the newest 50 recurrences of a job took, in seconds, oldest first.

    The attempts of a recurrence are added, each with its start-up and its shutdown. Recurrences
    that crashed, were ended by somebody, or have not ended do not count.
    """
    durations = []
    for _, group in sorted(by_recurrence(trials).items()):
        attempts = sorted(group, key=lambda trial: trial.attempt)
        if attempts[-1].status in _COMPLETE and not any(each.forgotten for each in attempts):
            taken = [_took_s(each) for each in attempts]
            durations += [] if None in taken else [sum(filter(None, taken))]
    return durations[-NEWEST:]


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
