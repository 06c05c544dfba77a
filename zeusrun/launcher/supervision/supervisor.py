"""Supervises one running trial: at every tick, reads new events, decides, and shows them."""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.launcher.events import Advanced, Warned
from zeusrun.launcher.rundir.failure import (
    blame_disk,
    lost_host,
    read_failure,
    run_deleted,
    torchrun_was_signalled,
)
from zeusrun.launcher.rundir.layout import has_checkpoint
from zeusrun.launcher.supervision.live_file import write_live_file
from zeusrun.launcher.supervision.outcome import build_outcome, charge, price_at_end
from zeusrun.metrics.progress import take_time
from zeusrun.plain_text import storable_text
from zeusrun.trial import TrialStatus, join_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.trial import Outcome


@contextlib.contextmanager
def start_ranks(run: Supervised) -> Iterator[None]:
    """Hold the limits, and start the meter and the ranks; on leaving, nothing of them is left.

    Once the ranks have ended, an error of the meter or the limits is a warning: it must not lose
    the training.
    """
    begun, limits, ended = run.begun, run.control.limits, False
    choice, grace_s = begun.choice, run.submission.spec.launch.grace_period_s
    command, *others = run.submission.commands(
        begun.trial, begun.paths, choice.largest_that_fits, choice.earlier
    )
    try:
        limits.begin()
        with run.meter:
            now_t = time.monotonic()
            run.progress = replace(run.progress, launched_t=now_t, now_t=now_t)
            with run.open_parts(), run.ranks.run(command, grace_s, others):
                try:
                    yield
                finally:
                    limits.restore()  # before the last processes are killed
            ended = True
    except Exception as error:
        if not ended:
            raise
        run.messages.warnings.append(f"after the training: {type(error).__name__}: {error}")


def supervise(run: Supervised) -> None:
    """Supervise a training until its ranks have ended."""
    running = True
    while running:
        _observe(run)
        running = run.control.step(run.progress)


def _observe(run: Supervised, *, final: bool = False) -> None:
    """Read what the ranks wrote, and show it."""
    meter, control, before = run.meter, run.control, run.progress
    control.hear_nodes()
    progress, events, reported = run.observer.observe(before, meter.energy_between, final=final)
    for event in events:
        for agent in run.agents:
            agent.take(event)
    progress = control.mark(before, progress)
    progress = take_time(progress, time.monotonic())  # later than all that was read
    if progress.training_t is not None and not final:
        progress = charge(progress, before, run.begun.trial, meter)
    if not final and (reported or progress.training_t is not None):
        control.ask_policy(progress, epoch=reported)
    run.progress = progress = write_live_file(run, progress, final=final)
    for agent in run.agents:
        if final:
            agent.conclude(progress)
        else:
            agent.advance(progress)
    run.messages.emit(Advanced(progress))


def conclude(run: Supervised) -> Outcome:
    """Read what the ranks wrote last, and return what the trial amounts to."""
    trial, paths, messages, exit_ = run.begun.trial, run.begun.paths, run.messages, run.ranks.exit
    _observe(run, final=True)
    control, stop = run.control, run.control.end(run.progress)
    restarts = run.progress.ranks.generation
    failure = read_failure(paths, restarts, run.ranks.oom_kills(), run.begun.mask)
    outcome = build_outcome(
        trial,
        progress=run.progress,
        exit_=exit_,
        stop=stop,
        failure=lost_host(run.ranks.lost)
        or run_deleted(paths)
        or control.stalls.failure
        or (blame_disk(paths, failure) if exit_.code else failure),
        meter=run.meter,
        shared=run.shared,
        hosts=run.submission.host_shares,
        finished_at=timestamp(),
        signalled=torchrun_was_signalled(paths, run.ranks.first_failed),
        limits=control.limits.report(control.policy.speed),
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
