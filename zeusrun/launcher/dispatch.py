"""Puts the next trial on disk before anything of it starts."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import BusyError, HistoryError
from zeusrun.files.home import unwritable_home
from zeusrun.files.private import write_file
from zeusrun.history.base import NEWEST
from zeusrun.launcher.machine import check_descriptors
from zeusrun.launcher.next_attempt import NothingLeft, choose_attempt
from zeusrun.launcher.rundir.layout import RunPaths, create_run, reopen_run
from zeusrun.launcher.rundir.lock import RunLock, remove_unbegun
from zeusrun.launcher.rundir.record import reserve_record
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.choose import Choice
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.next_attempt import Attempt
    from zeusrun.trial import Outcome, Trial

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


def dispatch(submission: Submission, made: Sequence[Attempt]) -> Dispatched | NothingLeft:
    """Choose the next trial and store it, while nobody else can.

    Args:
        submission: The job and all it needs.
        made: The attempts of the recurrence so far; none to go on with the trial that was
            preempted, else to begin the next recurrence.

    Raises:
        HistoryError: If the history or the run directory cannot be written; nothing is left.
        LaunchError: If torchrun could not open the files that it needs; nothing is left.
        UsageError: If the user's own choice is not among the candidates.
    """
    check_descriptors(submission.world_size)
    prepared: list[Dispatched] = []

    def choose(trials: list[Trial]) -> Trial:
        since = trials[0].recurrence + 1 if len(trials) == NEWEST else 1
        known = {trial.trial for trial in trials}
        remove_unbegun(submission.home, submission.spec.name, known, since)
        following = choose_attempt(submission, trials, made)
        if isinstance(following, NothingLeft):
            raise _Nothing(following)
        trial = following.trial
        if trial.preemptions:
            paths = RunPaths(Path(trial.run_dir))
            reopen_run(submission.home, paths)
        else:
            paths = create_run(submission.home, trial.job, trial.trial)
        dispatched = Dispatched(trial, paths, RunLock(paths), following.choice, following.note)
        prepared.append(dispatched)
        _fill(submission, dispatched)
        return trial

    try:
        submission.history.begin(submission.spec.name, choose, last=NEWEST)
    except _Nothing as nothing:
        return nothing.left
    except BaseException:
        for each in prepared:
            _give_up(submission, each)
        raise
    return prepared[0]


class _Nothing(Exception):
    def __init__(self, left: NothingLeft) -> None:
        self.left = left


def _give_up(submission: Submission, dispatched: Dispatched) -> None:
    """Leave nothing of a trial that could not be begun, or end it where it is stored all the same.

    A write that fails at its very last step is there; and the checkpoints of a trial that was
    preempted are worth keeping.
    """
    trial, history = dispatched.trial, submission.history
    try:
        if trial in history.unfinished(trial.job):
            history.finish(trial.trial, _never_began(trial))
        elif not trial.preemptions:
            shutil.rmtree(dispatched.paths.run_dir, ignore_errors=True)
    except HistoryError:
        pass  # of the same disk: whoever begins the next trial finds what there is
    finally:
        dispatched.lock.release()


def _never_began(trial: Trial) -> Outcome:
    """Return the outcome of a trial that was not begun: what it had before, if it was preempted."""
    status = TrialStatus.PREEMPTED if trial.preemptions else TrialStatus.CANCELLED
    reason = "it could not be begun: the history could not be written"
    return trial.ended_as(status, reason, timestamp())


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
