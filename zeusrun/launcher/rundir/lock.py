"""The lock that says whether the launcher of a trial lives."""

from __future__ import annotations

import contextlib
import errno
import shutil
from typing import TYPE_CHECKING

from zeusrun.files.home import runs_directory
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.history.base import NEWEST
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs
from zeusrun.launcher.rundir.record import has_begun

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


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
        return is_locked(paths.lock)
    except ValueError:  # a path that can be none
        return False
    except OSError as error:
        return error.errno not in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}


def is_filled(paths: RunPaths) -> bool:
    """Whether a run directory holds anything beside its lock.

    Raises:
        OSError: If it cannot be read.
    """
    return any(path != paths.lock for path in paths.run_dir.iterdir())


def remove_run(paths: RunPaths) -> None:
    """Remove a run directory. The caller holds its lock, which goes last; errors are passed over.

    Another submit may take the lock of the empty directory, which then stays for it.
    """
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

    Args:
        history: Where the trials are.
        home: Zeusrun's.
        job: Of which job.
        trials: The newest in its history, oldest first. Older runs are not looked at.
    """
    since = trials[0].recurrence if len(trials) >= NEWEST else 1
    known = {trial.trial for trial in trials}
    for number, name in numbered_runs(home, job):
        if number < since or name in known:
            continue
        paths = RunPaths(runs_directory(home, job) / name)
        lock = RunLock(paths)
        if has_begun(paths) or not lock.acquire_or_gone():
            continue
        # Nobody can begin it now: whoever does has to hold the lock.
        if not has_begun(paths) and history.find(name) is None:
            remove_run(paths)
        lock.release()
