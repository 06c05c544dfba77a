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

_NEWEST = 50  # recurrences: a job gets faster, and its data grow
_COMPLETE = {TrialStatus.REACHED, TrialStatus.MISSED, TrialStatus.STOPPED}


def usual_duration_s(trials: Sequence[Trial]) -> float | None:
    """Return what a recurrence takes: the 95th percentile of the newest 50, in seconds.

    The attempts of a recurrence are added, each with its start-up and its shutdown. Below 20
    recurrences it is the longest. Those that crashed or were cancelled do not count.

    Args:
        trials: Of one job, oldest first.

    Returns:
        ``None`` if no recurrence is complete.
    """
    by_recurrence = sorted(trials, key=lambda trial: trial.recurrence)
    durations = []
    for _, group in itertools.groupby(by_recurrence, key=lambda trial: trial.recurrence):
        attempts = sorted(group, key=lambda trial: trial.attempt)
        if attempts[-1].status in _COMPLETE and not any(each.forgotten for each in attempts):
            taken = [_took_s(each) for each in attempts]
            durations += [] if None in taken else [sum(filter(None, taken))]
    newest = sorted(durations[-_NEWEST:])
    return newest[math.ceil(0.95 * len(newest)) - 1] if newest else None


def _took_s(trial: Trial) -> float | None:
    """Return the seconds of a finished trial: as measured, else by the clock; or ``None``."""
    if trial.time_s is not None:
        return (trial.startup_s or 0.0) + trial.time_s + (trial.shutdown_s or 0.0)
    try:
        began = datetime.fromisoformat(trial.started_at)
        return max(0.0, (datetime.fromisoformat(trial.finished_at or "") - began).total_seconds())
    except (ValueError, TypeError):
        return None
