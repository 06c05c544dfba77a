"""The lease of a trial: whether its launcher lives. Here it is a lock in the run directory."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from zeusrun.files.home import runs_directory
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.history.base import NEWEST
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs, run_names
from zeusrun.launcher.rundir.record import has_begun

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


class Lease(Protocol):
    """Held by a trial's launcher until it ends or dies: here a lock, elsewhere a heartbeat."""

    def acquire(self, timeout_s: float = 0.0) -> bool:
        """Take the lease; return whether it was free in time. Raises ``OSError``."""

    def acquire_or_gone(self) -> bool:
        """Take the lease, unless the launcher lives; return whether it is dead or its run gone."""

    def is_held(self) -> bool:
        """Whether a launcher holds the lease. Changes nothing; in doubt the launcher lives."""

    def release(self) -> None:
        """Release the lease. More than once is fine."""


def lease_of(trial: Trial, paths: RunPaths | None = None) -> Lease:
    """Return the lease of a trial, by default in the run directory that its history names."""
    return RunLock(RunPaths(Path(trial.run_dir)) if paths is None else paths)


class RunLock(FileLock):
    """A lease as a lock in the run directory, which the kernel releases when its holder dies."""

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths.lock)
        self._run_dir = paths.run_dir

    def acquire_or_gone(self) -> bool:
        """Take the lock unless a launcher holds it. In doubt, assume that the launcher is alive."""
        try:
            return not self._run_dir.is_dir() or self.acquire()
        except (OSError, ValueError):
            return False

    def is_held(self) -> bool:
        """Whether somebody holds the lock. Creates no file: the directory may be anybody's."""
        try:
            return is_locked(self.path) is not False
        except ValueError:  # the history names an impossible path
            return False


def remove_run(paths: RunPaths) -> None:
    """Remove a run directory whose lock the caller holds; the lock goes last. Ignores errors."""
    with contextlib.suppress(OSError):
        for path in paths.run_dir.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            elif path != paths.lock:
                path.unlink(missing_ok=True)
        paths.lock.unlink()
        paths.run_dir.rmdir()


def remove_unbegun(history: History, home: Path, job: str, trials: Sequence[Trial]) -> None:
    """Remove the run directories of submits that died before their trial was stored.

    ``trials`` are the newest of the job, oldest first; older run directories are not checked.
    """
    since = trials[0].recurrence if len(trials) >= NEWEST else 1
    known = {name for trial in trials for name in run_names(trial)}
    for number, name in numbered_runs(home, job):
        if (number is not None and number < since) or name in known:
            continue
        paths = RunPaths(runs_directory(home, job) / name)
        lock = RunLock(paths)
        if has_begun(paths) or not lock.acquire_or_gone():
            continue
        try:  # nobody can begin it now, because that needs the lock
            if not has_begun(paths) and history.find(name) is None:
                remove_run(paths)
        finally:
            lock.release()
