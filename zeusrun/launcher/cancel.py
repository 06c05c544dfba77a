"""Cancels a trial that no launcher runs now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.errors import BusyError
from zeusrun.launcher.rundir.ownership import find_own, lease_of
from zeusrun.launcher.rundir.record import write_record
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_WHY = "cancelled by 'zeusrun cancel' after it was preempted"


def cancel_preempted(history: History, trial: Trial, home: Path, finished_at: str) -> None:
    """Cancel a preempted trial; raises ``BusyError`` if another process changes or continues it."""
    paths = find_own(history, home, trial)
    lease = None if paths is None else lease_of(trial, paths)
    busy = BusyError(
        f"{trial.trial} is being recorded or continued by another process; cancel it again"
    )
    if lease is not None and not lease.acquire_or_gone():
        raise busy
    try:
        if history.find(trial.trial) != trial:
            raise busy
        code = ReasonCode.CANCELLED_LATER
        outcome = trial.ended_as(TrialStatus.CANCELLED, code, _WHY, finished_at)
        if paths is not None:
            write_record(paths, trial.finish(outcome))
        history.finish(trial.trial, outcome)
    finally:
        if lease is not None:
            lease.release()
