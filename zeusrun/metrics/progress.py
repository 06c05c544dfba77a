"""How far a running trial is: a frozen value, and how an event changes it. Pure."""

from __future__ import annotations

import math
import operator
import statistics
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.clock import MTIME_S
from zeusrun.metrics.ranks import Ranks
from zeusrun.metrics.seen import CONTROLLING, Seen, names_an_evaluation, precedes, see
from zeusrun.sidecar.events import (
    REPORT,
    Adapted,
    Applied,
    Asked,
    Ended,
    Hooked,
    Loading,
    Observed,
    Reported,
    Spawned,
    Started,
    Watched,
)
from zeusrun.target import better_value, meets_target
from zeusrun.trial import (
    MOST_POINTS,
    CurvePoint,
    SizeChange,
    counts_from_zero,
    is_baseline,
    join_changes,
    thin_curve,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Trial

    EnergyBetween: TypeAlias = Callable[[float, float], float | None]


_FIRST = 4  # points, which show how a loop counts
_OTHERS = 10  # epochs without the metric to remember
_STEP_TIMES = 64  # after that many samples the median hardly moves


@dataclass(frozen=True)
class Progress:
    """A trial at monotonic second ``now_t``; ``None`` for what is unknown or not there yet."""

    launched_t: float  # when torchrun was started
    now_t: float
    counted_t: float | None = None  # time, energy and cost count up to here; ``None``: ``now_t``
    script_t: float | None = None  # when rank 0 began to run the script
    loading: bool = False  # whether the script has asked a data loader for its first batch
    training_t: float | None = None  # the start of the first step, else of the script
    steps: int | None = None  # of rank 0
    stepping_s: tuple[float, float] | None = None  # ends of the first and of the last step
    step_times_s: tuple[float, ...] = ()  # each a mean between two samples
    epochs: int = 0  # completed; since a restart, only those that its way to here has
    reported_by: int = 0  # the generation of ranks that made the last report of the metric
    curve: tuple[CurvePoint, ...] = ()  # the metric after every epoch; a long one is thinned
    # When each point was reported, and its number among all reports that count.
    reports: tuple[tuple[float, int], ...] = ()
    last_report_t: float | None = None  # of any metric
    seen: Mapping[tuple[str, str], Seen] = field(default_factory=dict)  # by name and source
    source: str | None = None  # whose values of the metric count
    preferred: str | None = None  # the source that the job file names
    replaced: int | None = None  # the batch size in whose place a hook hands out the chosen one
    differs: tuple[str, float, float] | None = (
        None  # another source, its value, the value that counts
    )
    went_back: tuple[int, int] | None = None  # epochs, where no restart explains it
    other_epochs: frozenset[int] = frozenset()  # the first ones without the metric
    last_value: float | None = None  # NaN and infinities included
    best_value: float | None = None  # finite
    reached: CurvePoint | None = None  # the point that first met the target
    ranks: Ranks = Ranks()  # noqa: RUF009 - a frozen value
    energy_j: float | None = None  # since training began
    power_w: float | None = None  # now, summed over devices
    cost_j: float | None = None  # so far
    price: float | None = None  # as of about a second ago, in ``currency``
    currency: str | None = None
    power_limit_w: float | None = None  # held now, per GPU; ``None`` for the original one
    probing: bool = False  # whether it is held only to be measured
    earlier: tuple[int, ...] = ()  # epochs reported before a preemption
    asked: frozenset[str] = frozenset()  # choices that the script has asked for
    hooks: tuple[Hooked, ...] = ()  # the libraries that zeusrun knows and the script has imported
    applied: tuple[Applied, ...] = ()  # what hooks gave to data loaders and optimizers
    observed: Mapping[int, Observed] = field(default_factory=dict)  # the newest, by rank
    watched: Mapping[tuple[int, int], Watched] = field(
        default_factory=dict
    )  # the newest, by rank and model
    adapted: tuple[Adapted, ...] = ()  # the batch sizes of a training that adapts it
    problems: tuple[str, ...] = ()  # of its policy
    ending: bool = False  # a stop is ordered, or the last epoch is done

    @property
    def seen_metrics(self) -> frozenset[str]:
        """The names of all metrics that were reported."""
        return frozenset(name for name, _ in self.seen)

    @property
    def statistics(self) -> Mapping[str, float]:
        """The newest statistics of gradients, by name, of the largest model."""
        largest = self._largest_model
        return {} if largest is None else largest.values

    @property
    def unapplied(self) -> int | None:
        """The script's own batch size, where a hook found no data loader to hand the chosen one."""
        found = any(applied.choice == "batch_size" for applied in self.applied)
        return self.replaced if self.steps and not found else None

    @property
    def gradients_of(self) -> str | None:
        """How the statistics of gradients are measured; ``None`` without any."""
        largest = self._largest_model
        return None if largest is None or not largest.values else largest.how

    @property
    def _largest_model(self) -> Watched | None:
        return max(
            self.watched.values(), key=lambda each: (each.parameters, each.model), default=None
        )

    @property
    def batch_sizes(self) -> tuple[SizeChange, ...]:
        """The batch sizes of a training that adapts it, the present one last; else empty."""
        return join_changes((), [SizeChange(each.epoch, each.batch_size) for each in self.adapted])

    @property
    def listens(self) -> bool:
        """Whether the training can end by itself when zeusrun asks it to.

        A script that reports by itself should ask; one whose metric is read somewhere else may.
        """
        controlled = self.source in CONTROLLING and not self.ranks.is_grown
        return "stop" in self.asked or self.source in {None, REPORT} or controlled

    @property
    def guesses(self) -> bool:
        """Whether the metric is read from lines that nobody has named: a report may follow."""
        return self.source == "stdout" and self.preferred == "auto"

    @property
    def time_s(self) -> float | None:
        """Seconds of training so far; ``None`` before it began."""
        until_t = self.now_t if self.counted_t is None else self.counted_t
        return None if self.training_t is None else max(0.0, until_t - self.training_t)

    @property
    def active_t(self) -> float | None:
        """When the training last showed itself, by a step or a report; ``None`` before it began."""
        if self.training_t is None:
            return None
        last_step_t = None if self.stepping_s is None else self.stepping_s[1]
        return max(t for t in (self.training_t, last_step_t, self.last_report_t) if t is not None)

    @property
    def may_be_baseline(self) -> bool:
        """Whether all that was reported may be an evaluation before training."""
        return self.steps is None and all(point.epoch == 0 for point in self.curve)

    @property
    def startup_s(self) -> float | None:
        """Seconds from launch to the start of training; ``None`` where nothing marked it."""
        if self.training_t is None or self.training_t == self.launched_t:
            return None
        return self.training_t - self.launched_t


def take_time(progress: Progress, now_t: float) -> Progress:
    """Return the progress at ``now_t``.

    In a run that is ending, time, energy and cost stop where the outcome stops counting: at the
    target, else at the last step or report. They never decrease.
    """
    until_t = now_t
    if progress.reached is not None and progress.training_t is not None:
        until_t = progress.training_t + progress.reached.time_s
    elif progress.ending and progress.active_t is not None:
        until_t = progress.active_t
    before_t = progress.now_t if progress.counted_t is None else progress.counted_t
    return replace(progress, now_t=now_t, counted_t=max(until_t, before_t))


def take_step_clock(progress: Progress, count: StepCount | None) -> Progress:
    """Take in rank 0's step clock: training begins with its first step.

    The clock shows when a step ended. Its start is estimated: one median step time earlier, but not
    before the script began. Otherwise a long first step would be free, and large batch sizes, which
    have few steps, would look cheap.
    """
    if count is None:
        return progress
    times_s = progress.step_times_s
    done = 1 if progress.steps is None else progress.steps
    since_t = count.first_step_t if progress.stepping_s is None else progress.stepping_s[1]
    if count.steps > done and count.last_step_t > since_t and len(times_s) < _STEP_TIMES:
        times_s = (*times_s, (count.last_step_t - since_t) / (count.steps - done))
    stepping_s = (count.first_step_t, count.last_step_t)
    seen = replace(progress, steps=count.steps, stepping_s=stepping_s, step_times_s=times_s)
    if (at := progress.reached) and progress.stepping_s is None and progress.source == "stdout":
        reached_t = (progress.training_t or 0.0) + at.time_s  # perhaps before training
        seen = replace(seen, reached=at if reached_t >= count.first_step_t - MTIME_S else None)
    step_s = statistics.median(times_s) if times_s else 0.0
    earliest_t = progress.launched_t if progress.script_t is None else progress.script_t
    # What was reported before the first step ended came before training.
    before_t = [t for t, _ in progress.reports if t < count.first_step_t]
    return _begin(seen, max(earliest_t, *before_t, count.first_step_t - step_s))


def _begin(progress: Progress, training_t: float) -> Progress:
    """Return the progress of a training that is now known to have begun at a moment."""
    if training_t == progress.training_t:
        return progress
    times_s = [max(0.0, t - training_t) for t, _ in progress.reports]
    points = zip(progress.curve, times_s, strict=True)
    # Its joules are read again when the run is over.
    curve = tuple(
        point if point.time_s == time_s else point._replace(time_s=time_s, energy_j=None)
        for point, time_s in points
    )
    epochs, reached = progress.epochs, progress.reached
    if curve and is_baseline(curve[0]) and not is_baseline(progress.curve[0]):
        epochs = max(epochs - 1, *(point.epoch for point in curve))
    if reached is not None and progress.training_t is not None:
        time_s = max(0.0, reached.time_s + progress.training_t - training_t)
        reached = reached._replace(time_s=time_s)
    return replace(progress, training_t=training_t, curve=curve, epochs=epochs, reached=reached)


def advance(
    progress: Progress, event: Event, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    """Return the progress after an event; ``trial`` is as dispatched.

    Until an optimizer step is seen, training is taken to begin with the script, or with the launch
    if nothing marked the script. A start that is too early makes a trial dear; one that is too late
    would make it free.
    """
    if isinstance(event, Reported):
        return _report(progress, event, trial, energy_between)
    changes: dict[str, Any]
    if isinstance(event, Started):
        first = event.rank == 0 and progress.script_t is None  # restarts are part of the run's cost
        begun_t = event.t if first else progress.script_t
        changes = {"script_t": begun_t, "ranks": progress.ranks.take(event, progress.epochs)}
    elif isinstance(event, (Spawned, Ended)):
        changes = {"ranks": progress.ranks.take(event)}
    elif isinstance(event, Loading):
        changes = {"loading": True}
    elif isinstance(event, (Asked, Applied)):
        applied = (*progress.applied, event) if isinstance(event, Applied) else progress.applied
        changes = {"applied": applied, "asked": progress.asked | {event.choice}}
    elif isinstance(event, Hooked):
        others = (hook for hook in progress.hooks if hook.library != event.library)
        changes = {"hooks": (*others, event)}  # a script may make many trainers
    elif isinstance(event, Adapted) and event.problem is not None:
        changes = {"problems": (*progress.problems, event.problem)}
    elif isinstance(event, Adapted):
        changes = {"adapted": (*progress.adapted, event)}
    elif isinstance(event, Watched):
        changes = {"watched": {**progress.watched, (event.rank, event.model): event}}
    else:
        changes = {"observed": {**progress.observed, event.rank: event}}
    return replace(progress, **changes)


def _pass_over(progress: Progress, event: Reported) -> Progress:
    """Take in a report without the metric.

    A library also reports training losses between evaluations; only an evaluation should have the
    metric. Epoch 0 may come before training.
    """
    epochs = progress.other_epochs
    if event.epoch == 0 or event.epoch in epochs or len(epochs) >= _OTHERS:
        return progress
    known = event.source != "stdout" and names_an_evaluation(event.metrics)  # lines are a guess
    if event.source != REPORT and not known:
        return progress
    return replace(progress, other_epochs=epochs | {event.epoch})


def _compare(progress: Progress, event: Reported, metric: str) -> Progress:
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
    progress = replace(progress, best_value=None, last_value=None, reached=None)
    return replace(progress, source=event.source, curve=(), reports=())


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
    told = (*map(_epoch, others[:_FIRST]), point.epoch)[baseline:]
    from_zero = counts_from_zero((*progress.earlier[: min(before, _FIRST)], *told))
    epochs = max(point.epoch + from_zero, before + number - baseline)
    return epochs if _restarted(progress) else max(progress.epochs, epochs)


def _changed(progress: Progress, **changes: object) -> Progress:
    """Do what ``replace`` does, in a tenth of the time: a script may report a million times."""
    changed = object.__new__(Progress)
    vars(changed).update(vars(progress), **changes)
    return changed


def _report(
    progress: Progress, event: Reported, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    begun = progress.training_t
    if begun is None:
        begun = progress.launched_t if progress.script_t is None else progress.script_t
    seen = see(progress.seen, event, trial.metric)
    progress = _changed(progress, training_t=begun, seen=seen, last_report_t=event.t)
    value = event.metrics.get(trial.metric)
    if value is None:
        return _pass_over(progress, event)
    if progress.source is None:
        progress = replace(progress, source=event.source)
    elif event.source != progress.source:
        progress = _compare(progress, event, trial.metric)
        if progress.source != event.source:
            return progress
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
    reached = progress.reached
    stepping_s, printed = progress.stepping_s, event.source == "stdout"
    trained = event.epoch > 0 and not (printed and stepping_s)
    # A model that is not trained proves nothing.
    trained |= stepping_s is not None and event.t >= stepping_s[0] - MTIME_S * printed
    result = trained and not event.each_step
    if reached is None and result and meets_target(value, trial.target, trial.mode):
        reached = point._replace(epoch=epochs)
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
        last_value=value,
        best_value=better_value(value, progress.best_value, trial.mode),
        reached=reached,
    )
