"""The one route: read, choose, dispatch, run, close, record; again until the target is reached."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.bandit.attempts import OUTDONE, is_repeat, is_target_in_doubt
from zeusrun.bandit.auto.evidence import FAILED
from zeusrun.bandit.reinterpret import read_history
from zeusrun.clock import timestamp
from zeusrun.cost import energy_text
from zeusrun.errors import DeviceError, ExitCode, HistoryError
from zeusrun.history.base import NEWEST
from zeusrun.launcher.choose import build_problem, decide
from zeusrun.launcher.dispatch import dispatch
from zeusrun.launcher.events import FoundLost, Noted, TrialEnded, TrialStarts, Warned
from zeusrun.launcher.power.control import open_limits, restore_limits
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.processes.signals import PREEMPTING, CaughtSignals
from zeusrun.launcher.recover import outcome_so_far, recover_lost, where_kept
from zeusrun.launcher.redact import (
    mask_events,
    mask_job,
    mask_logs,
    mask_outcome,
    restore_secrets,
)
from zeusrun.launcher.rundir.cancel import REPLACED_BY_NEWER
from zeusrun.launcher.rundir.failure import is_permanent
from zeusrun.launcher.rundir.layout import find_run, has_checkpoint
from zeusrun.launcher.rundir.record import write_record
from zeusrun.launcher.supervision.stop_rules import StopCause
from zeusrun.launcher.supervision.supervisor import Watch
from zeusrun.launcher.unused_choices import find_warnings
from zeusrun.trial import Outcome, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.gpu.power_limits.holder import LimitHolder
    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.dispatch import Dispatched
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.supervision.stop_rules import StopOrder
    from zeusrun.redaction import Mask
    from zeusrun.trial import Decision, Trial


@dataclass(frozen=True)
class SubmitResult:
    """How a recurrence ended: its trials in order of attempt, and zeusrun's exit code."""

    recurrence: int
    trials: tuple[Trial, ...]
    exit_code: int

    @property
    def attempts(self) -> int:
        """How many trials were to reach the target: one cut short, by a look, was not."""
        return sum(trial.status is not TrialStatus.CANCELLED for trial in self.trials)

    @property
    def reached(self) -> bool:
        """Whether the target was reached."""
        return bool(self.trials) and self.trials[-1].status is TrialStatus.REACHED


def submit(submission: Submission, emit: Emit) -> SubmitResult:
    """Run one recurrence of a job.

    Args:
        submission: The job and all it needs.
        emit: Gets every event.

    Raises:
        ZeusrunError: Before a trial is dispatched, if it could not be started, or when its
            outcome could not be recorded.
    """
    spec = restore_secrets(submission.spec, submission.environment)
    submission = replace(submission, spec=spec)
    with CaughtSignals() as signals:
        restored, problems, _ = restore_limits(submission.home)
        for limit in restored:
            emit(Noted(limit.text))
        for text in problems:
            emit(Warned(text))
        for text in find_warnings(submission):
            emit(Warned(text))
        name, home = submission.spec.name, submission.home
        recovered = recover_lost(submission.history, name, timestamp(), home)
        for lost in recovered:
            emit(Noted(f"{lost.trial} is recorded as {lost.status.value}: {lost.reason}"))
            for warning in (*lost.warnings, *_mask_lost(submission, lost)):
                emit(Warned(f"{lost.trial}: {warning}"))
        dead = tuple(trial for trial in recovered if trial.status is TrialStatus.LOST)
        if dead:
            emit(FoundLost(dead))
        with _limits(submission, emit) as limits:
            return _recur(replace(submission, limits=limits), emit, signals)


@contextlib.contextmanager
def _limits(submission: Submission, emit: Emit) -> Iterator[LimitHolder | None]:
    """Take hold of the GPUs' power limits, and put them back as they were found.

    Raises:
        BusyError: If another zeusrun has them.
        DeviceError: If the job file's own limit may not be set, or is also that of others.
    """
    mode, fixed_w = submission.spec.power_limit.mode, submission.spec.power_limit.watts
    shared = [text for device in submission.gpus if (text := device.caveat) is not None]
    if fixed_w is not None and shared:
        raise DeviceError(
            f"power_limit.watts: {shared[0]}; set power_limit.mode to 'observe', and the limit of "
            "the whole GPU by `nvidia-smi -pl`"
        )
    if mode == "optimize" and shared:
        emit(Noted(f"power limits are left alone: {shared[0]}"))
        mode = "observe"
    # The job's own ZEUSD_SOCK_PATH counts for the guard as it does for the devices.
    environment = {**submission.environment, **submission.spec.env}
    holder = open_limits(mode, submission.devices, submission.home, environment)
    if holder is None:
        if fixed_w is not None:
            emit(Warned(f"power_limit.watts: the job has no GPU to hold to {fixed_w:g} W"))
        yield None
        return
    try:
        with holder:
            if fixed_w is not None:
                holder.check(fixed_w)
            elif holder.refused is not None:
                emit(Noted(f"power limits are left alone: {holder.refused}"))
            yield holder
    finally:
        if holder.unrestored is not None:
            emit(Warned(holder.unrestored))


def _recur(submission: Submission, emit: Emit, signals: CaughtSignals) -> SubmitResult:
    """Run trials until one reaches the target, or there is nothing left to try."""
    spec = submission.spec
    trials: list[Trial] = []
    earlier: list[Trial] = []  # attempts of the recurrence before a submit that was preempted
    looks = 0
    again = True
    while again:
        recurrence = trials[0].recurrence if trials else None
        attempt = trials[-1].attempt + 1 if trials else 1
        trial, stop = _attempt(submission, emit, signals, recurrence, attempt)
        if not trials and trial.attempt > 1:
            earlier = _attempts_before(submission, trial)
            looks = sum(each.status is TrialStatus.CANCELLED for each in earlier)
        trials.append(trial)
        if _ended_by_look(trial, stop):
            looks += 1
            again = not signals.received
            continue
        again = (
            (trial.status in OUTDONE or trial.cause is not None)
            and (stop is None or stop.cause is StopCause.HOPELESS)
            and trial.attempt - looks < spec.attempts
            and submission.forced_batch_size is None
            and not signals.received
        )
        before = [*earlier, *trials[:-1]]
        if again and trial.cause in {each.cause for each in before} - {None}:
            again = False
            emit(Warned(f"two attempts have failed alike, so no third is made: {trial.reason}"))
        elif again and trial.cause is not None and _would_crash_again(submission, trials):
            again = False
            emit(Warned("it is not tried again: the same error would occur"))
        elif again and trial.cause is not None:
            emit(Noted("it is tried once more: should it fail alike, that is the end of it"))
        if again and (sentence := _first_night(submission, [*earlier, *trials])) is not None:
            again = False
            emit(Warned(sentence))
        if again and not _another_choice(submission, [*earlier, *trials]):
            again = False
            emit(Warned(_nothing_left(spec, trials)))
    code = exit_code(trials[-1], stop, signals.received)
    return SubmitResult(trials[0].recurrence, tuple(trials), code)


def _attempts_before(submission: Submission, trial: Trial) -> list[Trial]:
    """Return the earlier attempts of a recurrence that went on with this trial."""
    return [
        each
        for each in submission.history.trials(trial.job, NEWEST)
        if each.recurrence == trial.recurrence and each.attempt < trial.attempt
    ]


def _ended_by_look(trial: Trial, stop: StopOrder | None) -> bool:
    """Whether a trial was cut short for its speed alone, so that another one is what was asked.

    It may run out of memory while it ends. That is recorded, and the other one follows all the
    same.
    """
    looked = stop is not None and stop.cause is StopCause.LOOKED
    return looked and trial.status in {TrialStatus.CANCELLED, TrialStatus.OOM}


def _first_night(submission: Submission, attempts: Sequence[Trial]) -> str | None:
    """Return why no further batch size is tried before anything has ever reached the target."""
    if len(attempts) < 2:
        return None
    trials = submission.history.trials(submission.spec.name, NEWEST)
    problem = build_problem(submission, trials, attempts[0].recurrence)
    _, runs = read_history(problem, trials)
    if not is_target_in_doubt(attempts, runs):
        return None
    objective = submission.spec.objective
    best = ", ".join(
        f"{trial.best_metric:.4g} with batch size {trial.global_batch_size}"
        for trial in attempts
        if trial.status in FAILED and trial.best_metric is not None
    )
    goal = f"{objective.metric} {objective.target:g}"
    return (
        f"nothing has reached {goal} yet (best: {best or 'none'}). "
        "Is the target right? Correct objective.target or objective.max_epochs; otherwise the "
        "next submit goes on from here"
    )


def _next_decision(submission: Submission, attempts: Sequence[Trial]) -> Decision:
    """Return what the next attempt of a recurrence would carry out."""
    trials = submission.history.trials(submission.spec.name, NEWEST)
    problem = build_problem(submission, trials, attempts[0].recurrence)
    return decide(submission, problem, trials, attempts[-1].attempt + 1).decision


def _would_crash_again(submission: Submission, attempts: Sequence[Trial]) -> bool:
    trial = attempts[-1]
    following = _next_decision(submission, attempts).global_batch_size
    same = following == trial.global_batch_size
    return is_permanent(trial.reason or "", trial.cause or "", same_choice=same)


def _another_choice(submission: Submission, attempts: Sequence[Trial]) -> bool:
    """Whether the next attempt would be anything but what has just failed to reach the target."""
    return not is_repeat(_next_decision(submission, attempts), attempts)


def _nothing_left(spec: JobSpec, attempts: Sequence[Trial]) -> str:
    values = [trial.best_metric for trial in attempts if trial.best_metric is not None]
    best = (min if spec.objective.mode == "min" else max)(values, default=None)
    seen = "" if best is None else f" (best {best:.4g})"
    goal = f"{spec.objective.metric} {spec.objective.target:g}{seen}"
    stopped = any(trial.status is TrialStatus.STOPPED for trial in attempts)
    dear = "early_stop.cost_factor (it was stopped for its cost), " if stopped else ""
    correct = f"correct objective.target, raise {dear}objective.max_epochs, or"
    if all(trial.status is TrialStatus.OOM for trial in attempts):
        sizes = ", ".join(str(trial.global_batch_size) for trial in attempts)
        return (
            f"no batch size is left that may fit in memory ({sizes} did not); add smaller "
            "batch_size.candidates, or make room"
        )
    if spec.policy.name == "fixed":
        only = attempts[-1].global_batch_size
        return (
            f"{only} has not reached {goal}, and policy fixed never leaves it; "
            f"{correct} choose another policy.name"
        )
    return f"no other batch size is left to try for {goal}; {correct} add batch_size.candidates"


_CODES = {
    StopCause.TIMEOUT: ExitCode.TIMED_OUT,
    StopCause.NO_METRIC: ExitCode.BAD_INPUT,
}


def exit_code(trial: Trial, stop: StopOrder | None, signals: Sequence[int]) -> int:
    """Return zeusrun's exit code after the last trial of a recurrence."""
    if trial.status is TrialStatus.REACHED:
        return ExitCode.REACHED
    replaced = trial.status is TrialStatus.CANCELLED and trial.reason == REPLACED_BY_NEWER
    preempted = trial.status is TrialStatus.PREEMPTED or (signals and signals[0] in PREEMPTING)
    if preempted or replaced:
        return ExitCode.BUSY
    if signals:
        return ExitCode.SIGNAL_BASE + signals[0]
    if stop is not None and stop.cause in _CODES:
        return _CODES[stop.cause]
    if trial.status in {TrialStatus.MISSED, TrialStatus.STOPPED}:
        return ExitCode.TARGET_MISSED
    return ExitCode.TRAINING_FAILED


def _attempt(
    submission: Submission,
    emit: Emit,
    signals: CaughtSignals,
    recurrence: int | None,
    attempt: int,
) -> tuple[Trial, StopOrder | None]:
    """Dispatch one trial, run it, record it, whatever happens to it."""
    dispatched = dispatch(submission, recurrence, attempt)
    values = placeholder_values(submission.spec, dispatched.trial, dispatched.paths)
    mask = mask_job(submission.spec, values)
    emit = mask_events(emit, mask)
    try:
        for text in dispatched.choice.kept if attempt == 1 else ():
            emit(Noted(f"history: {text}"))
        if dispatched.note is not None:
            emit(Noted(dispatched.note))
        if dispatched.trial.preemptions:
            emit(Noted(_goes_on(dispatched.trial)))
        emit(TrialStarts(dispatched.trial, dispatched.choice.decision.cost_bound_j))
        try:
            outcome, stop = Watch(submission, emit, signals, dispatched, mask).run()
        except BaseException as error:
            outcome = _broken_off(
                dispatched, f"zeusrun could not run it: {str(error) or type(error).__name__}"
            )
            _record(submission.history, dispatched, mask_outcome(outcome, mask))
            raise
        finished = _record(submission.history, dispatched, mask_outcome(outcome, mask))
    finally:
        _let_go(dispatched, mask, emit)
    looked = finished.status is TrialStatus.CANCELLED and _ended_by_look(finished, stop)
    told = stop is not None and stop.cause in {StopCause.HOPELESS, StopCause.LOOKED}
    if told and finished.status is TrialStatus.REACHED:
        emit(Noted("it reached the target in the time that it was given to end"))
    emit(TrialEnded(finished, looked))
    return finished, stop


def _mask_lost(submission: Submission, lost: Trial) -> list[str]:
    """Take the secrets out of the logs of a trial whose launcher did not live to do it."""
    paths = find_run(submission.home, lost)
    if paths is None:
        return []
    return mask_logs(
        paths, mask_job(submission.spec, placeholder_values(submission.spec, lost, paths))
    )


def _let_go(dispatched: Dispatched, mask: Mask, emit: Emit) -> None:
    try:
        for text in mask_logs(dispatched.paths, mask):
            emit(Warned(text))
    finally:
        dispatched.lock.release()


def _broken_off(dispatched: Dispatched, reason: str) -> Outcome:
    """Return the outcome of a trial that could not be run, with what it has taken all the same.

    One that was to go on, and did not come to training again, may still go on the next time.
    """
    trial, paths = dispatched.trial, dispatched.paths
    outcome = outcome_so_far(trial, paths, TrialStatus.FAILED, reason, timestamp())
    if trial.preemptions and outcome.time_s == trial.time_s:
        return replace(outcome, status=TrialStatus.PREEMPTED)
    return outcome


def _goes_on(trial: Trial) -> str:
    """Say what a preempted trial has behind it."""
    taken = [f"{trial.epochs} epoch" + ("" if trial.epochs == 1 else "s")] if trial.epochs else []
    if trial.time_s is not None:
        taken.append(f"{trial.time_s:.0f} s")
    if trial.energy_j is not None:
        taken.append(energy_text(trial.energy_j))
    behind = f"; behind it are {', '.join(taken)}" if taken else ""
    if not has_checkpoint(Path(trial.run_dir)):
        return f"{trial.trial} was preempted and begins anew: it saved no checkpoint{behind}"
    return f"{trial.trial} was preempted and goes on{behind}"


def _record(history: History, dispatched: Dispatched, outcome: Outcome) -> Trial:
    """Write the outcome beside the run, then into the history.

    Raises:
        HistoryError: If the history could not take it; says where the outcome is kept.
    """
    trial, paths = dispatched.trial, dispatched.paths
    kept = write_record(paths, trial.finish(outcome))
    try:
        return history.finish(trial.trial, outcome)
    except (HistoryError, ValueError) as error:  # ValueError: another zeusrun took it for lost
        where = (
            where_kept(history, trial, paths) if kept else "It is not kept beside the run either."
        )
        raise HistoryError(
            f"{trial.trial} ended as {outcome.status.value} ({outcome.reason}), but the history "
            f"could not take it: {error} {where}"
        ) from error
