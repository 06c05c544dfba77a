"""How far a running trial is: a frozen value, how time changes it, and its summary. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.metrics.seen import CONTROLLING, Ranks, Seen, describe_steps, find_batch_size
from zeusrun.sidecar.events import (
    REPORT,
    Adapted,
    Applied,
    Hooked,
    LoaderWorkers,
    Observed,
    Watched,
)
from zeusrun.trial import CurvePoint, SizeChange, is_baseline, join_changes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.metrics.seen import Known, SeenMetrics
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial.values import NoisePoint, SyncChange, WorldChange

    EnergyBetween: TypeAlias = Callable[[float, float], float | None]

_STEP_TIMES = 64  # after that many samples the median hardly moves


@dataclass(frozen=True)
class Progress:
    """A trial at monotonic second ``now_t``; ``None`` for what is unknown or not there yet."""

    launched_t: float  # when torchrun was started
    now_t: float
    counted_t: float | None = None  # time, energy and cost count up to here; ``None``: ``now_t``
    script_t: float | None = None  # when rank 0 began to run the script
    loading: bool = False  # whether the script has asked a data loader for its first batch
    built: str | None = None  # the class of its first torch optimizer
    loop_t: float | None = None  # when it asked, before any report, whether to stop
    training_t: float | None = None  # the start of the first step, else of the loop or the script
    steps: int | None = None  # of rank 0
    backwards: int = 0  # of a training without an optimizer of torch: its backward passes
    passes: int = 0  # over the loader that feeds them
    others: int = 0  # over other loaders
    # Ends of the first and of the last step; without an optimizer of torch, of backward passes.
    stepping_s: tuple[float, float] | None = None
    step_times_s: tuple[float, ...] = ()  # each a mean between two samples
    # See ``StepCount.waits_s``; up to the target. ``None``: no loader feeds the steps.
    waits_s: tuple[float | None, float | None] = (None, None)
    epochs: int = 0  # completed; since a restart, only those that its way to here has
    reported_by: int = 0  # the generation of ranks that made the last report of the metric
    counted: bool = False  # whether the epochs are only the numbers of the reports
    untrained: int = 0  # the reports that were counted before training
    curve: tuple[CurvePoint, ...] = ()  # the metric after every epoch; a long one is thinned
    samples: int | None = None  # that the optimizer consumed before the last report
    restarted_at: int = 0  # those before the last restart of the ranks
    renumbered: int = 0  # epochs done where the script's own numbers began at 1 again
    unclear: bool = False  # whether it began anew there, or went on, is unknown
    # Of a training that reports the metric within epochs: the curve with samples for epochs.
    by_samples: tuple[CurvePoint, ...] = ()
    reports: tuple[tuple[float, int], ...] = ()  # when, and its number among those that count
    last_report_t: float | None = None  # of any metric
    seen: SeenMetrics = field(default_factory=dict)  # by name and source
    source: str | None = None  # whose values of the metric count
    preferred: str | None = None  # the source that the job file names
    replaced: int | None = None  # the batch size in whose place a hook hands out the chosen one
    differs: tuple[str, float, float] | None = None  # another source, its value, that which counts
    went_back: tuple[int, int] | None = None  # epochs, where no restart explains it
    other_epochs: frozenset[int] = frozenset()  # the first ones without the metric
    last_value: float | None = None  # NaN and infinities included
    best_value: float | None = None  # finite
    known: Known | None = None  # the values of earlier runs
    begins_at: int | None = None  # the first epoch of all of them
    doubt: str | None = None  # why the newest value that met the target does not count
    reached: CurvePoint | None = None  # the point that first met the target
    early: CurvePoint | None = None  # that point while no step is seen: ``settle``
    at_target: tuple[int | None, int | None] = (None, None)  # steps and samples at that point
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
    # The newest, by rank and model.
    watched: Mapping[tuple[int, int], Watched] = field(default_factory=dict)
    noise_curve: tuple[NoisePoint, ...] = ()
    adapted: tuple[Adapted, ...] = ()  # the batch sizes of a training that adapts it
    syncs: tuple[SyncChange, ...] = ()  # of one whose ranks change how they agree
    loader_workers: tuple[LoaderWorkers, ...] = ()  # the newest of each moment
    problems: tuple[str, ...] = ()  # of the policy, or of how the ranks agree
    ending: bool = False  # a stop is ordered, or the last epoch is done

    @property
    def seen_metrics(self) -> frozenset[str]:
        """The names of all metrics that were reported."""
        return frozenset(name for name, _ in self.seen)

    @property
    def unapplied(self) -> bool:
        """Whether a hook was to hand out the batch size, and nothing that trains has taken it."""
        places = {each.where for each in self.applied if each.choice == "batch_size"}
        ended = len(self.reports) > 1 or self.ranks.scripts_ended
        unseen = ended and self.steps is None and self.built is None
        return self.replaced is not None and ("" in places or (unseen and not places))

    @property
    def largest_model(self) -> Watched | None:
        """The newest statistics of gradients of the largest model; of equal ones, the newest."""
        watched = self.watched.values()
        return max(watched, key=lambda each: (each.parameters, each.model), default=None)

    @property
    def gradients_of(self) -> str | None:
        """How the gradients of the largest model are measured; ``None`` without a result."""
        largest = self.largest_model
        return largest.how if largest and (largest.values or self.noise_curve) else None

    @property
    def gradient_variance(self) -> float | None:
        """The newest variance of a gradient of the largest model; ``None`` if unknown."""
        largest = self.largest_model
        variance = None if largest is None else largest.values.get("gradient_variance")
        return variance if variance is not None and math.isfinite(variance) else None

    def is_beyond(self, before: Progress) -> bool:
        """Whether an epoch, or a report within one, has come since."""
        return self.epochs > before.epochs or self.by_samples != before.by_samples

    @property
    def by_reports(self) -> bool:
        """Whether its epochs are only numbers of reports, of a training with optimizer steps."""
        return bool(self.counted and (self.steps or self.awaits_step or self.ranks.spawned))

    def has_done(self, epochs: int) -> bool:
        """Whether so many epochs are completed; numbers of reports show none."""
        return self.epochs - self.renumbered >= epochs and not self.by_reports

    @property
    def batch_sizes(self) -> tuple[SizeChange, ...]:
        """The batch sizes of a training that adapts it, the present one last; else empty."""
        return join_changes((), [SizeChange(each.epoch, each.batch_size) for each in self.adapted])

    @property
    def world_sizes(self) -> tuple[WorldChange, ...]:
        """The numbers of ranks of an elastic training that has changed it; else empty."""
        return self.ranks.world_sizes(self.training_t)

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
        if self.training_t is None or self.awaits_step:
            return None
        return max(0.0, until_t - self.training_t)

    @property
    def active_t(self) -> float | None:
        """When the training last showed itself, by a step or a report; ``None`` before it began."""
        if self.training_t is None:
            return None
        last_step_t = None if self.stepping_s is None else self.stepping_s[1]
        return max(t for t in (self.training_t, last_step_t, self.last_report_t) if t is not None)

    @property
    def awaits_step(self) -> bool:
        """Whether the training has not begun: its optimizer is there, and its steps are seen."""
        unseen = any(not each.followed for each in self.ranks.spawned.values())
        return self.built is not None and self.steps is None and not unseen

    @property
    def may_have_reached(self) -> bool:
        """Whether the target is met, if it turns out that no steps are seen: see ``settle``."""
        return self.early is not None and self.steps is None

    @property
    def may_be_baseline(self) -> bool:
        """Whether all that was reported may be an evaluation before training."""
        untold = self.awaits_step and self.source != REPORT
        return self.steps is None and (untold or all(point.epoch == 0 for point in self.curve))

    @property
    def startup_s(self) -> float | None:
        """Seconds from launch to the start of training; ``None`` where nothing marked it."""
        if self.training_t is None or self.training_t == self.launched_t:
            return None
        return self.training_t - self.launched_t


def take_time(progress: Progress, now_t: float) -> Progress:
    """Return the progress at ``now_t``.

    Time, energy and cost stop where the outcome stops counting: at the target, else at the last
    step or report. Where steps are not seen, they go on until the run is ending. They never
    decrease.
    """
    until_t = now_t
    if progress.reached is not None and progress.training_t is not None:
        until_t = progress.training_t + progress.reached.time_s
    elif progress.active_t is not None and (progress.ending or progress.stepping_s is not None):
        until_t = progress.active_t
    before_t = progress.now_t if progress.counted_t is None else progress.counted_t
    return replace(progress, now_t=now_t, counted_t=max(until_t, before_t))


def settle(progress: Progress, *, final: bool = False, resumed: bool = False) -> Progress:
    """Let the target be met without a step, where steps are not seen: without torch's optimizers.

    The second report shows that, or the end of the script. One that is ``resumed`` has trained
    before its preemption, so at its end, it may have evaluated only.
    """
    once = len(progress.reports) == 1 and not progress.by_samples
    waits = (progress.awaits_step and not (final and resumed)) or (once and not final)
    if progress.reached is not None or not progress.may_have_reached or waits:
        return progress
    return replace(progress, reached=progress.early)


def take_step_clock(progress: Progress, count: StepCount | None) -> Progress:
    """Take in rank 0's step clock: training begins with its first step.

    Without an optimizer of torch, it begins with the first backward pass.
    The clock shows when a step ended. Its start is estimated: one median step time earlier, but not
    before the script began. Otherwise a long first step would be free, and large batch sizes, which
    have few steps, would look cheap.
    """
    if count is None:
        return progress
    times_s, done, since_t = progress.step_times_s, 1, count.first_step_t
    if progress.stepping_s is None or (count.steps and progress.steps is None):
        progress, times_s = _forget_untrained(progress), ()
    else:
        done, since_t = progress.steps or progress.backwards, progress.stepping_s[1]
    now = count.steps or count.uncounted
    if now > done and count.last_step_t > since_t and len(times_s) < _STEP_TIMES:
        times_s = (*times_s, (count.last_step_t - since_t) / (now - done))
    stepping_s = (count.first_step_t, count.last_step_t)
    seen = replace(
        progress,
        steps=count.steps or None,
        backwards=0 if count.steps else count.uncounted,
        stepping_s=stepping_s,
        step_times_s=times_s,
        passes=count.passes,
        others=count.others,
        waits_s=progress.waits_s if progress.reached or not count.passes else count.waits_s,
    )
    step_s = statistics.median(times_s) if times_s else 0.0
    earliest_t = progress.launched_t if progress.script_t is None else progress.script_t
    # What was reported before the first step ended came before training.
    before_t = [t for t, _ in progress.reports if t < count.first_step_t]
    return _begin(seen, max(earliest_t, *before_t, count.first_step_t - step_s))


def _forget_untrained(progress: Progress) -> Progress:
    """Return the progress at the first step: what was met before, an untrained model has met.

    Reports whose epochs were only counted are one evaluation before training.
    """
    if progress.early is not None:
        progress = replace(progress, early=None, reached=None)
    if not progress.counted or not progress.curve:
        return progress
    last, (t, _) = progress.curve[-1], progress.reports[-1]
    return replace(
        progress,
        untrained=last.epoch,
        epochs=0,
        curve=(last._replace(epoch=0),),
        reports=((t, 1),),
        samples=None,
        by_samples=(),
    )


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
    epochs, reached, by_samples = progress.epochs, progress.reached, progress.by_samples
    if progress.training_t is not None:
        later_s = progress.training_t - training_t
        by_samples = tuple(
            point._replace(time_s=max(0.0, point.time_s + later_s), energy_j=None)
            for point in by_samples
        )
        if reached is not None:
            reached = reached._replace(time_s=max(0.0, reached.time_s + later_s))
    if curve and is_baseline(curve[0]) and not is_baseline(progress.curve[0]):
        epochs = max(epochs - 1, *(point.epoch for point in curve))
    return replace(
        progress,
        training_t=training_t,
        curve=curve,
        epochs=epochs,
        reached=reached,
        by_samples=by_samples,
    )


@dataclass(frozen=True)
class TrainingSummary:
    """The summary of a training that ``show`` and ``metrics`` print."""

    source: str | None  # whose values of the job's metric count; ``None`` before the first one
    metrics: tuple[tuple[str, str, Seen], ...]  # name, source, values
    libraries: tuple[tuple[str, str, str | None], ...]  # name, version, why the hook does not fit
    batch_size: int | None  # samples per optimizer step; ``None`` if not observed
    steps: str | None  # what they are made of, such as ``2 ranks x 16``
    learning_rates: tuple[float, ...]  # of the parameter groups of rank 0's optimizer
    applied: tuple[str, ...]  # what hooks replaced, one sentence each

    @classmethod
    def of(cls, progress: Progress) -> TrainingSummary:
        """Summarise the progress of a training."""
        numbers = progress.ranks.members or sorted(progress.observed)
        observed = [seen for each in numbers if (seen := progress.observed.get(each)) is not None]
        size = find_batch_size(progress.observed, progress.ranks)
        return cls(
            progress.source,
            # The metric of an earlier part has no times, and no values.
            tuple((*key, seen) for key, seen in sorted(progress.seen.items()) if seen.times),
            tuple((hook.library, hook.version, hook.problem) for hook in progress.hooks),
            size,
            describe_steps(observed) if size is not None else None,
            observed[0].learning_rates if observed else (),
            tuple(applied.describe() for applied in progress.applied),
        )

    def to_json(self) -> dict[str, Any]:
        """Return the fields as JSON."""
        rows = [[name, source, *seen] for name, source, seen in self.metrics]
        return {**asdict(self), "metrics": rows}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> TrainingSummary:
        """Read the fields from JSON.

        A script can write anything into the file: raises ``TypeError``, ``LookupError``,
        ``ValueError`` or ``OverflowError`` for another content.
        """
        size = record["batch_size"]
        return cls(
            _text(record["source"]),
            tuple(
                (str(name), str(source), _read_seen(*values))
                for name, source, *values in record["metrics"]
            ),
            tuple(
                (str(name), str(version), _text(problem))
                for name, version, problem in record["libraries"]
            ),
            None if size is None else int(size),
            _text(record["steps"]),
            tuple(map(float, record["learning_rates"])),
            tuple(map(str, record["applied"])),
        )


def _read_seen(*values: float) -> Seen:
    first, last, times, low, high, parts, each_step = values
    ends = float(low), float(high)
    return Seen(float(first), float(last), int(times), *ends, int(parts), bool(each_step))


def _text(value: object) -> str | None:
    return None if value is None else str(value)
