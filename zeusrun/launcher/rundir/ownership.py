"""To which trial a run directory belongs, and which launcher holds its lease."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.files.home import runs_directory
from zeusrun.files.lock import FileLock, is_locked
from zeusrun.history.base import NEWEST
from zeusrun.history.rules import is_same, is_uuid, job_of, offline_job, offline_name
from zeusrun.job_name import is_job_name
from zeusrun.launcher.rundir.layout import RunPaths, has_begun, numbered_runs, read_record
from zeusrun.run_on.registry import is_remote

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


def lease_of(trial: Trial, paths: RunPaths | None = None) -> RunLock:
    """Return the lease of a trial, by default in the run directory that its history names."""
    return RunLock(RunPaths(Path(trial.run_dir)) if paths is None else paths)


class RunLock(FileLock):
    """The lease of a trial: a lock in its run directory, which its launcher holds until it ends.

    The kernel releases it if the launcher dies.
    """

    def __init__(self, paths: RunPaths) -> None:
        super().__init__(paths.lock)
        self._run_dir = paths.run_dir

    def acquire_or_gone(self) -> bool:
        """Take the lock, unless the launcher lives; return whether it is dead or its run gone.

        In doubt, assume that the launcher is alive.
        """
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
        with RunLock(paths) as lock:
            if has_begun(paths) or not lock.acquire_or_gone():
                continue
            # Nobody can begin it now, because that needs the lock.
            if not has_begun(paths) and history.find(name) is None:
                remove_run(paths)


def run_paths(home: Path, trial: Trial) -> RunPaths:
    """Return the run directory that a trial has if its files are in this home.

    The directory may belong to another trial; see ``find_own``. The directory of a trial that
    began offline keeps its name when the trial gets a number.
    """
    return RunPaths(runs_directory(home, trial.job) / Path(trial.run_dir).name)


def find_own(home: Path, trial: Trial) -> RunPaths | None:
    """Return the files of a trial if they are certainly its own; ``None`` if they are not here.

    Call this before zeusrun writes, deletes or kills anything because of a record: somebody may
    have changed the history, and a shared history has trials of other machines. If the path in the
    record leads to this home, the result has that path, because processes are found by it.
    """
    paths, name = run_paths(home, trial), Path(trial.run_dir).name
    if trial.job not in {job_of(name), offline_job(name)} or paths.run_dir.is_symlink():
        return None
    is_named = _leads_to(paths.run_dir, Path(trial.run_dir)) and name in run_names(trial)
    named, record = RunPaths(Path(trial.run_dir)) if is_named else None, read_record(paths)
    if record is not None:
        return (named or paths) if is_same(record, trial) else None
    # The record file is damaged or not written yet, so only the history says whose directory it is.
    # A missing directory may be on another machine with the same host name.
    return named if os.path.isdir(paths.run_dir) else None  # noqa: PTH112 - never raises


def run_names(trial: Trial) -> set[str]:
    """Return the names that the run directory of a trial may have: also that of its offline id."""
    names = {trial.trial} if job_of(trial.trial) == trial.job else set()
    if is_job_name(trial.job) and is_uuid(trial.uuid):
        names.add(offline_name(trial.job, trial.uuid))
    return names


def _leads_to(run_dir: Path, named: Path) -> bool:
    """Whether ``named`` is the path of a run directory, perhaps through a link to a parent."""
    try:
        same = os.path.realpath(named.parent) == os.path.realpath(run_dir.parent)
        return same and named.name == run_dir.name and not named.is_symlink()
    except ValueError:  # a NUL or a lone surrogate
        return False


def is_abandoned(history: History, trial: Trial, paths: RunPaths | None) -> bool:
    """Whether the launcher of an unfinished trial is dead; ``paths`` is the result of ``find_own``.

    ``False`` if the files are on another machine and the history has leases: its server decides.
    """
    if paths is None and history.keeps_leases(trial.job):
        return False
    return not lease_of(trial, paths).is_held()


def files_of(home: Path, trial: Trial) -> RunPaths:
    """Return the files of a trial, to read them.

    Raises:
        UsageError: If they are on another machine, of another home, or gone.
    """
    paths = find_own(home, trial)
    if paths is not None:
        return paths
    name, place = trial.trial, find_place(home, trial)
    if place is None:
        raise UsageError(f"the files of {name} are gone: {trial.run_dir}")
    if trial.host == platform.node():
        raise UsageError(f"the files of {name} are those {place} of this machine: {trial.run_dir}")
    if is_remote(trial.allocation):
        raise UsageError(f"{name} ran in a pod, and its files are not on this machine")
    verb = "ran" if trial.status.finished else "runs"
    raise UsageError(
        f"{name} {verb} {place}, and its files are there ({trial.run_dir}); run this command there"
    )


def find_place(home: Path, trial: Trial) -> str | None:
    """Return where the files are that a home lacks, with a preposition; ``None``: gone."""
    if trial.host not in {None, platform.node()}:
        return f"on {trial.host}"
    return None if Path(trial.run_dir).is_relative_to(home) else "of another ZEUSRUN_HOME"


def newest_here(home: Path, trials: Sequence[Trial]) -> Trial | None:
    """Return the newest trial whose files are here; ``trials`` are those of a job, oldest first."""
    return next((each for each in reversed(trials) if find_own(home, each)), None)
