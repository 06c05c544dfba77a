"""What to do about trials whose launcher died: the first thing that a submit does."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.launcher.processes.descendants import end_processes, processes_of_run
from zeusrun.launcher.resume import join
from zeusrun.launcher.rundir.failure import LAUNCHER_DIED
from zeusrun.launcher.rundir.layout import find_run
from zeusrun.launcher.rundir.live import read_live
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import read_outcome, write_record
from zeusrun.metrics.progress import Progress, advance, take_step_clock
from zeusrun.metrics.sidecar import SidecarReader
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import Outcome, Trial, TrialStatus

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount


_STRANGE = "its run directory is not where zeusrun keeps its runs; nothing there was touched"


def recover_lost(history: History, job: str, finished_at: str, home: Path) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end what they left running.

    A trial whose outcome had been decided gets it from its run directory; any other is ``LOST``,
    with the epochs that its ranks reported.

    Args:
        history: Where the trials are.
        job: Of which job.
        finished_at: RFC 3339, for the lost ones.
        home: Nothing outside its run directories is read, written or ended.

    Returns:
        The trials that were finished here.
    """
    recovered = []
    for trial in history.unfinished(job):
        paths = find_run(home, trial)
        if paths is None:
            # Perhaps the same home under another name, as containers have it.
            if not lease_of(trial).is_held():
                outcome = join(trial, Outcome(TrialStatus.LOST, _STRANGE, finished_at))
                recovered += _finished(history, trial, outcome)
            continue
        lease = lease_of(trial, paths)
        if not lease.acquire_or_gone():
            continue  # its launcher lives, or another submit is at it
        try:
            # Read again now that nobody else can be at it: it may have ended, or gone on.
            found = history.find(trial.trial)
            if found is not None and not found.status.finished:
                recovered += _recover(history, found, paths, finished_at)
        finally:
            lease.release()
    return recovered


def _recover(history: History, trial: Trial, paths: RunPaths, finished_at: str) -> list[Trial]:
    end_processes(processes_of_run(trial.run_dir), at_once=True)
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
        return []  # another submit, started at the same moment, was faster


def _lost(trial: Trial, paths: RunPaths, finished_at: str) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    A launcher that dies while it ends a trial for a scheduler has preempted it: Slurm and
    Kubernetes kill whoever is not gone in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, LAUNCHER_DIED
    if live is not None and live.preempted and live.trial.trial == trial.trial:
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    return outcome_so_far(trial, paths, status, reason, finished_at)


def outcome_so_far(
    trial: Trial, paths: RunPaths, status: TrialStatus, reason: str, finished_at: str
) -> Outcome:
    """Return an outcome with all that the files of a run tell of what it has taken.

    Time and energy are what the launcher left word of, at most a second before its end and never
    before the last report that it saw; the epochs are those that the ranks reported.
    """
    bare = Outcome(status, reason, finished_at)
    seen = join(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or live.trial.trial != trial.trial:
        return seen
    left = live.trial
    known = {point.epoch for point in left.curve}
    later = tuple(point for point in seen.curve if point.epoch not in known)
    return replace(
        seen,
        startup_s=left.startup_s,
        time_s=seen.time_s if left.time_s is None else left.time_s,
        energy_j=left.energy_j,
        energy_source=left.energy_source,
        max_power_w=left.max_power_w,
        cost_j=left.cost_j,
        epochs=max((n for n in (left.epochs, seen.epochs) if n is not None), default=None),
        steps=max((n for n in (left.steps, seen.steps) if n is not None), default=None),
        curve=(*left.curve, *later),
        power_limit_w=left.power_limit_w,
        shared=left.shared,
        warnings=tuple(dict.fromkeys((*left.warnings, *seen.warnings))),
    )


def where_kept(history: History, trial: Trial, paths: RunPaths) -> str:
    """Say where the outcome of a trial is that its history could not take, and who records it."""
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
    """Return what the ranks' own files tell of the last part of a trial: no energy."""
    warnings: list[str] = []
    events: list[Event] = []
    clock: StepCount | None = None
    try:
        events = SidecarReader(paths.sidecar).read(final=True)
        clock = read_step_clock(paths.rank_clock(0))
    except OSError as error:
        warnings.append(f"{error.filename or paths.run_dir} cannot be read: {error.strerror}")
    launched_t = min((event.t for event in events), default=0.0)
    progress = Progress(launched_t=launched_t, now_t=launched_t)
    progress = take_step_clock(progress, clock)
    for event in events:
        progress = advance(progress, event, trial, lambda _since, _until: None)
    begun_t, active_t = progress.training_t, progress.active_t
    return replace(
        bare,
        time_s=None if begun_t is None or active_t is None else active_t - begun_t,
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        warnings=tuple(warnings),
    )
