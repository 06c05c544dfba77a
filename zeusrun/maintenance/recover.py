"""Cleans up after dead launchers: power limits, orphan processes, trials without an outcome.

Also cancels preempted trials.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import BusyError
from zeusrun.files.home import limits_directory
from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import find_expired, has_expired
from zeusrun.launcher.events import FoundLost, Noted, Warned
from zeusrun.launcher.processes.descendants import end_group, end_run, scan_processes
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import (
    RunPaths,
    has_checkpoint,
    read_live,
    read_outcome,
    write_record,
)
from zeusrun.launcher.rundir.ownership import RunLock, find_own, is_abandoned, lease_of
from zeusrun.launcher.supervision.unfinished import outcome_so_far
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.registry import explain_end
from zeusrun.trial import Outcome, Trial, TrialStatus, join_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from zeusrun.history.base import History
    from zeusrun.launcher.events import Emit

_MAX_NAMED = 5  # of the orphan processes of a run
_DIED = ReasonCode.LAUNCHER_DIED
_GONE = "its launcher died, and its run directory is gone"
_STRANGE = "its run directory is not where zeusrun keeps its runs; nothing there was touched"
_CANCELLED = "cancelled by 'zeusrun cancel' after it was preempted"


def clean_up(history: History, home: Path, job: str, inside: str | None, emit: Emit) -> None:
    """Repair what dead launchers have left: power limits, orphan processes, lost trials.

    ``inside`` is the allocation of this submit, if it is in one.
    """
    if limits_directory(home).is_dir():
        _restore_limits(home, emit)
    for orphans in end_orphans(home, job):
        emit(Noted(f"ended {orphans.text}"))
        if orphans.problem is not None:
            emit(Warned(orphans.problem))
    recovered: list[Trial] = []
    with contextlib.suppress(UnavailableError):  # the choice of a trial waits for the history
        recovered = recover_lost(history, job, timestamp(), home, inside)
    for lost in recovered:
        emit(Noted(f"{lost.trial} is recorded as {lost.status.value}: {lost.reason}"))
        for warning in lost.warnings:
            emit(Warned(f"{lost.trial}: {warning}"))
    dead = tuple(trial for trial in recovered if trial.status is TrialStatus.LOST)
    if dead:
        emit(FoundLost(dead))


def _restore_limits(home: Path, emit: Emit) -> None:
    from zeusrun.launcher.power.control import restore_limits  # noqa: PLC0415 - for GPUs alone

    restored, problems, _ = restore_limits(home)
    for limit in restored:
        emit(Noted(limit.text))
    for text in problems:
        emit(Warned(text))


def recover_lost(
    history: History, job: str, finished_at: str, home: Path, inside: str | None = None
) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end their processes.

    If the launcher had written an outcome into the run directory, record it. Any other trial is
    ``LOST``, with the epochs that its ranks reported. Nothing outside ``home`` is touched.

    With a shared history, these are the trials whose files are in ``home``, also if they are
    ``LOST`` because no heartbeat came. The lease decides about the trials of other machines.

    A trial whose job of a scheduler runs again is left to that. If this runs ``inside`` that very
    allocation, the trial is preempted, and this submit continues it.
    """
    recovered = []
    trials = [*history.unfinished(job), *find_expired(history, job)]
    waiting = find_waiting(trials, inside)
    for trial in trials:
        if trial.allocation in waiting:
            continue
        paths = find_own(home, trial)
        if paths is None:
            if not trial.status.finished and is_abandoned(history, trial, None):
                why = _STRANGE if os.path.isdir(trial.run_dir) else _GONE  # noqa: PTH112 - never raises
                lost = Outcome(TrialStatus.LOST, why, finished_at, reason_code=_DIED)
                recovered += _finished(history, trial, join_parts(trial, lost))
            continue
        if paths.run_dir != Path(trial.run_dir) and lease_of(trial).is_held():
            continue  # this home is a copy, and the trial runs in the original
        with lease_of(trial, paths) as lease:
            if not lease.acquire_or_gone():
                continue  # its launcher is alive, or another submit recovers it
            # Read again under the lease: it may have ended or continued.
            found = history.find(trial.trial)
            if found is not None and (not found.status.finished or has_expired(found)):
                recovered += _recover(history, found, paths, finished_at, inside)
    return recovered


def presume_ended(
    history: History, home: Path, trials: Iterable[Trial], inside: str | None = None
) -> list[Trial]:
    """Return trials as ``recover_lost`` would leave them. Writes nothing."""
    trials, now = list(trials), timestamp()
    waiting = find_waiting([each for each in trials if not each.status.finished], inside)
    for number, trial in enumerate(trials):
        if not trial.status.finished and trial.allocation not in waiting:
            paths = find_own(home, trial)
            if is_abandoned(history, trial, paths):
                lost = Outcome(TrialStatus.LOST, _GONE, now, reason_code=_DIED)
                ended = paths and (read_outcome(paths) or _lost(trial, paths, now, inside))
                trials[number] = trial.finish(ended or join_parts(trial, lost))
    return trials


def _recover(
    history: History, trial: Trial, paths: RunPaths, finished_at: str, inside: str | None
) -> list[Trial]:
    end_run(str(paths.run_dir))
    end_group(paths)
    outcome = read_outcome(paths) or _lost(trial, paths, finished_at, inside)
    write_record(paths, trial.finish(outcome))
    for path in paths.leftovers:
        with contextlib.suppress(OSError):
            path.unlink()
    return _finished(history, trial, outcome)


def _finished(history: History, trial: Trial, outcome: Outcome) -> list[Trial]:
    try:
        return [history.finish(trial.trial, outcome)]
    except ValueError:
        found = history.find(trial.trial)
        if found is None or not found.status.finished:
            raise
        return []  # another submit was faster


def _lost(trial: Trial, paths: RunPaths, finished_at: str, inside: str | None) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    If the launcher was preempting it, the trial is preempted: Slurm and Kubernetes kill a launcher
    that does not end in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, "its launcher died"
    if live is not None and live.preempted and live.is_of(trial):
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    if trial.allocation is not None and trial.allocation == inside:
        status, reason = TrialStatus.PREEMPTED, f"{inside} was started again"
    elif trial.allocation is not None:
        saved = has_checkpoint(paths.run_dir)
        if (found := explain_end(trial.allocation, saved=saved)) is not None:
            status, reason = found[0] or status, found[1]
    code = ReasonCode.CANCELLED if status is TrialStatus.CANCELLED else _DIED
    ended = Outcome(status, reason, finished_at, reason_code=code)
    return outcome_so_far(trial, paths, ended)


@dataclass(frozen=True)
class Orphans:
    """The orphan processes of one run, each as ``name (pid)``."""

    run: str
    names: tuple[str, ...]
    left: tuple[str, ...] = ()  # those that could not be killed

    @property
    def text(self) -> str:
        """Which processes, and of which run."""
        ending = "" if len(self.names) == 1 else "es"
        return f"{len(self.names)} orphan process{ending} of {self.run}: {_some(self.names)}"

    @property
    def problem(self) -> str | None:
        """Which processes could not be killed, and what to do."""
        if not self.left:
            return None
        return f"orphan processes of {self.run} could not be killed: {_some(self.left)}; kill them"


def end_orphans(home: Path, job: str | None = None) -> Iterator[Orphans]:
    """End the orphan processes of all runs of a home, or of one job.

    One scan finds the processes of all runs, however many runs there are. The lease of a run is
    held while its processes are killed, so that nobody continues the run.
    """
    for run_dir in sorted(scan_processes().of_runs):
        paths = RunPaths(Path(run_dir))
        if not _is_of(paths.run_dir, home) or job not in {None, paths.run_dir.parent.name}:
            continue
        name, lock = paths.run_dir.name, RunLock(paths)
        if lock.acquire_or_gone():
            with lock:
                done = end_run(run_dir)
                end_group(paths)
            if done.names:
                yield Orphans(name, done.names, done.left)


def _is_of(run_dir: Path, home: Path) -> bool:
    """Whether a run directory is one of a home, which may have several paths."""
    runs = run_dir.parent.parent
    try:
        return runs.name == "runs" and runs.parent.samefile(home)
    except OSError:
        return False


def _some(names: tuple[str, ...]) -> str:
    return ", ".join(names[:_MAX_NAMED]) + (", …" if len(names) > _MAX_NAMED else "")


def cancel_preempted(history: History, trial: Trial, home: Path, finished_at: str) -> None:
    """Cancel a preempted trial; raises ``BusyError`` if another process changes or continues it."""
    paths = find_own(home, trial)
    with contextlib.nullcontext() if paths is None else lease_of(trial, paths) as lease:
        free = lease is None or lease.acquire_or_gone()
        if not free or history.find(trial.trial) != trial:
            raise BusyError(
                f"{trial.trial} is being recorded or continued by another process; cancel it again"
            )
        code = ReasonCode.CANCELLED_LATER
        outcome = trial.ended_as(TrialStatus.CANCELLED, code, _CANCELLED, finished_at)
        if paths is not None:
            write_record(paths, trial.finish(outcome))
        history.finish(trial.trial, outcome)
