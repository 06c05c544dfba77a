"""One submit of a job: makes attempts until the target is reached or nothing is left to try."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.bandit.problem import OUTDONE
from zeusrun.choice.choose import Attempt, NothingLeft
from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError, ExitCode
from zeusrun.history.base import NEWEST
from zeusrun.launcher.attempts import attempt
from zeusrun.launcher.events import Noted, Warned
from zeusrun.launcher.processes.signals import PREEMPTING, CaughtSignals
from zeusrun.lever import POWER, Lever
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.power.limits import HeldLimits
    from zeusrun.launcher.supervision.stopping import StopOrder
    from zeusrun.trial import Trial


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
    """Run one recurrence of a job; ``emit`` gets every event. Raises ``ZeusrunError``."""
    with CaughtSignals() as signals, _limits(submission, emit) as limits:
        return _recur(replace(submission, limits=limits), emit, signals)


@contextlib.contextmanager
def _limits(submission: Submission, emit: Emit) -> Iterator[HeldLimits | None]:
    """Hold the GPUs' power limits, and restore the original ones at the end."""
    mode, fixed_w = submission.spec.power_limit.mode, submission.spec.power_limit.watts
    shared = [text for device in submission.gpus if (text := device.caveat) is not None]
    if fixed_w is not None and shared:
        raise DeviceError(
            f"power_limit.watts: {shared[0]}; set power_limit.mode to 'observe', and the limit of "
            "the whole GPU by `nvidia-smi -pl`"
        )
    if mode == "optimize" and shared:
        emit(Noted(f"power limits are not changed: {shared[0]}"))
        mode = "observe"
    # The job's own ZEUSD_SOCK_PATH counts for the guard as it does for the devices.
    environment = {**submission.environment, **submission.spec.env}
    own: LimitHolder | None = None
    if any(isinstance(device, LimitableDevice) for device in submission.devices):
        from zeusrun.launcher.power.control import open_limits  # noqa: PLC0415 - few have them

        own = open_limits(mode, submission.devices, submission.home, environment)
    holder: HeldLimits | None = own
    if submission.cluster is not None and submission.gpus and mode != "observe":
        holder = submission.cluster.join_limits(own, mode)
    if holder is None:
        if fixed_w is not None:
            emit(Warned(f"power_limit.watts: the job has no GPU to hold to {fixed_w:g} W"))
        yield None
        return
    try:
        with holder:
            if fixed_w is not None:
                holder.check(Lever(POWER, fixed_w))
            elif holder.refused is not None:
                emit(Noted(f"power limits are not changed: {holder.refused}"))
            yield holder
    finally:
        if holder.unrestored is not None:
            emit(Warned(holder.unrestored))


def _recur(submission: Submission, emit: Emit, signals: CaughtSignals) -> SubmitResult:
    """Run trials until one reaches the target, or nothing is left to try."""
    own: list[Trial] = []
    made: list[Attempt] = []  # including those before a preemption
    while True:
        ended = attempt.run(submission, made, emit, signals)
        if isinstance(ended, NothingLeft):
            emit(Warned(ended.reason))
            break
        if not made:
            made += _attempts_before(submission, ended.trial)
        own.append(ended.trial)
        stop = ended.stop
        made.append(Attempt(ended.trial, ended.replaced))
        if signals.received or not _may_go_on(submission, made, stop):
            break
    return SubmitResult(own[0].recurrence, tuple(own), exit_code(own[-1], stop, signals.received))


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
_MISSED = {TrialStatus.MISSED, TrialStatus.STOPPED}


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
