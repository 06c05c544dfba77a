"""Puts the next trial on disk before anything of it starts."""

from __future__ import annotations

import errno
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import BusyError, HistoryError
from zeusrun.files.home import runs_directory, unwritable_home
from zeusrun.files.private import make_folder, write_file
from zeusrun.history.base import NEWEST, Conflict
from zeusrun.launcher.machine import check_descriptors
from zeusrun.launcher.next_attempt import NothingLeft, choose_attempt
from zeusrun.launcher.redact import copy_job
from zeusrun.launcher.rundir.layout import RunPaths, create_run, reopen_run
from zeusrun.launcher.rundir.lock import RunLock, is_filled, remove_run, remove_unbegun
from zeusrun.launcher.rundir.record import has_begun, reserve_record
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.choose import Choice
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.next_attempt import Attempt
    from zeusrun.trial import Outcome, Trial

_LOCK_TIMEOUT_S = 30.0
_PERIOD_S = 0.1  # between two looks whether the history has changed


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
    """Choose the next trial and store it.

    The choice is made without any lock. If the history changes meanwhile, another submit has made
    progress, and the choice is made again.

    Args:
        submission: The job and all it needs.
        made: The attempts of the recurrence so far; none to go on with the trial that was
            preempted, else to begin the next recurrence.

    Returns:
        The trial, or why the recurrence makes no further attempt.

    Raises:
        BusyError: If another process holds the trial's run directory and does not begin it.
        HistoryError: If the history or the run directory cannot be written; nothing is left.
        LaunchError: If torchrun could not open the files that it needs; nothing is left.
        UsageError: If the user's own choice is not among the candidates.
    """
    check_descriptors(submission.world_size)
    history, job = submission.history, submission.spec.name
    while True:
        snapshot = history.snapshot(job, NEWEST)
        following = choose_attempt(submission, snapshot.trials, made)
        if isinstance(following, NothingLeft):
            return following
        trial = following.trial
        paths = RunPaths(runs_directory(submission.home, job) / trial.trial)
        if trial.preemptions:
            paths = RunPaths(Path(trial.run_dir))
        lock = RunLock(paths)
        dispatched = Dispatched(trial, paths, lock, following.choice, following.note)
        if not _take_lease(submission, dispatched, snapshot.version):
            continue
        try:
            _begin(submission, dispatched, snapshot.version)
        except Conflict:
            _give_up(submission, dispatched)
            continue
        except BaseException:
            _give_up(submission, dispatched)
            raise
        remove_unbegun(history, submission.home, job, [*snapshot.trials, trial])
        return dispatched


def _take_lease(submission: Submission, dispatched: Dispatched, version: str) -> bool:
    """Lock the run directory of a trial, so that no other submit can begin the same one.

    Returns:
        Whether it is locked; if not, the history has changed, and the choice is to be made again.

    Raises:
        BusyError: If another process keeps the lock, and the history stays as it is.
        HistoryError: If the home cannot be written, or a run that the history does not know has
            this directory.
    """
    history, trial, paths = submission.history, dispatched.trial, dispatched.paths
    until_t = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            make_folder(paths.run_dir)
            if paths.run_dir.is_symlink():
                raise _occupied(paths)
            held = dispatched.lock.acquire(_PERIOD_S)
            left = held and not trial.preemptions and is_filled(paths)
        except FileNotFoundError:
            continue  # another submit has removed the empty directory
        except OSError as error:
            raise unwritable_home(submission.home, error) from error
        if held and not left:
            return True
        # Whoever has or had the lock may have begun the trial.
        if history.snapshot(trial.job, 0).version != version:
            dispatched.lock.release()
            return False
        if left and has_begun(paths):
            dispatched.lock.release()
            raise unwritable_home(submission.home, _occupied(paths))
        if left:
            remove_run(paths)  # of a submit that died before the trial was stored
            dispatched.lock.release()
        elif time.monotonic() >= until_t:
            raise BusyError(f"{paths.lock} is held by another process; end it, and try again")


def _occupied(paths: RunPaths) -> OSError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(paths.run_dir))


def _begin(submission: Submission, dispatched: Dispatched, version: str) -> None:
    """Store a trial whose run directory is locked, and write what must be there before it starts.

    A new trial is stored last, so that nothing is left of one whose files cannot be written. The
    files of a preempted one stay as they are until the history has it, because another submit may
    come first.
    """
    trial, paths = dispatched.trial, dispatched.paths
    if not trial.preemptions:
        create_run(submission.home, trial.job, trial.trial)
        _fill(submission, dispatched)
    submission.history.begin(trial, after=version)
    if trial.preemptions:
        reopen_run(submission.home, paths)
        _fill(submission, dispatched)


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
            remove_run(dispatched.paths)
    except HistoryError:
        pass  # of the same disk: whoever begins the next trial finds what there is
    finally:
        dispatched.lock.release()


def _never_began(trial: Trial) -> Outcome:
    """Return the outcome of a trial that was not begun: what it had before, if it was preempted."""
    status = TrialStatus.PREEMPTED if trial.preemptions else TrialStatus.CANCELLED
    reason = "it could not be begun: the history or its run directory could not be written"
    return trial.ended_as(status, reason, timestamp())


def _fill(submission: Submission, dispatched: Dispatched) -> None:
    paths = dispatched.paths
    try:
        write_file(paths.job_copy, copy_job(submission.spec))
        reserve_record(paths, dispatched.trial)
    except OSError as error:
        raise unwritable_home(submission.home, error) from error
