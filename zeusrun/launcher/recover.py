"""Trials that did not end in one piece: those of dead launchers, and preempted ones."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from zeusrun.choice.preempted import CANCELLED_LATER
from zeusrun.errors import BusyError, HistoryError
from zeusrun.history.registry import shared_of
from zeusrun.history.rules import has_expired
from zeusrun.launcher.parts import join
from zeusrun.launcher.processes.control_group import end_group
from zeusrun.launcher.processes.descendants import end_run
from zeusrun.launcher.rundir.failure import LAUNCHER_DIED
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.place import find_own
from zeusrun.launcher.rundir.record import read_live, read_outcome, write_record
from zeusrun.metrics.advance import advance
from zeusrun.metrics.progress import Progress, take_step_clock
from zeusrun.metrics.sidecar import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import (
    Outcome,
    Trial,
    TrialStatus,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import CurvePoint

_MOST_EXPIRED = 100  # of the newest trials are checked for a lost one that ended here
_STRANGE = "its run directory is not where zeusrun keeps its runs; nothing there was touched"


def recover_lost(history: History, job: str, finished_at: str, home: Path) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end their processes.

    If the launcher had written an outcome into the run directory, record it. Any other trial is
    ``LOST``, with the epochs that its ranks reported. Nothing outside ``home`` is touched.

    With a shared history, these are the trials whose files are in ``home``, also if they are
    ``LOST`` because no heartbeat came. The lease decides about the trials of other machines.
    """
    recovered = []
    shared = shared_of(history, job) is not None
    trials = history.unfinished(job)
    if shared:
        trials += [each for each in history.trials(job, _MOST_EXPIRED) if has_expired(each)]
    for trial in trials:
        paths = find_own(history, home, trial)
        if paths is None:
            # A container may see the same home under another path.
            if not shared and not lease_of(trial).is_held():
                outcome = join(trial, Outcome(TrialStatus.LOST, _STRANGE, finished_at))
                recovered += _finished(history, trial, outcome)
            continue
        lease = lease_of(trial, paths)
        if not lease.acquire_or_gone():
            continue  # its launcher is alive, or another submit recovers it
        try:
            # Read again under the lease: it may have ended or continued.
            found = history.find(trial.trial)
            if found is not None and (not found.status.finished or has_expired(found)):
                recovered += _recover(history, found, paths, finished_at)
        finally:
            lease.release()
    return recovered


def _recover(history: History, trial: Trial, paths: RunPaths, finished_at: str) -> list[Trial]:
    end_run(str(paths.run_dir))
    end_group(paths)
    outcome = read_outcome(paths) or _lost(trial, paths, finished_at)
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


def _lost(trial: Trial, paths: RunPaths, finished_at: str) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    If the launcher was preempting it, the trial is preempted: Slurm and Kubernetes kill a launcher
    that does not end in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, LAUNCHER_DIED
    if live is not None and live.preempted and live.is_of(trial):
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    return outcome_so_far(trial, paths, status, reason, finished_at)


def outcome_so_far(
    trial: Trial, paths: RunPaths, status: TrialStatus, reason: str, finished_at: str
) -> Outcome:
    """Return an outcome with the time, energy and epochs that the files of a run contain.

    ``live.json`` has time and energy as of a second ago; the ranks' events have the epochs.
    """
    bare = Outcome(status, reason, finished_at)
    seen = join(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or not live.is_of(trial):
        return seen
    last = live.trial
    return replace(
        last.ended_as(status, reason, finished_at),
        time_s=seen.time_s if last.time_s is None else last.time_s,
        epochs=max((n for n in (last.epochs, seen.epochs) if n is not None), default=None),
        steps=max((n for n in (last.steps, seen.steps) if n is not None), default=None),
        samples=max((n for n in (last.samples, seen.samples) if n is not None), default=None),
        progress=max((n for n in (last.progress, seen.progress) if n is not None), default=None),
        best_metric=last.best_metric if seen.best_metric is None else seen.best_metric,
        curve=_go_on(trial, last.curve, seen.curve),
        by_samples=_go_on(trial, last.by_samples, seen.by_samples),
        warnings=tuple(dict.fromkeys((*last.warnings, *seen.warnings))),
        interruptions=max(last.interruptions, seen.interruptions, key=len),
    )


def _go_on(
    trial: Trial, curve: Sequence[CurvePoint], seen: Sequence[CurvePoint]
) -> tuple[CurvePoint, ...]:
    """Return a curve with the points that were seen after its end."""
    last = curve[-1].epoch if curve else -1
    later = (point for point in seen if point.epoch > last)
    return thin_curve((*curve, *later), trial.target, trial.mode)


def where_kept(history: History, trial: Trial, paths: RunPaths) -> str:
    """Return where the unrecorded outcome of a trial is, and what will record it."""
    try:
        known = history.find(trial.trial)
    except HistoryError:
        known = trial
    kept = f"Its outcome is kept in {paths.trial}"
    if known is None:
        return (
            "The history was deleted or replaced while the trial ran. "
            f"{kept}; `zeusrun repair --restore {trial.job}` records it."
        )
    return f"{kept}." if known.status.finished else f"{kept}; the next submit records it."


def _from_sidecar(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Return the last part of a trial from the files of its ranks, without energy."""
    warnings: list[str] = []
    progress = Progress(launched_t=0.0, now_t=0.0)
    try:
        clock = read_step_clock(paths.rank_clock(0))
        parts = filter(None, SidecarReader(paths.sidecar).read_parts(final=True))
        first = next(parts, [])
        launched_t = min((event.t for event in first), default=0.0)
        progress = take_step_clock(Progress(launched_t=launched_t, now_t=launched_t), clock)
        for event in chain(first, chain.from_iterable(parts)):
            progress = advance(progress, event, trial, lambda _since, _until: None)
    except OSError as error:
        warnings.append(f"{error.filename or paths.run_dir} cannot be read: {error.strerror}")
    begun_t, active_t = progress.training_t, progress.active_t
    time_s = None if begun_t is None or active_t is None else active_t - begun_t
    return replace(
        bare,
        time_s=time_s,
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        samples=progress.samples,
        progress=progress.in_epochs,
        by_samples=progress.by_samples,
        by_reports=progress.by_reports,
        batch_sizes=progress.batch_sizes,
        **progress.statistics._asdict(),
        warnings=tuple(warnings),
        interruptions=progress.ranks.interruptions(begun_t, time_s),
    )


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
        outcome = trial.ended_as(TrialStatus.CANCELLED, CANCELLED_LATER, finished_at)
        if paths is not None:
            write_record(paths, trial.finish(outcome))
        history.finish(trial.trial, outcome)
    finally:
        if lease is not None:
            lease.release()
