"""What to do about trials whose launcher died: the first thing that a submit does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.launcher.paths import RunPaths, launcher_lives
from zeusrun.launcher.process import end_processes, processes_of_run
from zeusrun.launcher.progress import Goal, Progress, advance, take_step_clock
from zeusrun.launcher.record import read_outcome
from zeusrun.sidecar import EventReader, read_step_clock
from zeusrun.trial import Outcome, Trial, TrialStatus

if TYPE_CHECKING:
    from zeusrun.history.base import History


def recover_lost(history: History, job: str, finished_at: str) -> list[Trial]:
    """Finish the dispatched trials whose launcher is dead, and end what they left running.

    A trial whose outcome had been decided gets it from its run directory; any other is ``LOST``,
    with the epochs that its ranks reported.

    Args:
        history: Where the trials are.
        job: Of which job.
        finished_at: RFC 3339, for the lost ones.

    Returns:
        The trials that were finished here.
    """
    recovered = []
    for trial in history.trials(job):
        paths = RunPaths(Path(trial.run_dir))
        if trial.status.finished or launcher_lives(paths):
            continue
        end_processes(processes_of_run(trial.run_dir))
        outcome = read_outcome(paths) or _lost(trial, paths, finished_at)
        try:
            recovered.append(history.finish(trial.trial, outcome))
        except ValueError:
            found = history.find(trial.trial)
            if found is None or not found.status.finished:
                raise
            # another submit, started at the same moment, was faster
    return recovered


def _lost(trial: Trial, paths: RunPaths, finished_at: str) -> Outcome:
    """Return what is known of a trial from the files its ranks wrote; energy is not."""
    goal = Goal(trial.metric, trial.target, trial.mode, trial.max_epochs)
    events = EventReader(paths.sidecar).read(final=True)
    launched_t = min((event.t for event in events), default=0.0)
    progress = Progress(launched_t=launched_t, now_t=launched_t)
    progress = take_step_clock(progress, read_step_clock(paths.rank_clock(0)))
    for event in events:
        progress = advance(progress, event, goal, lambda _since, _until: None)
    last = max((point.time_s for point in progress.curve), default=None)
    return Outcome(
        status=TrialStatus.LOST,
        reason="its launcher died",
        finished_at=finished_at,
        time_s=last,
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
    )
