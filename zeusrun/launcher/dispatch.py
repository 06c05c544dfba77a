"""Puts the next trial on disk before anything of it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import BusyError
from zeusrun.history.base import NEWEST
from zeusrun.launcher.choice import build_problem, choose_again, decide, draft_trial
from zeusrun.launcher.paths import RunPaths, create_run, find_run, reopen_run, unwritable_home
from zeusrun.launcher.record import reserve_record
from zeusrun.launcher.resume import find_preempted, why_not_continued
from zeusrun.launcher.run_lock import RunLock, remove_unbegun
from zeusrun.private_files import write_file
from zeusrun.trial import timestamp

if TYPE_CHECKING:
    from zeusrun.launcher.choice import Choice, Submission
    from zeusrun.trial import Trial

_LOCK_TIMEOUT_S = 5.0


@dataclass(frozen=True)
class Dispatched:
    """A trial that is on disk and may start.

    Attributes:
        trial: As stored.
        paths: Its files.
        lock: Held from before it was stored until its launcher is done with it, or dies.
        choice: The decision that it carries out, and what that was made from.
        note: On a preempted trial that it does not go on with; ``None`` if there is none.
    """

    trial: Trial
    paths: RunPaths
    lock: RunLock
    choice: Choice
    note: str | None = None


def dispatch(submission: Submission, recurrence: int | None, attempt: int) -> Dispatched:
    """Choose the next trial and store it, while nobody else can.

    Args:
        submission: The job and all it needs.
        recurrence: Which recurrence it is an attempt of; ``None`` goes on with the trial that was
            preempted last, else begins the next one.
        attempt: Its number within the recurrence, from 1.

    Raises:
        HistoryError: If the history or the run directory cannot be written; nothing is left.
        UsageError: If the user's own choice is not among the candidates.
    """
    prepared: list[Dispatched] = []

    def choose(trials: list[Trial]) -> Trial:
        since = trials[0].recurrence + 1 if len(trials) == NEWEST else 1
        known = {trial.trial for trial in trials}
        remove_unbegun(submission.home, submission.spec.name, known, since)
        preempted = find_preempted(trials) if recurrence is None else None
        note = None if preempted is None else _why_not(submission, preempted)
        if preempted is not None and note is None:
            trial = preempted.resume(timestamp())
            paths, choice = RunPaths(Path(trial.run_dir)), choose_again(submission, trials, trial)
            reopen_run(submission.home, paths, trial.preemptions)
        else:
            problem = build_problem(submission, trials, recurrence)
            choice = decide(submission, problem, trials, attempt)
            trial = draft_trial(submission, choice.decision, problem.recurrence, attempt)
            paths = create_run(submission.home, trial.job, trial.trial)
        dispatched = Dispatched(trial, paths, RunLock(paths), choice, note)
        prepared.append(dispatched)
        _fill(submission, dispatched)
        return trial

    try:
        submission.history.begin(submission.spec.name, choose, last=NEWEST)
    except BaseException:
        for each in prepared:
            each.lock.release()
            if not each.trial.preemptions:  # the checkpoints of one that was are worth keeping
                shutil.rmtree(each.paths.run_dir, ignore_errors=True)
        raise
    return prepared[0]


def _why_not(submission: Submission, preempted: Trial) -> str | None:
    paths = find_run(submission.home, preempted)
    has_files = paths is not None and paths.run_dir.is_dir()
    why = why_not_continued(submission, preempted, has_files=has_files)
    return None if why is None else f"{preempted.trial} was preempted and is not continued: {why}"


def _fill(submission: Submission, dispatched: Dispatched) -> None:
    """Lock the run directory, and write what must be there before the trial starts."""
    paths = dispatched.paths
    try:
        # Somebody may just be looking whether it is held, which takes it for a moment.
        if not dispatched.lock.acquire(_LOCK_TIMEOUT_S):
            raise BusyError(f"{paths.lock} is held by another process; end it, and try again")
        write_file(paths.job_copy, submission.spec.to_yaml().encode())
        reserve_record(paths, dispatched.trial)
    except OSError as error:
        raise unwritable_home(submission.home, error) from error
