"""One attempt: chooses and stores a trial, runs it, and records its outcome whatever happens."""

from __future__ import annotations

import errno
import os
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.analysis.usual import find_usual
from zeusrun.choice.choose import Choice, NothingLeft, choose_trial
from zeusrun.choice.offline import choose_offline
from zeusrun.clock import timestamp
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.errors import BusyError, HistoryError, UsageError
from zeusrun.files.home import runs_directory, unwritable_home
from zeusrun.files.private import make_folder, write_file
from zeusrun.history.base import NEWEST, Conflict
from zeusrun.history.rules import is_offline, offline_name
from zeusrun.launcher.context import check_descriptors
from zeusrun.launcher.events import Noted, TrialEnded, TrialStarts, Warned
from zeusrun.launcher.heartbeat import hold_lease, keep_power
from zeusrun.launcher.moment import read_moment
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.recover import outcome_so_far, where_kept
from zeusrun.launcher.redact import copy_job, mask_events, mask_job, mask_outcome
from zeusrun.launcher.rundir.layout import RunPaths, create_run, has_checkpoint, reopen_run
from zeusrun.launcher.rundir.lock import lease_of, remove_run, remove_unbegun
from zeusrun.launcher.rundir.place import find_own
from zeusrun.launcher.rundir.record import has_begun, reserve_record, write_record
from zeusrun.launcher.supervision.stop_rules import StopCause
from zeusrun.launcher.supervision.supervisor import Supervisor
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.choice.choose import Attempt
    from zeusrun.history.base import History, Snapshot
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.rundir.lock import Lease
    from zeusrun.launcher.supervision.stop_rules import StopOrder
    from zeusrun.trial import Trial

_LOCK_TIMEOUT_S = 30.0
_PERIOD_S = 0.1  # between two checks whether the history has changed


@dataclass(frozen=True)
class Dispatched:
    """A trial that is stored and may start."""

    choice: Choice
    paths: RunPaths
    lease: Lease  # held from before the trial was stored until its launcher ends or dies

    @property
    def trial(self) -> Trial:
        """The trial."""
        return self.choice.trial


def dispatch(submission: Submission, made: Sequence[Attempt]) -> Dispatched | NothingLeft:
    """Choose the next trial and store it, or say why the recurrence makes no further attempt.

    ``made`` are the attempts of the recurrence so far; without any, continue a preempted trial or
    begin the next recurrence. The policy decides without any lock. If another submit changes the
    history meanwhile, choose again. If this raises a ``ZeusrunError``, nothing remains on disk.
    """
    check_descriptors(submission.world_size)
    history, job = submission.history, submission.spec.name
    while True:
        snapshot = history.snapshot(job, NEWEST)
        choice = _choose(submission, snapshot, made)
        if isinstance(choice, NothingLeft):
            return choice
        trial = choice.trial
        paths = RunPaths(runs_directory(submission.home, job) / trial.trial)
        if trial.preemptions:
            paths = find_own(history, submission.home, trial) or RunPaths(Path(trial.run_dir))
        dispatched = Dispatched(choice, paths, lease_of(trial, paths))
        if not _take_lease(submission, dispatched, snapshot.version):
            continue
        try:
            _begin(submission, dispatched, snapshot.version)
            with suppress(HistoryError):  # else the next submit cleans up
                remove_unbegun(history, submission.home, job, [*snapshot.trials, trial])
        except Conflict:
            _give_up(submission, dispatched)
            continue
        except BaseException:
            _give_up(submission, dispatched)
            raise
        return dispatched


def _choose(
    submission: Submission, snapshot: Snapshot, made: Sequence[Attempt]
) -> Choice | NothingLeft:
    spec, trials = submission.spec, snapshot.trials
    chooser, machine = submission.chooser, submission.measure()
    moment = read_moment(spec, submission.history, submission.home, submission.host, trials)
    if snapshot.offline:
        name = offline_name(spec.name, moment.uuid)
        return choose_offline(chooser, machine, trials, made, moment, name=name)
    known = {trial.uuid: trial for trial in trials if trial.uuid is not None}
    numbered = [replace(each, trial=known.get(each.trial.uuid or "", each.trial)) for each in made]
    if any(is_offline(each.trial) for each in numbered):
        return NothingLeft("the result of the last attempt is not delivered yet")
    return choose_trial(chooser, machine, trials, numbered, moment)


def plan(submission: Submission) -> tuple[Trial, Command, Sequence[str]]:
    """Return the trial that a submit would make now, its command, and notes. Writes nothing."""
    snapshot = submission.history.snapshot(submission.spec.name, NEWEST)
    choice = _choose(submission, snapshot._replace(offline=False), ())
    if isinstance(choice, NothingLeft):
        raise UsageError(choice.reason)
    trial = choice.trial
    notes = () if choice.note is None else (choice.note,)
    command = submission.command(trial, RunPaths(Path(trial.run_dir)), choice.largest_that_fits)
    return trial, command, (*notes, *choice.kept)


def _take_lease(submission: Submission, dispatched: Dispatched, version: str) -> bool:
    """Take the lease of a trial; return false if the history has changed: choose again.

    Raises ``BusyError`` if another process keeps the lease and does not begin the trial.
    """
    history, trial, paths = submission.history, dispatched.trial, dispatched.paths
    until_t = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            make_folder(paths.run_dir)
            if paths.run_dir.is_symlink():
                raise _occupied(paths)
            held = dispatched.lease.acquire(_PERIOD_S)
            files = (path for path in paths.run_dir.iterdir() if path != paths.lock)
            left = held and not trial.preemptions and any(files)
        except FileNotFoundError:
            continue  # another submit has removed the empty directory
        except OSError as error:
            raise unwritable_home(submission.home, error) from error
        if held and not left:
            return True
        # The process that held the lease may have begun the trial.
        if history.snapshot(trial.job, 0).version != version:
            dispatched.lease.release()
            return False
        if left and has_begun(paths):
            dispatched.lease.release()
            raise unwritable_home(submission.home, _occupied(paths))
        if left:
            remove_run(paths)  # its submit died before the trial was stored
            dispatched.lease.release()
        elif time.monotonic() >= until_t:
            raise BusyError(f"{paths.lock} is held by another process; end it, and try again")


def _occupied(paths: RunPaths) -> OSError:
    return FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(paths.run_dir))


def _begin(submission: Submission, dispatched: Dispatched, version: str) -> None:
    """Store a trial whose lease is held, and write its files.

    A new trial is stored last, so that nothing remains if its files cannot be written. The files of
    a preempted trial change only after it is stored, because another submit may be faster.
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
    """Remove a trial that could not be begun, or finish it if the failed write stored it."""
    trial, history = dispatched.trial, submission.history
    try:
        unfinished = history.unfinished(trial.job)
        if any(replace(each, recurrence=trial.recurrence) == trial for each in unfinished):
            status = TrialStatus.PREEMPTED if trial.preemptions else TrialStatus.CANCELLED
            reason = "it could not be begun: the history or its run directory could not be written"
            history.finish(trial.trial, trial.ended_as(status, reason, timestamp()))
        elif not trial.preemptions:  # else it contains checkpoints
            remove_run(dispatched.paths)
    except HistoryError:
        pass  # of the same disk: the next submit cleans up
    finally:
        dispatched.lease.release()


def _fill(submission: Submission, dispatched: Dispatched) -> None:
    paths = dispatched.paths
    try:
        write_file(paths.job_copy, copy_job(submission.spec))
        reserve_record(paths, dispatched.trial)
    except OSError as error:
        raise unwritable_home(submission.home, error) from error


def run_attempt(
    submission: Submission,
    dispatched: Dispatched,
    emit: Emit,
    signals: CaughtSignals,
    *,
    notes: Sequence[str] = (),
) -> tuple[Trial, StopOrder | None]:
    """Run a dispatched trial and record it; ``notes`` are sentences to show first.

    Returns the trial as recorded, and the order that stopped it, if any. Raises ``ZeusrunError`` if
    it could not be started, or its outcome could not be recorded.
    """
    choice, paths = dispatched.choice, dispatched.paths
    values = placeholder_values(submission.spec, choice.trial, paths)
    mask = mask_job(submission.spec, values)
    emit = mask_events(emit, mask)
    try:
        with hold_lease(submission, choice.trial, paths):
            try:
                _announce(choice, paths, notes, emit)
                usual = find_usual(choice.trial, choice.earlier)
                bound_j, instrumented = choice.decision.cost_bound_j, submission.spec.instrument
                emit(TrialStarts(choice.trial, bound_j, usual, instrumented))
                meter = EnergyMonitor(submission.devices, paths.power, foreign=ForeignProcesses())
                outcome, stop = Supervisor(
                    submission, choice, paths, meter, emit=emit, signals=signals, mask=mask
                ).run()
            except BaseException as error:
                reason = f"zeusrun could not run it: {str(error) or type(error).__name__}"
                outcome = _failed_outcome(dispatched, reason)
                _record(submission.history, dispatched, mask_outcome(outcome, mask))
                raise
            finished = _record(submission.history, dispatched, mask_outcome(outcome, mask))
            keep_power(submission.history, finished, paths)
    finally:
        dispatched.lease.release()
    reached = finished.status is TrialStatus.REACHED
    if reached and stop is not None and stop.cause in {StopCause.HOPELESS, StopCause.SPEED_CHECKED}:
        emit(Noted("it reached the target within its grace period"))
    replaced = finished.status is TrialStatus.CANCELLED and was_replaced(finished, stop)
    emit(TrialEnded(finished, replaced))
    return finished, stop


def _announce(choice: Choice, paths: RunPaths, notes: Sequence[str], emit: Emit) -> None:
    """Show what there is to say before a trial starts."""
    trial = choice.trial
    for text in notes:
        emit(Noted(text))
    if choice.note is not None:
        emit((Warned if trial.preemptions else Noted)(choice.note))
    if (grown := choice.too_large) is not None:
        emit(
            Noted(
                f"the batch size may grow to {choice.largest_that_fits}, because {grown.trial} "
                f"ran out of memory with {grown.last_batch_size}; if it fits now: zeusrun history "
                f"--forget {grown.trial}"
            )
        )
    if trial.preemptions:
        then = "is continued"
        if not has_checkpoint(paths.run_dir):
            then = "starts from the beginning: it saved no checkpoint"
        emit(Noted(f"{trial.trial} was preempted and {then}"))


def was_replaced(trial: Trial, stop: StopOrder | None) -> bool:
    """Whether another batch size follows after a speed check, even if that ran out of memory."""
    checked = stop is not None and stop.cause is StopCause.SPEED_CHECKED
    return checked and trial.status in {TrialStatus.CANCELLED, TrialStatus.OOM}


def _failed_outcome(dispatched: Dispatched, reason: str) -> Outcome:
    """Return the outcome of a trial that zeusrun could not run, with what it has used so far."""
    trial, paths = dispatched.trial, dispatched.paths
    outcome = outcome_so_far(trial, paths, TrialStatus.FAILED, reason, timestamp())
    if trial.preemptions and outcome.time_s == trial.time_s:  # it can still be continued
        return replace(outcome, status=TrialStatus.PREEMPTED)
    return outcome


def _record(history: History, dispatched: Dispatched, outcome: Outcome) -> Trial:
    """Write the outcome into the run directory, then into the history; raises ``HistoryError``."""
    trial, paths = dispatched.trial, dispatched.paths
    where = "The run directory does not contain it either."
    kept = write_record(paths, trial.finish(outcome))
    try:
        return history.finish(trial.trial, outcome)
    except (HistoryError, ValueError) as error:  # ValueError: another zeusrun took it for lost
        where = where_kept(history, trial, paths) if kept else where
        raise HistoryError(
            f"{trial.trial} ended as {outcome.status.value} ({outcome.reason}), but the history "
            f"could not store it: {error} {where}"
        ) from error
