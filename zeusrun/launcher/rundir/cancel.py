"""Cancels a trial from outside: by a file for its launcher, or in the history if it has none."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError
from zeusrun.files.atomic import replace_file
from zeusrun.files.private import read_file
from zeusrun.launcher.rundir.layout import find_run
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import write_record
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import Trial

_GENTLY, _NOW, _REPLACED = b"gently", b"now", b"replaced"
CANCELLED_LATER = "cancelled by 'zeusrun cancel' after it was preempted"
REPLACED_BY_NEWER = "a newer run of the job took its place"


def ask_to_cancel(paths: RunPaths, *, at_once: bool = False, replaced: bool = False) -> None:
    """Ask the launcher of a trial to stop it, as Ctrl-C does: once, or twice for ``at_once``.

    ``replaced``: a newer run takes its place. Raises ``OSError`` if the file cannot be written.
    """
    fresh = paths.cancel.with_suffix(f".{os.getpid()}")
    content = _NOW if at_once else _REPLACED if replaced else _GENTLY
    replace_file(paths.cancel, content, fresh=fresh, durable=False)


def read_cancel(paths: RunPaths) -> tuple[int, str] | None:
    """Return the number of interrupts requested, 1 or 2, and why; ``None`` without a request."""
    try:
        content = read_file(paths.cancel, len(_REPLACED))
    except OSError:
        return None
    reason = REPLACED_BY_NEWER if content == _REPLACED else "cancelled by 'zeusrun cancel'"
    return 2 if content == _NOW else 1, reason


def cancel_preempted(history: History, trial: Trial, home: Path, finished_at: str) -> None:
    """Cancel a preempted trial, as it was read; a run directory outside ``home`` is not changed.

    Raises ``BusyError`` if another process changes or continues it.
    """
    paths = find_run(home, trial)
    lease = None if paths is None else lease_of(trial, paths)
    busy = BusyError(
        f"{trial.trial} is being recorded or continued by another process; cancel it again"
    )
    if lease is not None and not lease.acquire_or_gone():
        raise busy
    try:
        if history.find(trial.trial) != trial:
            raise busy
        outcome = trial.ended_as(TrialStatus.CANCELLED, CANCELLED_LATER, finished_at)
        if paths is not None:
            write_record(paths, trial.finish(outcome))
        history.finish(trial.trial, outcome)
    finally:
        if lease is not None:
            lease.release()
