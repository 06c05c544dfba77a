"""Begins the next attempt of a recurrence: waits for its turn, chooses a trial, and stores it."""

from __future__ import annotations

import contextlib
import errno
import functools
import math
import os
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.choice.choose import Choice, NothingLeft, choose_offline, choose_trial
from zeusrun.clock import timestamp
from zeusrun.errors import BusyError, HistoryError, UsageError, writes_to
from zeusrun.files.home import runs_directory
from zeusrun.files.private import make_folder, write_file
from zeusrun.history.base import NEWEST, Conflict, OfflineError, Snapshot, UnavailableError
from zeusrun.history.rules import is_offline, offline_name
from zeusrun.history.turns import TURN_S, Turn
from zeusrun.launcher.events import Messages, Noted
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.processes.torchrun import check_descriptors
from zeusrun.launcher.queue.admission import check_not_ended
from zeusrun.launcher.redact import copy_job, mask_events, mask_job
from zeusrun.launcher.rundir.layout import (
    RunPaths,
    create_run,
    has_begun,
    reopen_run,
    reserve_record,
)
from zeusrun.launcher.rundir.ownership import find_own, lease_of, remove_run, remove_unbegun
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from typing_extensions import Self

    from zeusrun.choice.choose import Attempt
    from zeusrun.history.base import History
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.ownership import RunLock
    from zeusrun.redaction import Mask
    from zeusrun.trial import Trial

# The pause between two requests, for each submit that is ahead: _A_PLACE_S, or _ANSWERS times what
# the last answer took if that is longer. On a busy server, requests would else delay the choices.
_A_PLACE_S, _ANSWERS = 0.02, 2.0
_LONGEST_S = TURN_S / 2
_RENEW_S = TURN_S / 5  # while a trial is chosen
_SHOWN_AFTER_S = 1.0
_SHOWN_EVERY_S = 10.0


class HeldTurn:
    """A turn of a job. A context manager: at its end, others may choose.

    While a trial is chosen, a thread renews the turn.
    """

    def __init__(
        self,
        history: History,
        job: str,
        show: Callable[[str], None],
        check: Callable[[], None],
    ) -> None:
        """Prepare; nothing is asked for yet.

        Args:
            history: Stores the turns.
            job: The job.
            show: Shows the user the place in the queue.
            check: Called before each pause; it may raise to give up.
        """
        self._history, self._job, self._show, self._check = history, job, show, check
        self._turn = Turn(0)
        self._lock = threading.Lock()  # one thread at a time asks for the turn or uses it
        self._over = threading.Event()
        self._renewing: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        began = self._over.is_set()
        self._over.set()
        if self._renewing is not None:
            self._renewing.join()
        if not began:
            self.leave()

    def leave(self) -> None:
        """Let the others choose; the next ``wait`` is for another turn."""
        with self._lock:
            left, self._turn = self._turn, Turn(0)
            self._leave(left)

    def _leave(self, turn: Turn) -> None:
        if turn.number:
            with contextlib.suppress(HistoryError):  # it expires
                self._history.leave_turn(self._job, turn.number)

    def wait(self) -> None:
        """Wait until nobody is ahead.

        Call it before each choice: if the turn has expired, this waits for another one. It raises
        what ``History.ask_turn`` and the check raise.
        """
        shown_t = time.monotonic() + _SHOWN_AFTER_S
        was_asked = False
        while True:
            asked_t = time.monotonic()
            turn = self._ask()
            took_s = time.monotonic() - asked_t if was_asked else 0.0  # a new turn is a write
            was_asked = True
            if not turn.ahead:
                break
            self._check()
            if time.monotonic() >= shown_t:
                shown_t = time.monotonic() + _SHOWN_EVERY_S
                self._show(
                    f"waits for its turn to choose a batch size: {turn.ahead + 1} of {turn.waiting}"
                )
            time.sleep(min(_LONGEST_S, max(_A_PLACE_S, _ANSWERS * took_s) * turn.ahead))
        if self._renewing is None:
            renewing = threading.Thread(target=self._renew, name="zeusrun-turn", daemon=True)
            renewing.start()
            self._renewing = renewing

    def begin(self, trial: Trial, version: str) -> None:
        """Store a trial, as ``History.begin`` does; the turn then ends."""
        with self._lock:
            self._history.begin(trial, after=version, turn=self._turn.number)
            self._over.set()

    def _ask(self) -> Turn:
        with self._lock:
            try:
                self._turn = self._history.ask_turn(self._job, self._turn.number)
            except UnavailableError:
                if not self._turn.number:
                    raise
                before, self._turn = self._turn, Turn(0)
                self._turn = self._history.ask_turn(self._job)  # this waits for the history
                self._leave(before)
            return self._turn

    def _renew(self) -> None:
        """Renew the turn while a trial is chosen. If that fails, ``begin`` finds it expired."""
        while not self._over.wait(_RENEW_S):
            with self._lock, contextlib.suppress(HistoryError):
                if self._turn.number and not self._over.is_set():
                    self._turn = self._history.ask_turn(self._job, self._turn.number)


_LOCK_TIMEOUT_S = 30.0
_PERIOD_S = 0.1  # between two checks whether the history has changed


@dataclass(frozen=True)
class Begun:
    """A trial that is stored and may start."""

    choice: Choice
    paths: RunPaths
    lease: RunLock  # held from before the trial was stored until its launcher ends or dies
    mask: Mask  # of the secrets of its job
    messages: Messages  # take them out of every event

    @property
    def trial(self) -> Trial:
        """The trial."""
        return self.choice.trial


def begin(
    submission: Submission,
    made: Sequence[Attempt],
    emit: Emit,
    signals: Sequence[int] = (),
) -> Begun | NothingLeft:
    """Choose the next trial and store it, or say why the recurrence makes no further attempt.

    Submits of a job choose one after the other, each in its turn. The policy decides without any
    lock. If the choice becomes stale meanwhile, choose again. If this raises a ``ZeusrunError``,
    nothing remains on disk.

    Args:
        submission: The job.
        made: The attempts of the recurrence so far; without any, continue a preempted trial or
            begin the next recurrence.
        emit: Gets the events of the trial.
        signals: Those that have come; with one, this raises ``BusyError`` instead of waiting.
    """
    check_descriptors(submission.own_ranks)
    history, job = submission.history, submission.spec.name
    with suppress(HistoryError):  # this may wait for other submits of this machine
        history.deliver()
    what = f"attempt {len(made) + 1}" if made else "it"
    check = functools.partial(check_not_ended, job, signals, what)
    with HeldTurn(history, job, lambda text: emit(Noted(text)), check) as turn:
        return _begin(submission, made, emit, turn)


def _begin(
    submission: Submission, made: Sequence[Attempt], emit: Emit, turn: HeldTurn
) -> Begun | NothingLeft:
    history, job = submission.history, submission.spec.name
    until_t = math.inf
    while True:
        turn.wait()
        snapshot = history.snapshot(job, NEWEST)
        choice = _choose(submission, snapshot, made)
        if isinstance(choice, NothingLeft):
            return choice
        trial = choice.trial
        paths = RunPaths(runs_directory(submission.home, job) / trial.trial)
        if trial.preemptions:
            paths = find_own(submission.home, trial) or RunPaths(Path(trial.run_dir))
        mask = mask_job(submission.spec, placeholder_values(submission.spec, trial, paths))
        begun = Begun(
            choice, paths, lease_of(trial, paths), mask, Messages(mask_events(emit, mask))
        )
        if not _take_lease(begun):
            until_t = min(until_t, time.monotonic() + _LOCK_TIMEOUT_S)
            if time.monotonic() >= until_t:
                raise BusyError(f"{paths.lock} is held by another process; end it, and try again")
            turn.leave()  # the other machines of a shared history need not wait
            time.sleep(_PERIOD_S)
            continue
        try:
            _store(submission, begun, snapshot.version, turn)
            with suppress(HistoryError):  # else the next submit cleans up
                remove_unbegun(history, submission.home, job, [*snapshot.trials, trial])
        except BaseException as error:
            _give_up(submission, begun)
            if not isinstance(error, (Conflict, OfflineError)):
                raise
        else:
            return begun


def _choose(
    submission: Submission, snapshot: Snapshot, made: Sequence[Attempt]
) -> Choice | NothingLeft:
    spec, trials = submission.spec, snapshot.trials
    chooser, machine = submission.chooser, submission.measure()
    moment = submission.read_moment(trials, limited=machine.time_left_s is not None)
    if snapshot.offline:
        name = offline_name(spec.name, moment.uuid)
        return choose_offline(chooser, machine, trials, made, moment, name=name)
    known = {trial.uuid: trial for trial in trials}
    numbered = [replace(each, trial=known.get(each.trial.uuid, each.trial)) for each in made]
    if any(is_offline(each.trial) for each in numbered):
        return NothingLeft("the result of the last attempt is not delivered yet")
    return choose_trial(chooser, machine, trials, numbered, moment)


def plan(submission: Submission, trials: Sequence[Trial]) -> tuple[Trial, Command, Sequence[str]]:
    """Return the trial that a submit would make now, its command, and notes. Writes nothing.

    ``trials`` are the job's newest ones; a snapshot may write.
    """
    choice = _choose(submission, Snapshot(tuple(trials), version=""), ())
    if isinstance(choice, NothingLeft):
        raise UsageError(choice.reason)
    trial = choice.trial
    notes = () if choice.note is None else (choice.note,)
    paths = RunPaths(Path(trial.run_dir))
    command, *_ = submission.commands(trial, paths, choice.largest_that_fits, choice.earlier)
    others = [f"host {each.name} starts its part" for each in trial.hosts[1:]]
    return trial, command, (*notes, *others, *choice.about_history)


def _take_lease(begun: Begun) -> bool:
    """Take the lease of a trial; return false if another process has it: choose again.

    That process has lost its turn, or it has just begun the trial.
    """
    trial, paths = begun.trial, begun.paths
    while True:
        with writes_to(paths.run_dir):
            try:
                make_folder(paths.run_dir)
                if paths.run_dir.is_symlink():
                    raise _occupied(paths)
                if not begun.lease.acquire():
                    return False
                files = (path for path in paths.run_dir.iterdir() if path != paths.lock)
                left = not trial.preemptions and any(files)
            except FileNotFoundError:
                continue  # another submit has removed the empty directory
            if not left:
                return True
            if has_begun(paths):
                begun.lease.release()
                raise _occupied(paths)
        remove_run(paths)  # its submit died before the trial was stored
        begun.lease.release()


def _occupied(paths: RunPaths) -> OSError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(paths.run_dir))


def _store(submission: Submission, begun: Begun, version: str, turn: HeldTurn) -> None:
    """Store a trial whose lease is held, and write its files.

    A new trial is stored last, so that nothing remains if its files cannot be written. The files of
    a preempted trial change only after it is stored, because another submit may be faster.
    """
    trial, paths = begun.trial, begun.paths
    if not trial.preemptions:
        create_run(submission.home, trial.job, trial.trial)
        _fill(submission, begun)
    turn.begin(trial, version)
    if trial.preemptions:
        reopen_run(paths)
        _fill(submission, begun)


def _give_up(submission: Submission, begun: Begun) -> None:
    """Remove a trial that could not be begun, or finish it if the failed write stored it."""
    trial, history = begun.trial, submission.history
    try:
        unfinished = history.unfinished(trial.job)
        if any(replace(each, recurrence=trial.recurrence) == trial for each in unfinished):
            status = TrialStatus.PREEMPTED if trial.preemptions else TrialStatus.CANCELLED
            reason = "it could not be begun: the history or its run directory could not be written"
            ended = trial.ended_as(status, ReasonCode.NOT_BEGUN, reason, timestamp())
            history.finish(trial.trial, ended)
        elif not trial.preemptions:  # else it contains checkpoints
            remove_run(begun.paths)
    except HistoryError:
        pass  # of the same disk: the next submit cleans up
    finally:
        begun.lease.release()


def _fill(submission: Submission, begun: Begun) -> None:
    paths = begun.paths
    with writes_to(paths.run_dir):
        write_file(paths.job_copy, copy_job(submission.spec))
        reserve_record(paths, begun.trial)
