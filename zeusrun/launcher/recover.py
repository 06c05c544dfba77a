"""Finishes the trials of dead launchers; a submit does this first."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.launcher.processes.descendants import end_processes, processes_of_run
from zeusrun.launcher.resume import join
from zeusrun.launcher.rundir.failure import LAUNCHER_DIED
from zeusrun.launcher.rundir.layout import find_run
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import read_live, read_outcome, write_record
from zeusrun.metrics.base import SidecarReader
from zeusrun.metrics.progress import Progress, advance, take_step_clock
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
    """Finish the dispatched trials whose launcher is dead, and end their processes.

    If the launcher had written an outcome into the run directory, record it. Any other trial is
    ``LOST``, with the epochs that its ranks reported. Nothing outside ``home`` is touched.
    """
    recovered = []
    for trial in history.unfinished(job):
        paths = find_run(home, trial)
        if paths is None:
            # A container may see the same home under another path.
            if not lease_of(trial).is_held():
                outcome = join(trial, Outcome(TrialStatus.LOST, _STRANGE, finished_at))
                recovered += _finished(history, trial, outcome)
            continue
        lease = lease_of(trial, paths)
        if not lease.acquire_or_gone():
            continue  # its launcher is alive, or another submit recovers it
        try:
            # Read again under the lease: it may have ended or continued.
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
        return []  # another submit was faster


def _lost(trial: Trial, paths: RunPaths, finished_at: str) -> Outcome:
    """Return the outcome of a trial whose launcher died.

    If the launcher was preempting it, the trial is preempted: Slurm and Kubernetes kill a launcher
    that does not end in time.
    """
    live = read_live(paths)
    status, reason = TrialStatus.LOST, LAUNCHER_DIED
    if live is not None and live.preempted and live.trial.trial == trial.trial:
        status, reason = TrialStatus.PREEMPTED, "its launcher died while it was preempted"
    return outcome_so_far(trial, paths, status, reason, finished_at)


def outcome_so_far(
    trial: Trial, paths: RunPaths, status: TrialStatus, reason: str, finished_at: str
) -> Outcome:
    """Return an outcome with the time, energy and epochs that the files of a run contain.

    The launcher writes time and energy into ``live.json`` every second and after every report. The
    epochs come from the ranks.
    """
    bare = Outcome(status, reason, finished_at)
    seen = join(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or live.trial.trial != trial.trial:
        return seen
    last = live.trial
    known = {point.epoch for point in last.curve}
    later = tuple(point for point in seen.curve if point.epoch not in known)
    return replace(
        seen,
        startup_s=last.startup_s,
        time_s=seen.time_s if last.time_s is None else last.time_s,
        energy_j=last.energy_j,
        energy_source=last.energy_source,
        max_power_w=last.max_power_w,
        cost_j=last.cost_j,
        epochs=max((n for n in (last.epochs, seen.epochs) if n is not None), default=None),
        steps=max((n for n in (last.steps, seen.steps) if n is not None), default=None),
        curve=(*last.curve, *later),
        power_limit_w=last.power_limit_w,
        shared=last.shared,
        warnings=tuple(dict.fromkeys((*last.warnings, *seen.warnings))),
    )


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
