"""Run directories that nobody needs any more.

What was learned from them is in the history. Their ``trial.json`` stays, so that a history that is
lost can be rebuilt from it.
"""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.files.home import runs_directory
from zeusrun.jobfile.validators import size_bytes
from zeusrun.launcher.resume import list_preempted
from zeusrun.launcher.rundir.layout import RunPaths, numbered_runs
from zeusrun.launcher.rundir.lock import RunLock
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.history.base import History
    from zeusrun.jobfile.sections import Keep
    from zeusrun.trial import Trial

_DAY_S = 86400.0
_GONE = ".gone-"


@dataclass(frozen=True)
class Bounds:
    """What is kept of a job's runs; a run beyond any bound goes. ``None`` is no bound.

    Attributes:
        last: The newest so many.
        days: Those that ended within so many days.
        size_bytes: The newest that fit into so much.
    """

    last: int | None = None
    days: float | None = None
    size_bytes: int | None = None

    def __bool__(self) -> bool:
        """Whether anything may go."""
        return any(bound is not None for bound in (self.last, self.days, self.size_bytes))


@dataclass(frozen=True)
class OldRun:
    """A run directory that may go.

    Attributes:
        trial: Its id.
        path: The directory.
        size_bytes: What it takes on the disk.
        ended: Unix seconds.
        why: The bound that it is beyond.
    """

    trial: str
    path: Path
    size_bytes: int
    ended: float
    why: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return what ``gc --json`` prints."""
        return {"trial": self.trial, "run_dir": str(self.path), "size_bytes": self.size_bytes} | {
            "why": self.why
        }


def read_bounds(keep: Keep) -> Bounds:
    """Return the bounds of a job file's ``keep``."""
    return Bounds(keep.last, keep.days, None if keep.size is None else size_bytes(keep.size))


def choose_old(
    runs: Sequence[OldRun], kept: frozenset[str], bounds: Bounds, now: float
) -> list[OldRun]:
    """Return the runs that are beyond a bound, oldest first. Pure.

    Args:
        runs: All that have ended, oldest first.
        kept: Trials that stay whatever the bounds, as the newest does; they count all the same.
        bounds: What is kept.
        now: Unix seconds.
    """
    chosen = []
    held_bytes, full = 0, False
    for rank, run in enumerate(reversed(runs), 1):
        age_days = (now - run.ended) / _DAY_S
        why = None
        if bounds.last is not None and rank > bounds.last:
            why = f"beyond the last {bounds.last}"
        elif bounds.days is not None and age_days > bounds.days:
            why = f"older than {bounds.days:g} days"
        elif bounds.size_bytes is not None:
            # Whatever is older than a run that does not fit goes, too, also if it is empty.
            full = full or held_bytes + run.size_bytes > bounds.size_bytes
            why = "beyond the size that is kept" if full else None
        if why is None or run.trial in kept or rank == 1:
            held_bytes += run.size_bytes
        else:
            chosen.append(replace(run, why=why))
    return chosen[::-1]


def collect(history: History, home: Path, job: str, bounds: Bounds, now: float) -> list[OldRun]:
    """Return the run directories of a job that are beyond a bound, oldest first.

    The best run of each objective stays, the cheapest that reached its target; so do those that
    may go on, one that runs, and whatever the history does not know.

    Args:
        history: Where the trials are; it stays as it is.
        home: Zeusrun's.
        job: Whose.
        bounds: What is kept.
        now: Unix seconds.

    Raises:
        HistoryError: If the history cannot be read.
    """
    if not bounds:
        return []
    trials = history.trials(job)
    runs = _ended_runs(home, job, {trial.trial: trial for trial in trials}, now)
    return [*_leftovers(home, job, now), *choose_old(runs, _kept(trials), bounds, now)]


def _kept(trials: Sequence[Trial]) -> frozenset[str]:
    best: dict[tuple[object, ...], Trial] = {}
    for trial in trials:
        if trial.status is TrialStatus.REACHED and trial.teaches:
            objective = (trial.metric, trial.mode, trial.target, trial.eta_knob)
            best[objective] = min(best.get(objective, trial), trial, key=_price)
    going_on = list_preempted(trials)
    return frozenset(trial.trial for trial in (*best.values(), *going_on))


def _price(trial: Trial) -> tuple[bool, float]:
    """Order by cost; where that is unknown, after all others, by time."""
    if trial.cost_j is not None:
        return False, trial.cost_j
    return True, math.inf if trial.time_s is None else trial.time_s


def _ended_runs(home: Path, job: str, known: Mapping[str, Trial], now: float) -> list[OldRun]:
    """Return the run directories of trials that have ended, oldest first."""
    found = []
    for _, name in numbered_runs(home, job):
        path, trial = runs_directory(home, job) / name, known.get(name)
        if trial is None or trial.finished_at is None or not _has_files(path):
            continue
        try:
            ended = datetime.fromisoformat(trial.finished_at.replace("Z", "+00:00")).timestamp()
        except (ValueError, OverflowError):
            continue  # nobody knows how old it is
        # What a clock that was ahead has recorded is no newer than what came after it.
        order = (min(ended, now), trial.recurrence, trial.attempt)
        found.append((order, OldRun(name, path, _size_bytes(path), order[0])))
    return [run for _, run in sorted(found, key=lambda each: each[0])]


def _has_files(run_dir: Path) -> bool:
    """Whether a run directory holds more than a removal leaves."""
    try:
        names = {path.name for path in run_dir.iterdir()}
    except OSError:
        return False
    return not run_dir.is_symlink() and not names <= {"trial.json", "lock"}


def _leftovers(home: Path, job: str, now: float) -> list[OldRun]:
    """Return what is left of runs whose removal was cut short."""
    why = "its removal was cut short"
    return [
        OldRun(path.name.removeprefix(_GONE), path, _size_bytes(path), now, why)
        for path in sorted(runs_directory(home, job).glob(f"{_GONE}*"))
        if path.is_dir() and not path.is_symlink()
    ]


def _size_bytes(folder: Path) -> int:
    """Return what a folder takes on the disk; what cannot be seen counts as nothing."""
    total = 0
    for directory, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(Path(directory, name)).st_blocks * 512
            except OSError:
                continue
    return total


def remove(run: OldRun) -> bool:
    """Remove what a run directory holds, but for ``trial.json``, unless a process uses it.

    Returns:
        Whether it is gone.
    """
    paths = RunPaths(run.path)
    lock = RunLock(paths)
    if not lock.acquire_or_gone():
        return False
    try:
        gone = run.path
        if not gone.name.startswith(_GONE):
            # Under this name a removal that is cut short goes on the next time.
            gone = gone.with_name(_GONE + gone.name)
            gone.mkdir(mode=0o700, exist_ok=True)
            for path in run.path.iterdir():
                if path != paths.trial:
                    path.replace(gone / path.name)
        shutil.rmtree(gone, ignore_errors=True)
    except OSError:
        return False
    finally:
        lock.release()
    return not gone.exists()
