"""The outcome of a run that its launcher does not conclude: from the files in its run directory."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING, Any

from zeusrun.launcher.rundir.layout import read_live
from zeusrun.launcher.supervision.outcome import outcome_now
from zeusrun.metrics.advance import advance
from zeusrun.metrics.base import SidecarReader
from zeusrun.metrics.progress import Progress, take_step_clock
from zeusrun.metrics.seen import Ranks
from zeusrun.sidecar.step_clock import read_step_clock
from zeusrun.trial import join_parts, thin_curve

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.trial import CurvePoint, Outcome, Trial

_COUNTS = [*("epochs", "steps", "samples", "progress"), *("whole_epochs", "whole_steps")]
_COUNTS += ["whole_samples", "whole_progress"]


def outcome_so_far(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Add to an outcome the time, energy and epochs that the files of a run contain.

    ``live.json`` has time and energy as of a second ago; the ranks' events have the epochs.
    """
    seen = join_parts(trial, _from_sidecar(trial, paths, bare))
    live = read_live(paths)
    if live is None or not live.is_of(trial):
        return seen
    last = live.trial
    counts: dict[str, Any] = {
        name: max(
            (n for each in (last, seen) if (n := getattr(each, name)) is not None), default=None
        )
        for name in _COUNTS
    }
    return replace(
        last.ended_as(bare.status, bare.reason_code, bare.reason, bare.finished_at),
        time_s=seen.time_s if last.time_s is None else last.time_s,
        whole_time_s=seen.whole_time_s if last.time_s is None else last.whole_time_s,
        **counts,
        best_metric=last.best_metric if seen.best_metric is None else seen.best_metric,
        curve=_extend_curve(trial, last.curve, seen.curve),
        by_samples=_extend_curve(trial, last.by_samples, seen.by_samples),
        warnings=tuple(dict.fromkeys((*last.warnings, *seen.warnings))),
        interruptions=max(last.interruptions, seen.interruptions, key=len),
    )


def _extend_curve(
    trial: Trial, curve: Sequence[CurvePoint], seen: Sequence[CurvePoint]
) -> tuple[CurvePoint, ...]:
    """Return a curve with the points that were seen after its end."""
    last = curve[-1].epoch if curve else -1
    later = (point for point in seen if point.epoch > last)
    return thin_curve((*curve, *later), trial.target, trial.mode)


def _from_sidecar(trial: Trial, paths: RunPaths, bare: Outcome) -> Outcome:
    """Return the last part of a trial from the files of its ranks, without energy."""
    warnings: list[str] = []
    ranks = Ranks(trial.world_size)
    progress = Progress(launched_t=0.0, now_t=0.0, ranks=ranks)
    try:
        clock = read_step_clock(paths.rank_clock(0))
        parts = filter(None, SidecarReader(paths.sidecar).read_parts(final=True))
        first = next(parts, [])
        launched_t = min((event.t for event in first), default=0.0)
        progress = replace(progress, launched_t=launched_t, now_t=launched_t)
        progress = take_step_clock(progress, clock)
        for event in chain(first, chain.from_iterable(parts)):
            progress = advance(progress, event, trial, lambda _since, _until: None)
    except OSError as error:
        warnings.append(f"{error.filename or paths.run_dir} cannot be read: {error.strerror}")
    begun_t, active_t = progress.training_t, progress.active_t
    whole_s = None if begun_t is None or active_t is None else active_t - begun_t
    time_s = whole_s if progress.reached is None else progress.reached.time_s
    return replace(
        outcome_now(trial, progress, None, bare.status),
        reason=bare.reason,
        reason_code=bare.reason_code,
        finished_at=bare.finished_at,
        startup_s=None,  # torchrun's start is not among the events
        time_s=time_s,
        whole_time_s=whole_s,
        interruptions=progress.ranks.interruptions(begun_t, time_s),
        warnings=tuple(warnings),
    )
