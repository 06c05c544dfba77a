"""Removes the files of old runs, whose results are in the history.

``trial.json`` stays in each run directory: it can rebuild a lost history.
"""

from __future__ import annotations

import contextlib
import math
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.choice.attempts import list_preempted
from zeusrun.clock import unix_seconds
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.ownership import RunLock, find_own, run_paths
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_BLOCK_BYTES = 512  # of st_blocks, see stat(2)


@dataclass(frozen=True)
class OldRun:
    """A run directory that may be removed."""

    trial: str
    path: Path
    size_bytes: int

    def to_json(self) -> dict[str, Any]:
        """Return what ``gc --json`` prints."""
        return {"trial": self.trial, "run_dir": str(self.path), "size_bytes": self.size_bytes}


def collect(history: History, home: Path, job: str, last: int | None, now: float) -> list[OldRun]:
    """Return the run directories of a job but those of the ``last`` runs, oldest first.

    With ``None``, all stay. It also keeps the cheapest run of each objective, preempted runs that
    the next submit continues, runs that have not ended, and run directories that the history does
    not know.
    """
    if last is None:
        return []
    trials = history.trials(job)
    kept = _kept(trials)
    return [run for run in _ended_runs(home, trials, now)[:-last] if run.trial not in kept]


def _kept(trials: Sequence[Trial]) -> set[str]:
    """Return the names of the trials to keep however old they are."""

    def price(trial: Trial) -> tuple[bool, float]:
        """Order by cost; trials of unknown cost come last, by time."""
        known = trial.cost_j if trial.cost_j is not None else trial.time_s
        return trial.cost_j is None, math.inf if known is None else known

    best: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        if trial.status is TrialStatus.REACHED and trial.teaches:
            objective = (trial.metric, trial.mode, trial.target, trial.eta_knob)
            best[objective] = min(best.get(objective, trial), trial, key=price)
    # A job of a scheduler that starts again continues its own trial, also an older one.
    preempted = [trial for trial in trials if trial.status is TrialStatus.PREEMPTED]
    allocations = find_waiting(preempted)
    waiting = [trial for trial in preempted if trial.allocation in allocations]
    return {trial.trial for trial in (*best.values(), *list_preempted(trials), *waiting)}


def _ended_runs(home: Path, trials: Sequence[Trial], now: float) -> list[OldRun]:
    """Return the run directories of trials that are known to have ended, oldest first."""
    found = []
    for trial in trials:
        path, ended = run_paths(home, trial).run_dir, unix_seconds(trial.finished_at or "")
        if ended is None or not _has_files(path) or find_own(home, trial) is None:
            continue
        # A clock that was ahead must not make a run look newer than the runs after it.
        order = (min(ended, now), trial.recurrence, trial.attempt)
        found.append((order, OldRun(trial.trial, path, measure_folder(path))))
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def _has_files(run_dir: Path) -> bool:
    """Whether a run directory contains more than a removal leaves."""
    with contextlib.suppress(OSError):
        names = {path.name for path in run_dir.iterdir()}
        return not run_dir.is_symlink() and not names <= {"trial.json", "lock"}
    return False


def measure_folder(folder: Path) -> int:
    """Return the size of a folder on disk, as far as its files can be read."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                total += os.lstat(Path(directory, name)).st_blocks * _BLOCK_BYTES
    return total


def remove(run: OldRun) -> bool:
    """Remove the content of a run directory except ``trial.json``; return whether it is gone.

    A run that a process uses stays. The next removal continues one that was interrupted.
    """
    paths = RunPaths(run.path)
    with RunLock(paths) as lock:
        if not lock.acquire_or_gone():
            return False
        try:
            for path in run.path.iterdir():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                elif path not in {paths.trial, paths.lock}:
                    path.unlink(missing_ok=True)
            paths.lock.unlink(missing_ok=True)
        except OSError:
            return False
    return not _has_files(run.path)
