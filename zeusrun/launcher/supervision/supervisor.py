"""Supervises one running trial: at every tick, reads new events, decides, and shows them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.launcher.events import Advanced, BoundChanged, Warned
from zeusrun.launcher.processes.torchrun import StopLevel
from zeusrun.launcher.rundir.failure import (
    blame_disk,
    lost_host,
    read_failure,
    run_deleted,
    signal_name,
    torchrun_was_signalled,
)
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.launcher.supervision.live_file import write_live_file
from zeusrun.launcher.supervision.outcome import (
    build_outcome,
    charge,
    price_at_end,
)
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.lever import limit_of
from zeusrun.metrics.progress import take_time
from zeusrun.parts import PARTS, load_part
from zeusrun.plain_text import storable_text
from zeusrun.trial import TrialStatus, join_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.metrics.progress import Progress
    from zeusrun.trial import Outcome


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
                agent = load_part(name, "control").open_agent(section, run)
                run.agents.append(stack.enter_context(agent))
        yield


def supervise(run: Supervised) -> None:
    """Supervise a training until its ranks have ended."""
    running = True
    while running:
        _observe(run)
        level = run.stopping.decide(run.progress, run.stalls.describe_pause())
        stopping = run.stopping.order is not None
        run.stalls.advance(replace(run.progress, ending=run.progress.ending or stopping))
        if level is StopLevel.NONE:
            energy_between = run.meter.energy_between
            run.limits.advance(time.monotonic(), energy_between, wait=run.policy.checking)
        else:
            run.limits.wind_down(at_once=level >= StopLevel.TERMINATE)
        running = run.ranks.step(level)


def _observe(run: Supervised, *, final: bool = False) -> None:
    """Read what the ranks wrote, and show it."""
    meter, trial, order, before = run.meter, run.begun.trial, run.stopping.order, run.progress
    _hear_nodes(run)
    progress, events, reported = run.observer.observe(before, meter.energy_between, final=final)
    for event in events:
        run.stalls.take(event)
        for agent in run.agents:
            agent.take(event)
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
    run.progress = progress = write_live_file(run, progress, final=final)
    for agent in run.agents:
        (agent.conclude if final else agent.advance)(progress)
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


def conclude(run: Supervised) -> Outcome:
    """Read what the ranks wrote last, and return what the trial amounts to."""
    trial, paths, messages, exit_ = run.begun.trial, run.begun.paths, run.messages, run.ranks.exit
    _observe(run, final=True)
    pause = run.stalls.describe_pause()
    run.stopping.conclude(run.progress, pause, succeeded=exit_.code == 0)
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
