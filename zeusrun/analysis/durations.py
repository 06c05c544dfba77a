"""How long the recurrences of a job take."""

from __future__ import annotations

import itertools
import math
from datetime import datetime
from typing import TYPE_CHECKING

from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Trial

NEWEST = 50  # recurrences: a job gets faster, and its data grow
_COMPLETE = {TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED}


def recurrence_durations_s(trials: Sequence[Trial]) -> list[float]:
    """Return what the newest 50 recurrences of a job took, in seconds, oldest first.

    The attempts of a recurrence are added, each with its start-up and its shutdown. Recurrences
    that crashed, were ended by somebody, or have not ended do not count.
    """
    by_recurrence = sorted(trials, key=lambda trial: trial.recurrence)
    durations = []
    for _, group in itertools.groupby(by_recurrence, key=lambda trial: trial.recurrence):
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
