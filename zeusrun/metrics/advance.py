"""How an event changes the progress of a trial. Pure."""

from __future__ import annotations

import math
import operator
from bisect import bisect_left
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from zeusrun.clock import MTIME_S
from zeusrun.metrics.progress import Progress
from zeusrun.metrics.seen import find_doubt, names_an_evaluation, precedes, see
from zeusrun.sidecar import events
from zeusrun.target import better_value, meets_target
from zeusrun.trial import MOST_POINTS, CurvePoint, counts_from_zero, is_baseline, thin_curve
from zeusrun.trial.values import NoisePoint, SyncChange, add_point, count_missing, join_syncs

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.trial import Trial


_FIRST = 4  # points, which show how a loop counts
_OTHERS = 10  # epochs without the metric to remember
_NEAR_FIRST, _NEAR_LAST = 0.25, 0.75  # of the way from the first value to the last one


def advance(
    progress: Progress, event: events.Event, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    """Return the progress after an event; ``trial`` is as dispatched.

    Until a step or a backward pass is seen, training is taken to begin with the loop that asks
    whether to stop, else with the script, or with the launch if nothing marked the script. A start
    that is too early makes a trial dear; one that is too late would make it free.
    """
    if isinstance(event, events.Reported):
        return _report(progress, event, trial, energy_between)
    changes: dict[str, Any]
    if isinstance(event, (events.Started, events.Spawned, events.Ended, events.Regrouped)):
        changes = _take_rank(progress, event)
    elif isinstance(event, events.Built):
        changes = {"built": event.optimizer}
    elif isinstance(event, events.Loading):
        changes = {"loading": True}
    elif isinstance(event, (events.Asked, events.Applied)):
        changes = _take_choice(progress, event)
    elif isinstance(event, events.Hooked):
        others = (hook for hook in progress.hooks if hook.library != event.library)
        changes = {"hooks": (*others, event)}  # a script may make many trainers
    elif isinstance(event, (events.Adapted, events.Synced)):
        changes = _take_change(progress, event)
    elif isinstance(event, (events.Watched, events.Observed, events.LoaderWorkers)):
        changes = _take_sight(progress, event)
    else:  # a schedule changes nothing of it
        changes = {}
    return replace(progress, **changes)


def _take_change(progress: Progress, event: events.Adapted | events.Synced) -> dict[str, Any]:
    """Take in another batch size, or another way to agree."""
    if event.problem is not None:
        return {"problems": (*progress.problems, event.problem)}
    if isinstance(event, events.Adapted):
        return {"adapted": (*progress.adapted, event)}
    change = SyncChange(progress.epochs, event.why, event.how)
    return {"syncs": join_syncs(progress.syncs, [change])}


def _take_sight(
    progress: Progress, event: events.Watched | events.Observed | events.LoaderWorkers
) -> dict[str, Any]:
    """Take in what a rank has seen of its training."""
    if isinstance(event, events.Watched):
        return _watch(progress, event)
    if isinstance(event, events.Observed):
        return {"observed": {**progress.observed, event.rank: event}}
    if event.problem is not None:
        return {}
    others = [each for each in progress.loader_workers if each.t != event.t]
    return {"loader_workers": (*others, event)}


def _take_choice(progress: Progress, event: events.Asked | events.Applied) -> dict[str, Any]:
    """Take in that the script asks for a choice, or what a hook gave last to a place."""
    changes: dict[str, Any] = {"asked": progress.asked | {event.choice}}
    if isinstance(event, events.Applied):
        place, known = (event.choice, event.where), progress.applied
        others = (each for each in known if (each.choice, each.where) != place)
        changes["applied"] = (*others, event)
    elif event.choice == "stop" and progress.script_t and not progress.last_report_t:
        changes["loop_t"] = progress.loop_t or event.t  # restarts are part of the run's cost
    return changes


def _take_rank(
    progress: Progress, event: events.Started | events.Spawned | events.Ended | events.Regrouped
) -> dict[str, Any]:
    """Take in that a rank starts or ends, or that other ranks train."""
    changes: dict[str, Any] = {"ranks": progress.ranks.take(event, progress.epochs)}
    if isinstance(event, events.Started) and event.rank == 0 and progress.script_t is None:
        changes["script_t"] = event.t  # restarts are part of the run's cost
    if isinstance(event, events.Regrouped):
        kept = {rank: each for rank, each in progress.observed.items() if rank in event.members}
        changes["observed"] = {rank: replace(each, samples=None) for rank, each in kept.items()}
    return changes


def _watch(progress: Progress, event: events.Watched) -> dict[str, Any]:
    """Take in statistics of gradients; the noise curve is that of the largest model."""
    before = progress.largest_model
    changes: dict[str, Any] = {"watched": {**progress.watched, (event.rank, event.model): event}}
    low = event.values.get("noise_scale_low")
    data = progress.observed.get(min(progress.observed, default=0))
    if replace(progress, **changes).largest_model is event and low is not None and event.samples:
        earlier = (progress.samples or 0) if _restarted(progress) else progress.restarted_at
        samples, size = earlier + event.samples, None if data is None else data.data
        value, high = (event.values.get(f"noise_scale{name}") for name in ("", "_high"))
        same = before is not None and before.model == event.model
        epoch = samples / size if size else None
        point = NoisePoint(samples, epoch, low, value, high)
        if not all(math.isfinite(each) for each in (low, value, high) if each is not None):
            return changes  # a script can write anything into the sidecar
        changes["noise_curve"] = add_point(progress.noise_curve if same else (), point)
    return changes


def _pass_over(progress: Progress, event: events.Reported, doubt: str | None) -> Progress:
    """Take in a report without the metric, or with a value that does not count.

    A library also reports training losses between evaluations; only an evaluation should have the
    metric. Epoch 0 may come before training.
    """
    progress = progress if doubt is None else replace(progress, doubt=doubt)
    epochs = progress.other_epochs
    if event.epoch == 0 or event.epoch in epochs or len(epochs) >= _OTHERS:
        return progress
    known = event.source != "stdout" and names_an_evaluation(event.metrics)  # lines are a guess
    if doubt is None and event.source != events.REPORT and not known:
        return progress
    return replace(progress, other_epochs=epochs | {event.epoch})


def _compare(progress: Progress, event: events.Reported, metric: str) -> Progress:
    """Decide which of two sources of the metric counts; the other one's values are dropped.

    The values are compared only while each source has one value per epoch.
    """
    value, sources = event.metrics[metric], (event.source, progress.source or "")
    done = progress.reports[-1][1] if progress.reports else 0
    once = max(progress.seen[metric, source].times for source in sources) <= done
    now = progress.curve[-1] if progress.curve else None
    if now is not None and now.epoch == event.epoch and now.value is not None:
        same = math.isclose(now.value, value, rel_tol=1e-5, abs_tol=1e-9)  # some round
        lines = "stdout" in sources  # often rounded, and perhaps a guess
        if once and not same and not lines and progress.differs is None:
            progress = replace(progress, differs=(event.source, value, now.value))
    if not precedes(event.source, progress.source or "", progress.preferred):
        return progress
    # Its values may have another scale, so what was reached by the other ones is open again.
    progress = replace(progress, best_value=None, last_value=None, reached=None, early=None)
    return replace(progress, source=event.source, curve=(), reports=(), by_samples=())


_epoch = operator.attrgetter("epoch")


def _restarted(progress: Progress) -> bool:
    """Whether the ranks have been restarted since the last report of the metric."""
    return progress.ranks.generation > progress.reported_by


def _count_epochs(
    progress: Progress, others: tuple[CurvePoint, ...], point: CurvePoint, number: int
) -> int:
    """Return the epochs completed at a point, which follows others.

    Loops that count from 0 report one epoch less than they have done; the number of reports tells
    them apart from those that count from 1. What a restart trains again does not count twice.
    """
    first = others[0] if others else point
    baseline = is_baseline(first)
    before = bisect_left(progress.earlier, first.epoch)
    first_epochs = (*map(_epoch, others[:_FIRST]), point.epoch)[baseline:]
    from_zero = counts_from_zero((*progress.earlier[: min(before, _FIRST)], *first_epochs))
    epochs = max(point.epoch + from_zero, before + number - baseline)
    return epochs if _restarted(progress) else max(progress.epochs, epochs)


def _renumber(
    progress: Progress, event: events.Reported, trial: Trial
) -> tuple[Progress, events.Reported]:
    """Let the epochs of a training that went on after an interruption go on, too.

    A script may restore its model without its number of epochs, and a count of passes or reports
    begins anew in each process. So numbers from the first one on show nothing; the values do.
    """
    if _restarted(progress) or all(map(is_baseline, progress.curve[-1:])):
        points = [point for point in progress.curve if not is_baseline(point)]
        earlier = trial.curve[
            : bisect_left(trial.curve, points[0].epoch, key=_epoch) if points else None
        ]
        done = [*(point for point in earlier if not is_baseline(point)), *points]
        if done and done[0].epoch >= event.epoch >= min(1, done[0].epoch):
            on = _goes_on(done, event.metrics[trial.metric], trial.mode)
            more = done[-1].epoch + count_missing(done) if on else 0
            unclear = progress.unclear or on is None
            progress = replace(progress, renumbered=more, unclear=unclear)
    if not progress.renumbered:
        return progress, event
    return progress, replace(event, epoch=event.epoch + progress.renumbered)


def _goes_on(done: Sequence[CurvePoint], value: float, mode: str) -> bool | None:
    """Whether a value follows those reported before, not the way to them; ``None`` if unclear."""
    sign = -1.0 if mode == "min" else 1.0
    known = [sign * point.value for point in done if point.value is not None]
    if not known or not math.isfinite(value):
        return None
    gain = known[-1] - known[0]
    noise = max((before - after for before, after in pairwise(known)), default=0.0)
    if gain <= max(0.0, 2 * noise):  # they do not tell its epochs apart
        return False if math.isclose(sign * value, known[0], rel_tol=1e-9) else None
    share = (sign * value - known[0]) / gain
    return share >= _NEAR_LAST if not _NEAR_FIRST < share < _NEAR_LAST else None


def _by_samples(
    progress: Progress, event: events.Reported, trial: Trial, point: CurvePoint
) -> tuple[int | None, int, tuple[CurvePoint, ...]]:
    """Return the samples so far, those before the last restart, and the curve by samples.

    That curve begins with the second report in an epoch; before, the curve by epochs is the same.
    """
    known, done, before = progress.by_samples, progress.samples, progress.restarted_at
    if event.samples is None or event.each_step:
        return done, before, known
    restarted = _restarted(progress)
    if restarted:
        before = done or 0
    samples = before + event.samples
    last = progress.curve[-1] if progress.curve else None
    again = last is not None and last.epoch == event.epoch > 0 and not restarted
    if not known and again and done is not None and samples > done:
        known = tuple(
            each._replace(epoch=round(each.epoch * done / event.epoch)) for each in progress.curve
        )
    if known and samples >= known[-1].epoch:
        complete = known[:-1] if samples == known[-1].epoch else known
        known = thin_curve((*complete, point._replace(epoch=samples)), trial.target, trial.mode)
    return samples, before, known


def _is_trained(progress: Progress, event: events.Reported) -> bool:
    """Whether a step came before a report; what a script reports itself, it says of an epoch."""
    if event.source == events.REPORT and event.epoch > 0:
        return True
    if event.steps or progress.stepping_s is None:
        return bool(event.steps)
    coarse = MTIME_S * (event.source == "stdout" and event.steps is None)
    return event.t >= progress.stepping_s[0] - coarse


def _count_from_first_step(
    progress: Progress, event: events.Reported
) -> tuple[Progress, events.Reported]:
    """Do not count the reports before training where the epochs are only the numbers of reports."""
    if not event.counted:
        return progress, event
    if progress.stepping_s is not None and not _is_trained(progress, event):
        progress = replace(progress, untrained=max(progress.untrained, event.epoch))
        return progress, replace(event, epoch=0)
    if 0 < progress.untrained < event.epoch:
        event = replace(event, epoch=event.epoch - progress.untrained)
    return progress, event


def _judge(
    progress: Progress, event: events.Reported, trial: Trial, point: CurvePoint
) -> tuple[CurvePoint | None, CurvePoint | None]:
    """Return what has met the target, and what has met it while no step was seen."""
    reached, early = progress.reached, progress.early
    if event.each_step:  # what has met it before, a single batch has met
        return None, None
    value = event.metrics[trial.metric]
    if reached is not None or not meets_target(value, trial.target, trial.mode):
        return reached, early
    if _is_trained(progress, event):
        return point, None
    # A model that is not trained proves nothing.
    return None, early or (point if event.epoch > 0 and progress.steps is None else None)


def _find_doubt(progress: Progress, event: events.Reported, trial: Trial) -> str | None:
    if event.each_step or progress.reached is not None:
        return None
    return find_doubt(event.metrics[trial.metric], trial, progress.known, progress.best_value)


def _changed(progress: Progress, **changes: object) -> Progress:
    """Do what ``replace`` does, in a tenth of the time: a script may report a million times."""
    changed = object.__new__(Progress)
    vars(changed).update(vars(progress), **changes)
    return changed


def _report(
    progress: Progress, event: events.Reported, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    marks = progress.training_t, progress.loop_t, progress.script_t
    begun = next((t for t in marks if t is not None), progress.launched_t)
    seen = see(progress.seen, event, trial.metric)
    progress = _changed(progress, training_t=begun, seen=seen, last_report_t=event.t)
    value = event.metrics.get(trial.metric)
    doubt = None if value is None else _find_doubt(progress, event, trial)
    if value is None or doubt is not None:
        return _pass_over(progress, event, doubt)
    if progress.source is None:
        progress = replace(progress, source=event.source)
    elif event.source != progress.source:
        progress = _compare(progress, event, trial.metric)
        if progress.source != event.source:
            return progress
    progress, event = _count_from_first_step(progress, event)
    progress, event = _renumber(progress, event, trial)
    time_s = max(0.0, event.t - begun)  # a plugin may use another clock
    last = progress.curve[-1].epoch if progress.curve else 0
    if event.epoch < last and not progress.ranks.generation and progress.went_back is None:
        progress = replace(progress, went_back=(last, event.epoch))
    # A restart, or a second value of an epoch, replaces points.
    kept = bisect_left(progress.curve, event.epoch, key=_epoch)
    others, reports = progress.curve[:kept], progress.reports[:kept]
    number = reports[-1][1] + 1 if reports else 1
    untrained = _restarted(progress) and event.epoch == 0 and progress.curve[:1]
    if untrained and is_baseline(untrained[0]):
        return progress  # its evaluation, once more: the next report shows where it goes on
    epochs = _count_epochs(progress, others, CurvePoint(event.epoch, time_s, None, None), number)
    finite = value if math.isfinite(value) else None
    point = CurvePoint(event.epoch, time_s, energy_between(begun, begun + time_s), finite)
    samples, before, by_samples = _by_samples(progress, event, trial, point)
    reached, early = _judge(progress, event, trial, point._replace(epoch=epochs))
    met, at_target = reached or early, progress.at_target
    if met is not None and met != (progress.reached or progress.early):
        # The ranks count from 0 again after a restart.
        steps = None if progress.ranks.generation else event.steps
        at_target = steps, None if event.samples is None else samples
    # "+" copies once, a display with "*" twice.
    curve, reports = others + (point,), reports + ((event.t, number),)  # noqa: RUF005
    if len(curve) > MOST_POINTS:
        full, curve = curve, thin_curve(curve, trial.target, trial.mode)
        stay = set(map(_epoch, curve))
        reports = tuple(r for r, each in zip(reports, full, strict=True) if each.epoch in stay)
    return _changed(
        progress,
        epochs=epochs,
        reported_by=progress.ranks.generation,
        curve=curve,
        reports=reports,
        samples=samples,
        restarted_at=before,
        by_samples=by_samples,
        last_value=value,
        best_value=better_value(value, progress.best_value, trial.mode),
        reached=reached,
        early=early,
        at_target=at_target,
        counted=event.counted,
    )
