"""The lock that says whether the launcher of a trial lives."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from zeusrun.files.home import runs_directory
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs
from zeusrun.launcher.rundir.record import read_record

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path


class RunLock(FileLock):
    """The lock on a trial, held by its launcher until it dies."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths.lock)
        self._run_dir = paths.run_dir

    def acquire_or_gone(self) -> bool:
        """Take the lock of a launcher that is dead; return whether it is.

        That of a run directory that is gone cannot be held. Where the lock cannot be asked for
        any other reason, the launcher counts as alive: it must not be ended for a doubt.
        """
        try:
            return not self._run_dir.is_dir() or self.acquire()
        except (OSError, ValueError):
            return False


def launcher_lives(paths: RunPaths) -> bool:
    """Whether the launcher of a dispatched trial is alive, by its lock and without a clock.

    Nothing is made or changed: the run directory may be anybody's. Where there is a lock that
    cannot be asked, the launcher counts as alive.
    """
    try:
        return is_locked(paths.lock) is not False
    except ValueError:  # a path that can be none
        return False


def _has_begun(paths: RunPaths) -> bool:
    """Whether a run directory holds anything that a history could want back."""
    if paths.sidecar.exists() or paths.torchrun_log.exists() or (paths.run_dir / "part1").exists():
        return True
    trial = read_record(paths)
    return trial is not None and (trial.status.finished or trial.preemptions > 0)


def remove_unbegun(home: Path, job: str, known: Collection[str], since: int) -> None:
    """Remove the run directories of submits that died before their trial was stored.

    To be called while no other submit of the job can be at it: under the history's lock.

    Args:
        home: Zeusrun's.
        job: Of which job.
        known: The trials in its history.
        since: The first recurrence to look at; of older ones not all trials are known.
    """
    for number, name in numbered_runs(home, job):
        if number < since or name in known:
            continue
        paths = RunPaths(runs_directory(home, job) / name)
        lock = RunLock(paths)
        if not _has_begun(paths) and lock.acquire_or_gone():
            shutil.rmtree(paths.run_dir, ignore_errors=True)
            lock.release()
