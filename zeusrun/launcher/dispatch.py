"""Puts the next trial on disk before anything of it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.launcher.choice import build_problem, decide, draft_trial
from zeusrun.launcher.paths import RunLock, create_run, unwritable_home
from zeusrun.launcher.record import reserve_record

if TYPE_CHECKING:
    from zeusrun.launcher.choice import Choice, Submission
    from zeusrun.launcher.paths import RunPaths
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Dispatched:
    """A trial that is on disk and may start.

    Attributes:
        trial: As stored.
        paths: Its files.
        lock: Held from before it was stored until its launcher is done with it, or dies.
        choice: The decision that it carries out, and what that was made from.
    """

    trial: Trial
    paths: RunPaths
    lock: RunLock
    choice: Choice


def dispatch(submission: Submission, recurrence: int | None, attempt: int) -> Dispatched:
    """Choose the next trial and store it, while nobody else can.

    Args:
        submission: The job and all it needs.
        recurrence: Which recurrence it is an attempt of; ``None`` begins the next one.
        attempt: Its number within the recurrence, from 1.

    Raises:
        HistoryError: If the history or the run directory cannot be written; nothing is left.
        UsageError: If the user's own choice is not among the candidates.
    """
    prepared: list[Dispatched] = []

    def choose(trials: list[Trial]) -> Trial:
        problem = build_problem(submission, trials, recurrence)
        choice = decide(submission, problem, trials, attempt)
        trial = draft_trial(submission, choice.decision, problem.recurrence, attempt)
        paths = create_run(submission.home, trial.job, trial.trial)
        dispatched = Dispatched(trial, paths, RunLock(paths), choice)
        prepared.append(dispatched)
        _fill(submission, dispatched)
        return trial

    try:
        submission.history.begin(submission.spec.name, choose)
    except BaseException:
        for each in prepared:
            each.lock.release()
            shutil.rmtree(each.paths.run_dir, ignore_errors=True)
        raise
    return prepared[0]


def _fill(submission: Submission, dispatched: Dispatched) -> None:
    """Lock the run directory, and write what must be there before the trial starts."""
    paths = dispatched.paths
    try:
        dispatched.lock.acquire()
        paths.job_copy.write_text(submission.spec.to_yaml(), encoding="utf-8")
        reserve_record(paths, dispatched.trial)
    except OSError as error:
        raise unwritable_home(submission.home, error) from error
