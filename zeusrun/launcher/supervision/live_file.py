"""Writes ``live.json``, the state of a running trial: ``status`` and the pages read it."""

from __future__ import annotations

import os
import platform
from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.launcher.rundir.layout import Live, write_live
from zeusrun.launcher.supervision.outcome import limit_in_force, outcome_now, price_outcome
from zeusrun.launcher.supervision.supervised import LastLive
from zeusrun.metrics.progress import TrainingSummary
from zeusrun.plain_text import storable_text
from zeusrun.trial import TrialStatus, join_parts

if TYPE_CHECKING:
    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.metrics.progress import Progress

_LIVE_PERIOD_S = 1.0


def write_live_file(run: Supervised, progress: Progress, *, final: bool) -> Progress:
    """Write ``live.json`` if it is due; then the returned progress has the price so far.

    The file is due about once a second, after an epoch, after a stop order, and at the end.
    """
    stopped = run.control.stopping.order is not run.live.order
    due = progress.now_t >= run.live.due_at_t or progress.curve != run.progress.curve
    if not (due or stopped or final):
        return progress
    run.live = LastLive(progress.now_t + _LIVE_PERIOD_S, run.control.stopping.order)
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
        run.control.stopping.preempted,
        replace(summary, metrics=named),
    )
