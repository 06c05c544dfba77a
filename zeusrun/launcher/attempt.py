"""One attempt: runs a trial that is on disk, and records its outcome whatever happens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.cost import energy_text
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.errors import HistoryError
from zeusrun.launcher.events import Noted, TrialEnded, TrialStarts
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.recover import outcome_so_far, where_kept
from zeusrun.launcher.redact import mask_events, mask_job, mask_outcome
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.launcher.rundir.record import write_record
from zeusrun.launcher.supervision.stop_rules import StopCause
from zeusrun.launcher.supervision.supervisor import Supervisor
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.dispatch import Dispatched
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.supervision.stop_rules import StopOrder
    from zeusrun.trial import Trial


def run_attempt(
    submission: Submission,
    dispatched: Dispatched,
    emit: Emit,
    signals: CaughtSignals,
    *,
    notes: Sequence[str] = (),
) -> tuple[Trial, StopOrder | None]:
    """Run a dispatched trial and record it; ``notes`` are sentences to show first.

    Returns the trial as recorded, and the order that stopped it, if any.

    Raises:
        ZeusrunError: If it could not be started, or its outcome could not be recorded.
    """
    values = placeholder_values(submission.spec, dispatched.trial, dispatched.paths)
    mask = mask_job(submission.spec, values)
    emit = mask_events(emit, mask)
    try:
        try:
            for text in notes:
                emit(Noted(text))
            if dispatched.choice.note is not None:
                emit(Noted(dispatched.choice.note))
            if dispatched.trial.preemptions:
                emit(Noted(_describe_resumed(dispatched.trial)))
            emit(TrialStarts(dispatched.trial, dispatched.choice.decision.cost_bound_j))
            power = dispatched.paths.power
            meter = EnergyMonitor(submission.devices, power, foreign=ForeignProcesses())
            outcome, stop = Supervisor(
                submission, dispatched, meter, emit=emit, signals=signals, mask=mask
            ).run()
        except BaseException as error:
            reason = f"zeusrun could not run it: {str(error) or type(error).__name__}"
            outcome = _failed_outcome(dispatched, reason)
            _record(submission.history, dispatched, mask_outcome(outcome, mask))
            raise
        finished = _record(submission.history, dispatched, mask_outcome(outcome, mask))
    finally:
        dispatched.lease.release()
    reached = finished.status is TrialStatus.REACHED
    if reached and stop is not None and stop.cause in {StopCause.HOPELESS, StopCause.LOOKED}:
        emit(Noted("it reached the target within its grace period"))
    replaced = finished.status is TrialStatus.CANCELLED and was_replaced(finished, stop)
    emit(TrialEnded(finished, replaced))
    return finished, stop


def was_replaced(trial: Trial, stop: StopOrder | None) -> bool:
    """Whether a speed check ended a trial, so that another batch size follows.

    That holds even if the trial ran out of memory while it ended.
    """
    looked = stop is not None and stop.cause is StopCause.LOOKED
    return looked and trial.status in {TrialStatus.CANCELLED, TrialStatus.OOM}


def _failed_outcome(dispatched: Dispatched, reason: str) -> Outcome:
    """Return the outcome of a trial that zeusrun could not run, with what it has used so far.

    A preempted trial that did not train again stays preempted, so that it can still be continued.
    """
    trial, paths = dispatched.trial, dispatched.paths
    outcome = outcome_so_far(trial, paths, TrialStatus.FAILED, reason, timestamp())
    if trial.preemptions and outcome.time_s == trial.time_s:
        return replace(outcome, status=TrialStatus.PREEMPTED)
    return outcome


def _describe_resumed(trial: Trial) -> str:
    used = [f"{trial.epochs} epoch" + ("" if trial.epochs == 1 else "s")] if trial.epochs else []
    if trial.time_s is not None:
        used.append(f"{trial.time_s:.0f} s")
    if trial.energy_j is not None:
        used.append(energy_text(trial.energy_j))
    so_far = f"; so far: {', '.join(used)}" if used else ""
    then = "is continued"
    if not has_checkpoint(Path(trial.run_dir)):
        then = "starts from the beginning: it saved no checkpoint"
    return f"{trial.trial} was preempted and {then}{so_far}"


def _record(history: History, dispatched: Dispatched, outcome: Outcome) -> Trial:
    """Write the outcome into the run directory, then into the history; raises ``HistoryError``."""
    trial, paths = dispatched.trial, dispatched.paths
    where = "It is not kept beside the run either."
    kept = write_record(paths, trial.finish(outcome))
    try:
        return history.finish(trial.trial, outcome)
    except (HistoryError, ValueError) as error:  # ValueError: another zeusrun took it for lost
        where = where_kept(history, trial, paths) if kept else where
        raise HistoryError(
            f"{trial.trial} ended as {outcome.status.value} ({outcome.reason}), but the history "
            f"could not take it: {error} {where}"
        ) from error
