"""Supervises one running trial: reads events, decides whether it goes on, builds its outcome."""

from __future__ import annotations

import contextlib
import functools
import signal
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import merged_profile
from zeusrun.clock import MTIME_S, timestamp
from zeusrun.launcher.events import Advanced, BoundChanged, Noted, Printed, Warned
from zeusrun.launcher.parts import join
from zeusrun.launcher.power.control import LimitControl
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.processes.oom_kills import count_oom_kills
from zeusrun.launcher.processes.torchrun import ProcessExit, StopLevel, TorchrunProcess
from zeusrun.launcher.rundir.failure import read_failure, run_deleted, torchrun_was_signalled
from zeusrun.launcher.rundir.layout import has_checkpoint, read_cancel
from zeusrun.launcher.rundir.logs import log_tails, read_text_lines
from zeusrun.launcher.rundir.record import write_live
from zeusrun.launcher.script_warnings import calls_spawn, find_choices_to_ask_for, find_remarks
from zeusrun.launcher.supervision.hang import StallControl
from zeusrun.launcher.supervision.neighbours import Neighbours
from zeusrun.launcher.supervision.outcome import build_outcome, describe_live
from zeusrun.launcher.supervision.pricing import charge, price_at_end
from zeusrun.launcher.supervision.ranks import RankProcesses
from zeusrun.launcher.supervision.speed_check import PolicyControl
from zeusrun.launcher.supervision.stop_rules import (
    BY_SIGNAL,
    StopCause,
    StopOrder,
    StopRules,
    describe_signal,
    is_cause,
    supervise,
)
from zeusrun.lever import limit_of, power_lever
from zeusrun.metrics.advance import advance
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.progress import Progress, settle, take_step_clock, take_time
from zeusrun.metrics.ranks import Ranks
from zeusrun.metrics.rows import Run
from zeusrun.metrics.seen import Seen
from zeusrun.metrics.sight import describe_applied
from zeusrun.plain_text import storable_text
from zeusrun.sidecar.events import Applied
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import TrialStatus, is_baseline

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.choice.choose import Choice
    from zeusrun.energy.meter import Meter
    from zeusrun.files.tail import LineTail
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.redaction import Mask
    from zeusrun.sidecar.events import Event
    from zeusrun.trial import Outcome

_OTHER_CLOCK = "'t' in the sidecar is not CLOCK_MONOTONIC; the time of arrival is used instead"
_LIVE_PERIOD_S = 1.0
_MAX_BACKLOG_BYTES = 256 << 10  # about 5,000 lines, a third of a second to print


class Supervisor:
    """One running trial, from the start of torchrun to its outcome."""

    def __init__(
        self,
        submission: Submission,
        choice: Choice,
        paths: RunPaths,
        meter: Meter,
        *,
        emit: Emit,
        signals: CaughtSignals,
        mask: Mask,
    ) -> None:
        spec, trial = submission.spec, choice.trial
        self._submission, self._emit, self._signals = submission, emit, signals
        self._choice, self._paths, self._meter, self._mask = choice, paths, meter, mask
        self._trial = trial
        self._policy = PolicyControl(submission, choice, meter)
        self._limits = self._control_limits()
        self._ranks = RankProcesses(paths.run_dir, trial.world_size)
        self._stalls = StallControl(spec, trial, paths, self._warn, self._note, ranks=self._ranks)
        self._verdict: StopOrder | None = None
        self._why_cancelled: str | None = None  # by another zeusrun
        self._write_live_at_t = 0.0
        self._oom_kills = count_oom_kills()
        self._rules = StopRules(
            choice.decision.cost_bound_j,
            None if spec.timeout_s is None else spec.timeout_s - (trial.time_s or 0.0),
            stop_at_target=spec.objective.on_target == "stop",
            needs_metric=trial.metric if spec.objective.missing_metric == "stop" else None,
        )
        values, ranks = placeholder_values(spec, trial, paths), trial.world_size
        folder = spec.workdir_path(values)
        run = Run(paths.run_dir, folder, spec.metrics, trial.metric, values, ranks, trial.target)
        self._sources = open_sources(run)
        self._logs = log_tails(self._paths, Ranks(trial.world_size))
        self._neighbours = Neighbours(submission.home, on_cpu=not submission.gpus)
        self._stop: StopOrder | None = None
        self._remarked: set[str] = set()
        self._find_remarks = functools.partial(
            find_remarks, to_ask_for=find_choices_to_ask_for(spec), spawns=calls_spawn(spec)
        )
        self._warnings: list[str] = []
        now_t = time.monotonic()
        self._progress = Progress(
            launched_t=now_t,
            now_t=now_t,
            seen={(trial.metric, "earlier part"): Seen(0.0, 0.0, 0)} if trial.curve else {},
            preferred=spec.metrics.source,
            replaced=spec.batch_size.default if spec.batch_size.apply == "dataloader" else None,
            best_value=trial.best_metric,
            earlier=tuple(point.epoch for point in trial.curve if not is_baseline(point)),
            ranks=Ranks(trial.world_size),
        )

    def _control_limits(self) -> LimitControl:
        submission, choice, trial = self._submission, self._choice, self._trial
        known = [run for run in choice.runs if run.arm == trial.global_batch_size]
        ranks = range(trial.world_size if submission.spec.instrument else 0)
        return LimitControl(
            submission.limits,
            submission.gpus,
            [self._paths.rank_clock(rank) for rank in ranks],
            self._warn,
            trial=trial.trial,
            problem=choice.problem,
            known=merged_profile(known),
            original=power_lever(choice.limit_w),
            fixed=power_lever(submission.spec.power_limit.watts),
            next_lever=self._policy.next_lever,
        )

    def run(self) -> tuple[Outcome, StopOrder | None]:
        """Run the trial to its end; return its outcome and the order that stopped it, if any."""
        submission, paths, spec = self._submission, self._paths, self._submission.spec
        command = submission.command(self._trial, paths, self._choice.largest_that_fits)
        exit_: ProcessExit | None = None
        try:
            self._limits.begin()
            with self._meter:
                now_t = time.monotonic()
                self._progress = replace(self._progress, launched_t=now_t, now_t=now_t)
                process = TorchrunProcess(command, paths, spec.launch.grace_period_s)
                with process:
                    try:
                        while process.is_running():
                            process.stop(self._tick(), self._ranks.ask_to_end)
                            process.wait()
                    finally:
                        self._limits.let_go()  # before the last processes are ended
                exit_ = process.exit
        except Exception as error:
            if exit_ is None:
                raise
            # The training has ended: an error of the meter or the limits must not lose it.
            self._warnings.append(f"after the training: {type(error).__name__}: {error}")
        self._write_live_at_t = 0.0
        self._observe(final=True)
        checked = self._stop is not None and self._stop.cause is StopCause.SPEED_CHECKED
        self._read_cancel()
        if self._signals.received and exit_.code != 0 and (self._stop is None or checked):
            # It arrived while torchrun ended, perhaps because of the same signal.
            self._stop = self._supervise()
        return self._close(exit_), self._stop

    def _tick(self) -> StopLevel:
        self._read_cancel()
        self._observe()
        level = self._decide()
        self._stalls.advance(self._progress, stopping=self._stop is not None)
        if level is StopLevel.NONE:
            energy_between = self._meter.energy_between
            self._limits.advance(time.monotonic(), energy_between, wait=self._policy.checking)
        else:
            self._limits.wind_down(at_once=level >= StopLevel.TERMINATE)
        return level

    def _decide(self) -> StopLevel:
        order, spec = self._supervise(), self._submission.spec
        if order is None and self._stop is not None and not self._stop.level:
            self._stop = None  # a report says that the target is not reached
        if order is not None and is_cause(order, self._stop) and order != self._stop:
            self._stop = order
            self._write_live_at_t = 0.0
            if order.cause in BY_SIGNAL:
                cancelled = None if self._why_cancelled is None else self._trial.trial
                grace_s, number = spec.launch.grace_period_s, self._signals.received[0]
                self._emit(Warned(describe_signal(order, number, grace_s, cancelled=cancelled)))
            elif order.level >= StopLevel.TERMINATE:
                self._note(f"stopping: {order.reason}")
        return StopLevel.NONE if order is None else order.level

    def _supervise(self) -> StopOrder | None:
        order = supervise(self._progress, self._rules, self._signals.received, self._verdict)
        if order is None:
            return None
        if order.cause is StopCause.TARGET and order.ends_ranks and self._may_only_save():
            return replace(order, reason="target reached", level=StopLevel.ASK)
        if order.cause is StopCause.SIGNAL and self._why_cancelled is not None:
            return replace(order, reason=self._why_cancelled)
        if order.cause is StopCause.TIMEOUT and (pause := self._stalls.describe_pause()):
            return replace(order, reason=f"{order.reason}; {pause}")
        return order

    def _may_only_save(self) -> bool:
        """Whether all epochs are done and no step has followed: then there is nothing to stop."""
        seen, signalled = self._progress, self._stop is not None and self._stop.ends_ranks
        last_t = seen.stepping_s[1] if seen.stepping_s else 0.0
        stepped = last_t > (seen.last_report_t or 0.0) + MTIME_S
        return seen.epochs == self._trial.max_epochs and not stepped and not signalled

    def _read_cancel(self) -> None:
        """Treat the request of another zeusrun as Ctrl-C."""
        received, request = self._signals.received, read_cancel(self._paths)
        if request is None:
            return
        interrupts, reason = request
        if not received:
            self._why_cancelled = reason
        received.extend([signal.SIGINT] * (interrupts - len(received)))

    def _observe(self, *, final: bool = False) -> None:
        """Read what the ranks wrote, and show it."""
        meter, trial = self._meter, self._trial
        events = self._read_sources(final=final)
        # After the events, so that no report comes before the steps that led to it.
        progress = take_step_clock(self._progress, read_step_clock(self._paths.rank_clock(0)))
        came = False  # an epoch, or a report within one
        for event in events:
            self._ranks.take(event)
            self._stalls.take(event)
            if isinstance(event, Applied):
                self._note(describe_applied(event))
            timely = self._correct_time(event)
            before = progress
            progress = settle(advance(progress, timely, trial, meter.energy_between))
            came |= progress.is_beyond(before)
        if came and not final:  # once: of reports that came together, one cost is known
            self._ask_policy(progress, epoch=True)
        if self._stop is not None and self._stop.ends_ranks:
            progress = replace(progress, reached=progress.reached or self._progress.reached)
        progress = replace(
            progress,
            ending=self._stop is not None or progress.has_done(trial.max_epochs),
            power_limit_w=limit_of(self._limits.held),
            probing=self._limits.probing,
        )
        progress = take_time(progress, time.monotonic())  # later than all that was read
        if progress.training_t is not None and not final:
            progress = charge(progress, self._progress, trial, meter)
            self._ask_policy(progress)
        self._progress = progress = self._write_live(progress)
        for rank, tail in self._logs.items():
            with self._reading(str(self._paths.rank_log(rank))):
                self._show_log(rank, tail, final=final)
        if (text := self._neighbours.check(progress)) is not None:
            self._warn(text)
        stops, earlier = self._rules.stop_at_target, self._choice.earlier
        remarks = self._find_remarks(progress, trial, stops_at_target=stops, earlier=earlier)
        for kind, text in remarks.items():
            self._warn_once(kind, text)
        self._emit(Advanced(progress))

    def _read_sources(self, *, final: bool) -> list[Event]:
        events: list[Event] = [] if final else [*self._ranks.find_others(self._progress)]
        for name, source in self._sources.items():
            with self._reading(name):
                events += source.read(final=final)
            for warning in source.warnings:
                self._warn_once(warning, warning)
        return events

    def _ask_policy(self, progress: Progress, *, epoch: bool = False) -> None:
        """Ask the policy again: about the speed, and after an epoch about another one."""
        ordered = self._stop is not None and self._stop.cause is not StopCause.TARGET
        if ordered or self._verdict is not None or self._signals.received:
            return  # the run will be stopped
        answer = self._policy.check_speed(progress, self._limits.stepped_under)
        if isinstance(answer, StopOrder):
            self._verdict = answer
            return
        if answer is not None:
            self._rules = replace(self._rules, cost_bound_j=answer.cost_bound_j)
            self._emit(BoundChanged(self._rules.cost_bound_j))
            self._note(f"its speed is known, and it continues: {answer.why}")
        if epoch:
            self._verdict = self._policy.review(progress)

    def _write_live(self, progress: Progress) -> Progress:
        """Write ``live.json`` about once a second and after each epoch; then the price is new."""
        if progress.now_t >= self._write_live_at_t or progress.curve != self._progress.curve:
            self._write_live_at_t = progress.now_t + _LIVE_PERIOD_S
            live = describe_live(
                self._trial,
                progress,
                self._meter,
                self._submission.tariffs,
                shared=self._shared,
                warnings=[self._mask.text(storable_text(warning)) for warning in self._warnings],
                preempted=self._stop is not None and self._stop.cause is StopCause.PREEMPTED,
            )
            write_live(self._paths, live)
            progress = replace(progress, price=live.trial.price, currency=live.trial.currency)
        return progress

    def _show_log(self, rank: int, tail: LineTail, *, final: bool) -> None:
        """Show what a rank printed, but never so much that supervision has to wait."""
        if skipped := tail.skip_backlog(_MAX_BACKLOG_BYTES):
            where = self._paths.rank_log(rank)
            self._note(f"{skipped / 1e6:.1f} MB of rank {rank} are not shown; they are in {where}")
        while lines := read_text_lines(tail, final=final):
            self._emit(Printed(rank, tuple(lines)))
            if not final:
                break

    @contextlib.contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """If a file of the run or a source cannot be read, warn once and continue without it."""
        try:
            yield
        except OSError as error:
            why = error.strerror or str(error) or type(error).__name__
            where = error.filename or name
            self._warn_once(str(where), f"{where} cannot be read: {why}; zeusrun tries again")

    def _correct_time(self, event: Event) -> Event:
        """Replace the time of an event from another clock by now: a wrong time is a wrong cost."""
        now_t = time.monotonic()
        if self._progress.launched_t <= event.t <= now_t:
            return event
        self._warn_once("clock", _OTHER_CLOCK)
        return replace(event, t=now_t)

    @property
    def _shared(self) -> bool | None:
        """Whether others used the devices at the same time; ``None`` if unknown."""
        on_cpu = self._neighbours.shared
        return self._meter.shared if on_cpu is None else on_cpu

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._remarked:
            self._remarked.add(kind)
            self._warn(text)

    def _note(self, text: str) -> None:
        self._emit(Noted(text))

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self._emit(Warned(text))

    def _close(self, exit_: ProcessExit) -> Outcome:
        if (text := self._neighbours.conclude()) is not None:
            self._warn(text)
        oom_kills, before = count_oom_kills(), self._oom_kills
        oom_kills = None if oom_kills is None or before is None else oom_kills - before
        failure = run_deleted(self._paths) or self._stalls.failure()
        restarts = self._progress.ranks.generation
        failure = failure or read_failure(self._paths, restarts, oom_kills, self._mask)
        outcome = build_outcome(
            self._trial,
            progress=self._progress,
            exit_=exit_,
            stop=self._stop,
            failure=failure,
            meter=self._meter,
            shared=self._shared,
            finished_at=timestamp(),
            signalled=torchrun_was_signalled(self._paths),
            limits=self._limits.report(self._policy.speed),
            earlier=self._choice.earlier,
        )
        outcome = join(self._trial, price_at_end(self._submission, self._trial, outcome))
        if outcome.status is TrialStatus.PREEMPTED and not has_checkpoint(self._paths.run_dir):
            text = "it will start from the beginning: there is no checkpoint in "
            self._emit(Warned(text + str(self._paths.checkpoints)))  # not recorded: it continues
        found = (*outcome.warnings, *self._meter.warnings, *self._warnings)
        warnings = tuple(map(storable_text, found))
        return replace(outcome, reason=storable_text(outcome.reason), warnings=warnings)
