"""Cleans up after dead launchers: power limits, orphan processes, trials without an outcome.

The outcome of such a trial is built from the files in its run directory. Also cancels preempted
trials.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from zeusrun.clock import timestamp
from zeusrun.errors import BusyError
from zeusrun.history.base import UnavailableError
from zeusrun.history.rules import has_expired
from zeusrun.launcher.events import FoundLost, Noted, Warned
from zeusrun.launcher.power.control import restore_limits
from zeusrun.launcher.processes.descendants import end_group, end_run, names_of, scan_processes
from zeusrun.launcher.queue.tickets import find_waiting
from zeusrun.launcher.rundir.layout import RunPaths, has_checkpoint
from zeusrun.launcher.rundir.ownership import RunLock, find_own, lease_of
from zeusrun.launcher.rundir.record import read_live, read_outcome, write_record
from zeusrun.launcher.slurm.allocation import explain_end
from zeusrun.launcher.supervision.outcome import outcome_now
from zeusrun.metrics.advance import advance
from zeusrun.metrics.base import SidecarReader
from zeusrun.metrics.progress import Progress, take_step_clock
from zeusrun.metrics.seen import Ranks
from zeusrun.reasons import ReasonCode
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import Outcome, Trial, TrialStatus, join_parts, thin_curve

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.history.base import History
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.trial import CurvePoint

_MAX_EXPIRED = 100  # of the newest trials are checked for a lost one that ended here
_MAX_NAMED = 5  # of the orphan processes of a run
_DIED = ReasonCode.LAUNCHER_DIED
_COUNTS = [*("epochs", "steps", "samples", "progress"), *("whole_epochs", "whole_steps")]
_COUNTS += ["whole_samples", "whole_progress"]
_STRANGE = "its run directory is not where zeusrun keeps its runs; nothing there was touched"
_CANCELLED = "cancelled by 'zeusrun cancel' after it was preempted"


def clean_up(submission: Submission, emit: Emit) -> None:
    """Repair what dead launchers have left: power limits, orphan processes, lost trials."""
    history, home, job = submission.history, submission.home, submission.spec.name
    restored, problems, _ = restore_limits(home)
    for limit in restored:
        emit(Noted(limit.text))
    for text in problems:
        emit(Warned(text))
    for orphans in end_orphans(home, job):
        emit(Noted(f"ended {orphans.text}"))
        if orphans.problem is not None:
            emit(Warned(orphans.problem))
    recovered: list[Trial] = []
    with contextlib.suppress(UnavailableError):  # the choice of a trial waits for the history
        own = None if submission.allocation is None else submission.allocation.name
        recovered = recover_lost(history, job, timestamp(), home, own)
    for lost in recovered:
        emit(Noted(f"{lost.trial} is recorded as {lost.status.value}: {lost.reason}"))
        for warning in lost.warnings:
            emit(Warned(f"{lost.trial}: {warning}"))
    dead = tuple(trial for trial in recovered if trial.status is TrialStatus.LOST)
    if dead:
        emit(FoundLost(dead))


def recover_lost(
    history: History, job: str, finished_at: str, home: Path, own: str | None = None
) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end their processes.

    If the launcher had written an outcome into the run directory, record it. Any other trial is
    ``LOST``, with the epochs that its ranks reported. Nothing outside ``home`` is touched.

    With a shared history, these are the trials whose files are in ``home``, also if they are
    ``LOST`` because no heartbeat came. The lease decides about the trials of other machines.

    A trial whose job of a scheduler runs again is left to that. If that is the ``own`` allocation,
    the trial is preempted, and this submit continues it.
    """
    recovered = []
    shared = history.is_shared(job)
    trials = history.unfinished(job)
    if shared:
        trials += [each for each in history.trials(job, _MAX_EXPIRED) if has_expired(each)]
    waiting = find_waiting(trials, own)
    for trial in trials:
        if trial.allocation in waiting:
            continue
        paths = find_own(history, home, trial)
        if paths is None:
            # A container may see the same home under another path.
            if not shared and not lease_of(trial).is_held():
                lost = Outcome(TrialStatus.LOST, _STRANGE, finished_at, reason_code=_DIED)
                recovered += _finished(history, trial, join_parts(trial, lost))
            continue
        with lease_of(trial, paths) as lease:
            if not lease.acquire_or_gone():
                continue  # its launcher is alive, or another submit recovers it
            # Read again under the lease: it may have ended or continued.
            found = history.find(trial.trial)
            if found is not None and (not found.status.finished or has_expired(found)):
                recovered += _recover(history, found, paths, finished_at, own)
    return recovered


def _recover(
    history: History, trial: Trial, paths: RunPaths, finished_at: str, own: str | None
) -> list[Trial]:
    end_run(str(paths.run_dir))
    end_group(paths)
    outcome = read_outcome(paths) or _lost(trial, paths, finished_at, own)
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


def _lost(trial: Trial, paths: RunPaths, finished_at: str, own: str | None) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    If the launcher was preempting it, the trial is preempted: Slurm and Kubernetes kill a launcher
    that does not end in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, "its launcher died"
    if live is not None and live.preempted and live.is_of(trial):
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    if trial.allocation is not None and trial.allocation == own:
        status, reason = TrialStatus.PREEMPTED, f"{own} was started again"
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


def end_orphans(home: Path, job: str | None = None, *, dry_run: bool = False) -> Iterator[Orphans]:
    """End the orphan processes of all runs of a home, or of one job; ``dry_run`` only names them.

    One scan finds the processes of all runs, however many runs there are. The lease of a run is
    held while its processes are killed, so that nobody continues the run.
    """
    for run_dir, processes in sorted(scan_processes().of_runs.items()):
        paths = RunPaths(Path(run_dir))
        if not _is_of(paths.run_dir, home) or job not in {None, paths.run_dir.parent.name}:
            continue
        name, lock = paths.run_dir.name, RunLock(paths)
        if dry_run:
            if not lock.is_held() and (names := names_of(processes)):
                yield Orphans(name, names)
        elif lock.acquire_or_gone():
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


def outcome_so_far(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Add to an outcome the time, energy and epochs that the files of a run contain.

    ``live.json`` has time and energy as of a second ago; the ranks' events have the epochs.
    """
    seen = join_parts(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or not live.is_of(trial):
        return seen
    last = live.trial
    counts: dict[str, Any] = {
        name: max(
            (n for each in (last, seen) if (n := getattr(each, name)) is not None), default=None
        )
        for name in _COUNTS
    }
    return replace(
        last.ended_as(bare.status, bare.reason_code, bare.reason, bare.finished_at),
        time_s=seen.time_s if last.time_s is None else last.time_s,
        whole_time_s=seen.whole_time_s if last.time_s is None else last.whole_time_s,
        **counts,
        best_metric=last.best_metric if seen.best_metric is None else seen.best_metric,
        curve=_extend_curve(trial, last.curve, seen.curve),
        by_samples=_extend_curve(trial, last.by_samples, seen.by_samples),
        warnings=tuple(dict.fromkeys((*last.warnings, *seen.warnings))),
        interruptions=max(last.interruptions, seen.interruptions, key=len),
    )


def _extend_curve(
    trial: Trial, curve: Sequence[CurvePoint], seen: Sequence[CurvePoint]
) -> tuple[CurvePoint, ...]:
    """Return a curve with the points that were seen after its end."""
    last = curve[-1].epoch if curve else -1
    later = (point for point in seen if point.epoch > last)
    return thin_curve((*curve, *later), trial.target, trial.mode)


def _from_sidecar(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Return the last part of a trial from the files of its ranks, without energy."""
    warnings: list[str] = []
    ranks = Ranks(trial.world_size)
    progress = Progress(launched_t=0.0, now_t=0.0, ranks=ranks)
    try:
        clock = read_step_clock(paths.rank_clock(0))
        parts = filter(None, SidecarReader(paths.sidecar).read_parts(final=True))
        first = next(parts, [])
        launched_t = min((event.t for event in first), default=0.0)
        progress = replace(progress, launched_t=launched_t, now_t=launched_t)
        progress = take_step_clock(progress, clock)
        for event in chain(first, chain.from_iterable(parts)):
            progress = advance(progress, event, trial, lambda _since, _until: None)
    except OSError as error:
        warnings.append(f"{error.filename or paths.run_dir} cannot be read: {error.strerror}")
    begun_t, active_t = progress.training_t, progress.active_t
    whole_s = None if begun_t is None or active_t is None else active_t - begun_t
    time_s = whole_s if progress.reached is None else progress.reached.time_s
    return replace(
        outcome_now(trial, progress, None, bare.status),
        reason=bare.reason,
        reason_code=bare.reason_code,
        finished_at=bare.finished_at,
        startup_s=None,  # torchrun's start is not among the events
        time_s=time_s,
        whole_time_s=whole_s,
        interruptions=progress.ranks.interruptions(begun_t, time_s),
        warnings=tuple(warnings),
    )


def cancel_preempted(history: History, trial: Trial, home: Path, finished_at: str) -> None:
    """Cancel a preempted trial; raises ``BusyError`` if another process changes or continues it."""
    paths = find_own(history, home, trial)
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
