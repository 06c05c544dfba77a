"""One submit of a job: attempts until the target is reached or nothing is left to try."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.analysis.usual import find_usual
from zeusrun.bandit.problem import OUTDONE
from zeusrun.choice.choose import Attempt, NothingLeft
from zeusrun.clock import timestamp
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.base import NEWEST
from zeusrun.launcher.begin import begin
from zeusrun.launcher.events import Noted, TrialEnded, TrialStarts, Warned
from zeusrun.launcher.processes.signals import PREEMPTING, CaughtSignals
from zeusrun.launcher.redact import mask_outcome
from zeusrun.launcher.rundir.layout import has_checkpoint, write_record
from zeusrun.launcher.supervision.supervised import Supervised
from zeusrun.launcher.supervision.supervisor import conclude, start_ranks, supervise
from zeusrun.launcher.supervision.unfinished import outcome_so_far
from zeusrun.reasons import ReasonCode
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager

    from zeusrun.history.base import History
    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class AttemptResult:
    """An attempt as it is recorded, the order that stopped it, and the signals that ended it."""

    trial: Trial
    stop: StopOrder | None
    signals: Sequence[int] = ()  # the request of another zeusrun is among them, as Ctrl-C

    @property
    def replaced(self) -> bool:
        """Whether another batch size follows after a speed check, even if this ran out of memory.

        Then it does not count as an attempt.
        """
        checked = self.stop is not None and self.stop.cause is ReasonCode.SPEED_CHECKED
        return checked and self.trial.status in {TrialStatus.CANCELLED, TrialStatus.OOM}


def run(
    submission: Submission, made: Sequence[Attempt], emit: Emit, signals: CaughtSignals
) -> AttemptResult | NothingLeft:
    """Make the next attempt of a recurrence; ``made`` are those before it.

    Raises ``ZeusrunError`` if it could not be started, or its outcome could not be recorded.
    """
    begun = begin(submission, made, emit, signals.received)
    if isinstance(begun, NothingLeft):
        return begun
    # The lease of a trial is kept until it is recorded, also if its history is shared.
    with begun.lease, _send_heartbeats(submission, begun):
        with _finish_if_it_fails(submission, begun):
            _announce(submission, begun, made)
            training = Supervised(submission, begun, signals)
            with start_ranks(training):
                supervise(training)
            outcome = conclude(training)
        trial = _record(submission.history, begun, outcome)
    stopping = training.control.stopping
    return _announce_end(begun, AttemptResult(trial, stopping.order, stopping.received))


def _send_heartbeats(submission: Submission, begun: Begun) -> AbstractContextManager[object]:
    """Renew the lease of a trial until the end of the block, if its history keeps leases."""
    if not submission.history.keeps_leases(begun.trial.job):
        return contextlib.nullcontext()
    from zeusrun.launcher.heartbeat import HeartbeatThread  # noqa: PLC0415 - of shared ones alone

    return HeartbeatThread(submission, begun)


@contextlib.contextmanager
def _finish_if_it_fails(submission: Submission, begun: Begun) -> Iterator[None]:
    """If zeusrun cannot run a trial, record what it has used so far, and raise the error."""
    try:
        yield
    except BaseException as error:
        trial = begun.trial
        reason = f"zeusrun could not run it: {str(error) or type(error).__name__}"
        bare = Outcome(
            TrialStatus.FAILED, reason, timestamp(), reason_code=ReasonCode.LAUNCHER_FAILED
        )
        outcome = outcome_so_far(trial, begun.paths, bare)
        if trial.preemptions and outcome.time_s == trial.time_s:  # it can still be continued
            outcome = replace(outcome, status=TrialStatus.PREEMPTED)
        _record(submission.history, begun, outcome)
        raise


def _announce(submission: Submission, begun: Begun, made: Sequence[Attempt]) -> None:
    """Emit notes on a trial that is about to start, then ``TrialStarts``."""
    trial, choice, paths, emit = begun.trial, begun.choice, begun.paths, begun.messages.emit
    notes = [f"history: {text}" for text in choice.about_history if trial.attempt == 1]
    if made and not made[-1].replaced:
        number = trial.attempt - sum(each.replaced for each in made)
        notes.append(
            f"trying again with batch size {trial.global_batch_size}, attempt {number} of "
            f"{submission.spec.attempts}"
        )
    if made and made[-1].trial.cause is not None:
        notes.append(
            "if this attempt fails with the same error, it is the last one with this batch size"
        )
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
    usual, bound_j = find_usual(trial, choice.earlier), choice.decision.cost_bound_j
    emit(TrialStarts(trial, bound_j, usual, submission.spec.instrument))


def _announce_end(begun: Begun, ended: AttemptResult) -> AttemptResult:
    """Show how an attempt has ended, and return it."""
    reached, stop = ended.trial.status is TrialStatus.REACHED, ended.stop
    if reached and stop and stop.cause in {ReasonCode.HOPELESS, ReasonCode.SPEED_CHECKED}:
        begun.messages.emit(Noted("it reached the target within its grace period"))
    replaced = ended.trial.status is TrialStatus.CANCELLED and ended.replaced
    begun.messages.emit(TrialEnded(ended.trial, replaced))
    return ended


def _record(history: History, begun: Begun, outcome: Outcome) -> Trial:
    """Write the outcome into the run directory, then into the history; raises ``HistoryError``."""
    trial, paths = begun.trial, begun.paths
    outcome = mask_outcome(outcome, begun.mask)
    where = "The run directory does not contain it either."
    written = write_record(paths, trial.finish(outcome))
    try:
        return history.finish(trial.trial, outcome)
    except (HistoryError, ValueError) as error:  # ValueError: another zeusrun took it for lost
        where = _where_kept(history, trial, paths) if written else where
        raise HistoryError(
            f"{trial.trial} ended as {outcome.status.value} ({outcome.reason}), but the history "
            f"could not store it: {error} {where}"
        ) from error


def _where_kept(history: History, trial: Trial, paths: RunPaths) -> str:
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


@dataclass(frozen=True)
class SubmitResult:
    """How a recurrence ended: its trials in order of attempt, and zeusrun's exit code."""

    recurrence: int
    trials: tuple[Trial, ...]
    exit_code: int

    @property
    def attempts(self) -> int:
        """How many trials could reach the target; those ended by a speed check could not."""
        return sum(trial.status is not TrialStatus.CANCELLED for trial in self.trials)

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return bool(self.trials) and self.trials[-1].status is TrialStatus.REACHED


def submit(submission: Submission, emit: Emit) -> SubmitResult:
    """Run one recurrence of a job: trials until one reaches the target, or nothing is left to try.

    ``emit`` gets every event. Raises ``ZeusrunError``.
    """
    trials: list[Trial] = []
    made: list[Attempt] = []  # including those before a preemption
    with CaughtSignals() as signals:
        while True:
            ended = run(submission, made, emit, signals)
            if isinstance(ended, NothingLeft):
                emit(Warned(ended.reason))
                break
            if not made:
                made += _attempts_before(submission, ended.trial)
            trials.append(ended.trial)
            stop, ended_by = ended.stop, ended.signals or signals.received
            made.append(Attempt(ended.trial, ended.replaced))
            if ended_by or not _may_go_on(submission, made, stop):
                break
    return SubmitResult(trials[0].recurrence, tuple(trials), exit_code(trials[-1], stop, ended_by))


def _attempts_before(submission: Submission, trial: Trial) -> list[Attempt]:
    """Return the attempts of a recurrence before the preempted one that is continued."""
    if trial.attempt == 1:
        return []
    return [
        Attempt(each, each.status is TrialStatus.CANCELLED)
        for each in submission.history.trials(trial.job, NEWEST)
        if each.recurrence == trial.recurrence and each.attempt < trial.attempt
    ]


def _may_go_on(submission: Submission, made: Sequence[Attempt], stop: StopOrder | None) -> bool:
    """Whether another attempt is allowed after the last one, if there is one worth making."""
    last = made[-1]
    if last.replaced:
        return True
    failed = last.trial.status in OUTDONE or last.trial.cause is not None
    replaced = sum(each.replaced for each in made)
    return (
        failed
        and (stop is None or stop.cause in {ReasonCode.HOPELESS, ReasonCode.NO_METRIC})
        and last.trial.attempt - replaced < submission.spec.attempts
        and submission.forced is None
    )


_CAUSES = {ReasonCode.TIMEOUT: ExitCode.TIMED_OUT, ReasonCode.NO_METRIC: ExitCode.BAD_INPUT}
_STATUSES = {TrialStatus.REACHED: ExitCode.REACHED, TrialStatus.PREEMPTED: ExitCode.BUSY}
_REASONS = {ReasonCode.REPLACED: ExitCode.BUSY, ReasonCode.TIMEOUT: ExitCode.TIMED_OUT}
_MISSED = {TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.CANCELLED}


def exit_code(trial: Trial, stop: StopOrder | None, signals: Sequence[int]) -> int:
    """Return zeusrun's exit code after the last trial of a recurrence."""
    status, code = trial.status, trial.reason_code
    if status in _STATUSES:
        return _STATUSES[status]
    if code in _REASONS:
        return _REASONS[code]
    if signals:
        # A scheduler sends the same signals for a preemption and for a cancelled job.
        told = signals[0] in PREEMPTING and code is not ReasonCode.CANCELLED
        return ExitCode.BUSY if told else ExitCode.SIGNAL_BASE + signals[0]
    if status is not TrialStatus.MISSED and stop is not None and stop.cause in _CAUSES:
        return _CAUSES[stop.cause]
    return ExitCode.TARGET_MISSED if status in _MISSED else ExitCode.TRAINING_FAILED
