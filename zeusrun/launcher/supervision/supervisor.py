"""Supervises one running trial: at every tick, reads new events, decides, and shows them."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.energy.monitor import EnergyMonitor
from zeusrun.energy.sharing import ForeignProcesses
from zeusrun.launcher.events import Advanced, BoundChanged, Messages, Printed, Warned
from zeusrun.launcher.power.limits import NoLimits
from zeusrun.launcher.processes.command import placeholder_values
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.remarks import describe_schedule, find_remarks
from zeusrun.launcher.rundir.failure import (
    blame_disk,
    lost_host,
    read_failure,
    run_deleted,
    signal_name,
    torchrun_was_signalled,
)
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.launcher.rundir.logs import log_tails, read_text_lines
from zeusrun.launcher.rundir.record import Live, write_live
from zeusrun.launcher.script_warnings import find_choices_to_ask_for, read_job_script
from zeusrun.launcher.supervision.neighbours import Neighbours
from zeusrun.launcher.supervision.observer import RunObserver, first_progress
from zeusrun.launcher.supervision.outcome import (
    build_outcome,
    charge,
    limit_in_force,
    outcome_now,
    price_at_end,
    price_outcome,
)
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.launcher.supervision.speed_check import PolicyControl
from zeusrun.launcher.supervision.stalls import StallControl
from zeusrun.launcher.supervision.stopping import StopOrder, Stopping
from zeusrun.lever import limit_of, power_lever
from zeusrun.metrics.base import open_sources
from zeusrun.metrics.progress import TrainingSummary, take_time
from zeusrun.metrics.rows import SourceContext
from zeusrun.parts import PARTS, load_part
from zeusrun.plain_text import storable_text
from zeusrun.sidecar.events import Applied, Regrouped, Scheduled, Started, Synced
from zeusrun.trial import TrialStatus, join_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zeusrun.choice.choose import Choice
    from zeusrun.files.tail import LineTail
    from zeusrun.launcher.begin import Begun
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.power.limits import Limits
    from zeusrun.launcher.processes.signals import CaughtSignals
    from zeusrun.metrics.progress import Progress
    from zeusrun.metrics.seen import Ranks
    from zeusrun.reasons import Stall
    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Outcome

_LIVE_PERIOD_S = 1.0
_MAX_BACKLOG_BYTES = 256 << 10  # about 5,000 lines, a third of a second to print


class Supervised:
    """One running trial: its progress, and the objects that supervise it.

    Attributes:
        logs: Of the ranks.
        find_remarks: Returns the warnings that hold now, by kind.
        agents: Of the parts of the job: each takes in how far the training is.
        live_order: The order when ``live.json`` was last written.
    """

    def __init__(self, submission: Submission, begun: Begun, signals: CaughtSignals) -> None:
        """Open the sources of a trial that is about to start, and all that looks after it."""
        spec, choice, paths, trial = submission.spec, begun.choice, begun.paths, begun.trial
        values, script = placeholder_values(spec, trial, paths), read_job_script(spec)
        folder, allocation = spec.workdir_path(values), submission.allocation
        self.submission, self.begun = submission, begun
        self.messages = messages = Messages(begun.emit)
        self.meter = EnergyMonitor(submission.devices, paths.power, foreign=ForeignProcesses())
        self.ranks = ranks = RunningRanks(paths, range(submission.own_ranks), submission.nodes)
        of_trial = trial.world_size, trial.target, trial.mode
        context = SourceContext(
            paths.run_dir, folder, spec.metrics, trial.metric, values, *of_trial
        )
        self.observer = RunObserver(trial, open_sources(context), ranks, messages)
        bound_j = choice.decision.cost_bound_j
        self.stopping = Stopping(
            spec, trial, paths, signals, messages, cost_bound_j=bound_j, allocation=allocation
        )
        self.policy = PolicyControl(submission, choice, self.meter)
        self.limits = _open_limits(submission, choice, ranks, messages, self.policy)
        self.stalls = StallControl(spec, trial, paths, messages, ranks)
        self.neighbours = Neighbours(submission.home, on_cpu=not submission.gpus)
        self.logs = log_tails(paths, ranks.world)
        self.progress = first_progress(spec, trial, choice.earlier)
        self.find_remarks = functools.partial(
            find_remarks,
            stops_at_target=spec.objective.on_target == "stop",
            to_ask_for=find_choices_to_ask_for(spec, script),
            earlier=choice.earlier,
            spawns=script.spawns,
        )
        self.agents: list[Callable[[Ranks, StepCount | None], None]] = []
        self.write_live_at_t = 0.0
        self.live_order: StopOrder | None = None

    @property
    def shared(self) -> bool | None:
        """Whether others used the devices at the same time; ``None`` if unknown."""
        on_cpu = self.neighbours.shared
        own = self.meter.shared if on_cpu is None else on_cpu
        found = {own, *(node.shared for node in self.submission.nodes)}
        return True if True in found else None if None in found else False

    def advance_agents(self, progress: Progress) -> None:
        """Tell the parts of the job how far the training is."""
        for advance in self.agents:
            advance(progress.ranks, self.ranks.count())

    @property
    def found_stalls(self) -> tuple[Stall, ...]:
        """The stalls so far, without secrets."""
        mask = self.begun.mask
        found = ((each, mask.text(storable_text(each.places))) for each in self.stalls.found)
        return tuple(each._replace(places=places) for each, places in found)


def _open_limits(
    submission: Submission,
    choice: Choice,
    ranks: RunningRanks,
    messages: Messages,
    policy: PolicyControl,
) -> Limits:
    if not submission.gpus and submission.limits is None:
        return NoLimits()
    from zeusrun.launcher.power.control import LimitControl  # noqa: PLC0415 - for GPUs alone

    spec = submission.spec
    return LimitControl(
        submission.limits,
        submission.gpus,
        ranks.slowest if spec.instrument else None,
        messages.warn,
        choice=choice,
        fixed=power_lever(spec.power_limit.watts),
        next_lever=policy.next_lever,
    )


@contextlib.contextmanager
def start_ranks(run: Supervised) -> Iterator[None]:
    """Hold the limits, and start the meter and the ranks; on leaving, nothing of them is left.

    Once the ranks have ended, an error of the meter or the limits is a warning: it must not lose
    the training.
    """
    begun, ended = run.begun, False
    fitting, grace_s = begun.choice.largest_that_fits, run.submission.spec.launch.grace_period_s
    command, *others = run.submission.commands(begun.trial, begun.paths, fitting)
    try:
        run.limits.begin()
        with run.meter:
            now_t = time.monotonic()
            run.progress = replace(run.progress, launched_t=now_t, now_t=now_t)
            with _open_agents(run), run.ranks.run(command, grace_s, others):
                try:
                    yield
                finally:
                    run.limits.restore()  # before the last processes are ended
            ended = True
    except Exception as error:
        if not ended:
            raise
        run.messages.warnings.append(f"after the training: {type(error).__name__}: {error}")


@contextlib.contextmanager
def _open_agents(run: Supervised) -> Iterator[None]:
    """Open what acts beside the supervisor, of the parts that the job has."""
    with contextlib.ExitStack() as stack:
        for name, section in run.submission.spec.parts.items():
            if PARTS[name].acts:
                agent = load_part(name, "control").open_agent(
                    section, run.begun.paths, run.meter, run.begun.trial
                )
                run.agents.append(stack.enter_context(agent))
        yield


def supervise(run: Supervised) -> None:
    """Supervise a training until its ranks have ended."""
    running = True
    while running:
        _observe(run)
        level = run.stopping.decide(run.progress, run.stalls.describe_pause())
        run.stalls.advance(run.progress, stopping=run.stopping.order is not None)
        if level is StopLevel.NONE:
            energy_between = run.meter.energy_between
            run.limits.advance(time.monotonic(), energy_between, wait=run.policy.checking)
        else:
            run.limits.wind_down(at_once=level >= StopLevel.TERMINATE)
        running = run.ranks.step(level)


def _describe(event: Event) -> str | None:
    """Return what people read of an event; ``None`` for nothing."""
    if isinstance(event, Regrouped) and event.number > 1:
        count = len(event.members)
        return f"{count} rank{'s' * (count > 1)}: {event.why}"
    if isinstance(event, Synced) and event.problem is None:
        return f"sync {event.how}: {event.why}"
    return event.describe() if isinstance(event, Applied) else None


def _observe(run: Supervised, *, final: bool = False) -> None:
    """Read what the ranks wrote, and show it."""
    meter, trial, order, before = run.meter, run.begun.trial, run.stopping.order, run.progress
    _hear_nodes(run)
    progress, events, reported = run.observer.observe(before, meter.energy_between, final=final)
    for event in events:
        run.stalls.take(event)
        if isinstance(event, Started) and event.rank not in run.logs:  # a newcomer
            run.logs |= log_tails(run.begun.paths, [event.rank])
        if (note := _describe(event)) is not None:
            run.messages.note(note)
        if isinstance(event, Scheduled) and (text := describe_schedule(event, trial)) is not None:
            run.messages.warn_once("schedule", text)
    reached = progress.reached
    if order is not None and order.ends_ranks:
        reached = reached or before.reached
    progress = replace(
        progress,
        reached=reached,
        ending=order is not None or progress.has_done(trial.max_epochs),
        power_limit_w=limit_of(run.limits.held),
        probing=run.limits.probing,
    )
    progress = take_time(progress, time.monotonic())  # later than all that was read
    if progress.training_t is not None and not final:
        progress = charge(progress, before, trial, meter)
    if reported or progress.training_t is not None:
        _ask_policy(run, progress, epoch=reported, final=final)
    run.advance_agents(progress)
    run.progress = progress = _write_live(run, progress, final=final)
    _show_logs(run.logs, run.messages, final=final)
    begun = progress.training_t is not None or bool(progress.ranks.spawned)
    trains = begun and not progress.ranks.exit_codes
    if (text := run.neighbours.check(progress.now_t, trains=trains)) is not None:
        run.messages.warn(text)
    for kind, text in run.find_remarks(progress, trial).items():
        run.messages.warn_once(kind, text)
    run.messages.emit(Advanced(progress))


def _hear_nodes(run: Supervised) -> None:
    """Show what the launchers of other hosts say; a signal to one of them ends the run."""
    allocation = run.submission.allocation
    if allocation is not None and (text := allocation.check_sentinel()) is not None:
        run.stopping.take_signal(text)
    for node in run.submission.nodes:
        while node.notices:
            text = node.notices.popleft()
            run.messages.warn_once(text, text)  # a full disk refuses every part of a file
        while node.signals:
            number = node.signals.popleft()
            run.stopping.take_signal(f"{signal_name(number)} to the launcher of host {node.name}")


def _show_logs(tails: Mapping[int, LineTail], messages: Messages, *, final: bool = False) -> None:
    """Show what the ranks printed since, but never so much that supervision has to wait."""
    for rank, tail in tails.items():
        with messages.reading(str(tail.path)):
            if skipped := tail.skip_backlog(_MAX_BACKLOG_BYTES):
                messages.note(
                    f"{skipped / 1e6:.1f} MB of rank {rank} are not shown; they are in {tail.path}"
                )
            while lines := read_text_lines(tail, final=final):
                messages.emit(Printed(rank, tuple(lines)))
                if not final:
                    break


def _ask_policy(run: Supervised, progress: Progress, *, epoch: bool, final: bool) -> None:
    """Ask the policy again: about the speed, and after an epoch about another one."""
    if final or not run.stopping.may_ask_policy:
        return
    answer = run.policy.check_speed(progress, run.limits.stepped_under)
    if isinstance(answer, StopOrder):
        run.stopping.policy_order = answer
        return
    if answer is not None:
        run.stopping.bound(answer.cost_bound_j)
        run.messages.emit(BoundChanged(answer.cost_bound_j))
        run.messages.note(f"its speed is known, and it continues: {answer.why}")
    if epoch:
        run.stopping.policy_order = run.policy.review(progress)


def _write_live(run: Supervised, progress: Progress, *, final: bool) -> Progress:
    """Write ``live.json`` about once a second and after each epoch; then the price is new."""
    stopped = run.stopping.order is not run.live_order
    due = progress.now_t >= run.write_live_at_t or progress.curve != run.progress.curve
    if not (due or stopped or final):
        return progress
    run.write_live_at_t, run.live_order = progress.now_t + _LIVE_PERIOD_S, run.stopping.order
    live = _describe_live(run, progress)
    write_live(run.begun.paths, live)
    return replace(progress, price=live.trial.price, currency=live.trial.currency)


def _describe_live(run: Supervised, progress: Progress) -> Live:
    """Return the state of a running trial, with its energy so far."""
    trial, mask, meter, begun_t = run.begun.trial, run.begun.mask, run.meter, progress.training_t
    limit_w = None if begun_t is None else limit_in_force(trial, (), meter, begun_t, progress.now_t)
    outcome = replace(
        outcome_now(trial, progress, meter, TrialStatus.LOST),
        power_limit_w=limit_w,
        shared=run.shared,
        warnings=tuple(mask.text(storable_text(text)) for text in run.messages.warnings),
        stalls=run.found_stalls,
    )
    summary = TrainingSummary.of(progress)
    named = tuple((mask.text(name), source, seen) for name, source, seen in summary.metrics)
    so_far = trial.finish(join_parts(trial, price_outcome(trial, outcome, run.submission.tariffs)))
    return Live(
        replace(so_far, status=TrialStatus.DISPATCHED, reason=None, finished_at=None),
        os.getpid(),
        trial.host or platform.node(),
        outcome.finished_at,
        progress.power_w,
        run.stopping.preempted,
        replace(summary, metrics=named),
    )


def conclude(run: Supervised) -> Outcome:
    """Read what the ranks wrote last, and return what the trial amounts to."""
    trial, paths, messages, exit_ = run.begun.trial, run.begun.paths, run.messages, run.ranks.exit
    _observe(run, final=True)
    pause = run.stalls.describe_pause()
    run.stopping.conclude(run.progress, pause, succeeded=exit_.code == 0)
    if (text := run.neighbours.conclude()) is not None:
        messages.warn(text)
    restarts = run.progress.ranks.generation
    failure = read_failure(paths, restarts, run.ranks.oom_kills(), run.begun.mask)
    outcome = build_outcome(
        trial,
        progress=run.progress,
        exit_=exit_,
        stop=run.stopping.order,
        failure=lost_host(run.ranks.lost)
        or run_deleted(paths)
        or run.stalls.failure
        or (blame_disk(paths, failure) if exit_.code else failure),
        meter=run.meter,
        shared=run.shared,
        hosts=run.submission.host_shares,
        finished_at=timestamp(),
        signalled=torchrun_was_signalled(paths, run.ranks.first_failed),
        limits=run.limits.report(run.policy.speed),
        earlier=run.begun.choice.earlier,
        stalls=run.found_stalls,
    )
    outcome = join_parts(trial, price_at_end(run.submission, trial, outcome))
    if (allocation := run.submission.allocation) is not None:
        outcome = allocation.judge(trial, outcome, saved=has_checkpoint(paths.run_dir))
    if outcome.status is TrialStatus.PREEMPTED and not has_checkpoint(paths.run_dir):
        text = "it will start from the beginning: there is no checkpoint in "
        messages.emit(Warned(text + str(paths.checkpoints)))  # not recorded: it continues
    elif outcome.status is TrialStatus.PREEMPTED:
        for node in (each for each in run.submission.nodes if not each.saved):
            text = f"host {node.name} has no checkpoint of it, so it cannot continue there: share "
            messages.emit(Warned(f"{text}ZEUSRUN_HOME among the hosts, or save on every rank"))
    found = (*outcome.warnings, *run.meter.warnings, *messages.warnings)
    warnings = tuple(map(storable_text, found))
    return replace(outcome, reason=storable_text(outcome.reason), warnings=warnings)
