"""How far a running trial is: a frozen value, and how an event changes it. Pure."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.sidecar.events import Asked, Ended, Reported, Started
from zeusrun.target import better_value, meets_target
from zeusrun.trial import CurvePoint, is_baseline

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount
    from zeusrun.trial import Trial

    EnergyBetween: TypeAlias = Callable[[float, float], float | None]


_OTHERS = 10  # epochs without the metric to remember
_STEP_TIMES = 64  # after that many samples the median hardly moves


@dataclass(frozen=True)
class Ranks:
    """One generation of workers: the ranks that torchrun has started together. Iterates over them.

    Attributes:
        world_size: How many there are.
        generation: How often torchrun has restarted them.
        exit_codes: Of the ranks whose script has ended, in the order in which they ended.
        alone: Those of them that never joined a process group.
    """

    world_size: int = 1
    generation: int = 0
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    alone: frozenset[int] = frozenset()

    def __iter__(self) -> Iterator[int]:
        """Iterate over the ranks."""
        return iter(range(self.world_size))

    @property
    def scripts_ended(self) -> bool:
        """Whether the script of every rank has ended with exit code 0."""
        return all(self.exit_codes.get(rank) == 0 for rank in self)

    @property
    def all_alone(self) -> bool:
        """Whether every one of several ranks ended its script without a process group."""
        return self.world_size > 1 and self.scripts_ended and len(self.alone) == self.world_size

    def take(self, event: Started | Ended) -> Ranks:
        """Return the ranks after one of them has started or has ended its script."""
        if isinstance(event, Ended):
            codes = {**self.exit_codes, event.rank: event.code}
            alone = self.alone - {event.rank} if event.grouped else self.alone | {event.rank}
            return replace(self, exit_codes=codes, alone=alone)
        codes = {rank: code for rank, code in self.exit_codes.items() if rank != event.rank}
        return replace(self, exit_codes=codes, generation=max(self.generation, event.restart))


@dataclass(frozen=True)
class Progress:
    """A trial at monotonic second ``now_t``.

    Attributes:
        launched_t: When torchrun was started.
        now_t: The moment described.
        script_t: When rank 0 began to run the script.
        training_t: When training began: at the start of the first optimizer step, else with the
            script; ``None`` until then.
        steps: Optimizer steps of rank 0.
        stepping_s: Monotonic seconds of the ends of the first and of the last of them; ``None``
            before one.
        step_times_s: Seconds a step took, each a mean between two looks at the step clock.
        epochs: Epochs completed.
        curve: The metric after every epoch.
        reported_t: When each point of the curve was reported.
        last_report_t: When anything was reported last; ``None`` before.
        seen_metrics: Names of every metric reported.
        other_epochs: The first epochs that were reported without the metric.
        last_value: The metric as last reported, NaN and infinities included.
        best_value: Its best finite value.
        reached: The curve point that first met the target.
        ranks: The workers as they are now.
        energy_j: Joules since training began; ``None`` if unknown.
        power_w: Watts now, summed over devices; ``None`` if unknown.
        cost_j: Cost so far; ``None`` if unknown.
        power_limit_w: Watts per GPU that are held now; ``None`` while the limit is as found.
        probing: Whether they are held only to be measured.
        earlier: Epochs reported before the trial was preempted.
    """

    launched_t: float
    now_t: float
    script_t: float | None = None
    training_t: float | None = None
    steps: int | None = None
    stepping_s: tuple[float, float] | None = None
    step_times_s: tuple[float, ...] = ()
    epochs: int = 0
    curve: tuple[CurvePoint, ...] = ()
    reported_t: tuple[float, ...] = ()
    last_report_t: float | None = None
    seen_metrics: frozenset[str] = frozenset()
    other_epochs: frozenset[int] = frozenset()
    last_value: float | None = None
    best_value: float | None = None
    reached: CurvePoint | None = None
    ranks: Ranks = Ranks()
    energy_j: float | None = None
    power_w: float | None = None
    cost_j: float | None = None
    power_limit_w: float | None = None
    probing: bool = False
    earlier: tuple[int, ...] = ()
    asked: frozenset[str] = frozenset()

    @property
    def time_s(self) -> float | None:
        """Seconds of training so far; ``None`` before it began."""
        return None if self.training_t is None else max(0.0, self.now_t - self.training_t)

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


def take_step_clock(progress: Progress, count: StepCount | None) -> Progress:
    """Take in rank 0's step clock: training begins with its first step.

    The clock shows when a step ended. Its start is taken to be the median step time earlier, but
    not before the script began: otherwise a first step that is long would be free, and large batch
    sizes, which have few steps, would look cheap.
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
    step_s = statistics.median(times_s) if times_s else 0.0
    earliest_t = progress.launched_t if progress.script_t is None else progress.script_t
    # What was reported before the first step ended came before training.
    before_t = [t for t in progress.reported_t if t < count.first_step_t]
    return _begin(seen, max(earliest_t, *before_t, count.first_step_t - step_s))


def _begin(progress: Progress, training_t: float) -> Progress:
    """Return the progress of a training that is now known to have begun at a moment."""
    if training_t == progress.training_t:
        return progress
    times_s = [max(0.0, t - training_t) for t in progress.reported_t]
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


def never_less(before: Progress, now: Progress, energy_j: float | None) -> float | None:
    """Return live energy that does not fall: an extrapolation may have been too high.

    It falls where the first step shows that training began later than was thought. Live time and
    cost go on after the last report: until the run ends, nobody knows that it was the last.

    Args:
        before: At the last look.
        now: At this one.
        energy_j: Joules since training began, as metered by now; ``None`` if unknown.
    """
    first_step = before.stepping_s is None and now.stepping_s is not None
    if energy_j is None or before.energy_j is None or first_step:
        return energy_j
    return max(energy_j, before.energy_j)


def advance(
    progress: Progress, event: Event, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    """Return the progress after an event.

    As long as no optimizer step was seen, training is taken to begin with the script, or with the
    launch when nothing marked the script: a start that is too early makes a dear trial, one that
    is too late would make a free one.

    Args:
        progress: Before.
        event: From the sidecar.
        trial: As dispatched: its metric, target and mode.
        energy_between: Joules between two monotonic seconds, ``None`` if unknown.
    """
    if isinstance(event, Started):
        first = event.rank == 0 and progress.script_t is None  # what a restart costs, the run costs
        begun_t = event.t if first else progress.script_t
        return replace(progress, script_t=begun_t, ranks=progress.ranks.take(event))
    if isinstance(event, Asked):
        return replace(progress, asked=progress.asked | {event.choice})
    if isinstance(event, Ended):
        return replace(progress, ranks=progress.ranks.take(event))
    return _report(progress, event, trial, energy_between)


def _report(
    progress: Progress, event: Reported, trial: Trial, energy_between: EnergyBetween
) -> Progress:
    begun = progress.training_t
    if begun is None:
        begun = progress.launched_t if progress.script_t is None else progress.script_t
    seen = progress.seen_metrics | event.metrics.keys()
    progress = replace(progress, training_t=begun, seen_metrics=seen, last_report_t=event.t)
    value = event.metrics.get(trial.metric)
    if value is None:
        epochs_seen = progress.other_epochs
        known = len(epochs_seen) >= _OTHERS
        counts = event.epoch > 0 and not known  # epoch 0 may come before training
        return replace(progress, other_epochs=epochs_seen | ({event.epoch} if counts else set()))
    time_s = max(0.0, event.t - begun)  # whoever writes the sidecar may have another clock
    # Again: a restart, or twice an epoch.
    kept = [i for i, point in enumerate(progress.curve) if point.epoch < event.epoch]
    others = tuple(progress.curve[i] for i in kept)
    # Loops that count from 0 report one epoch less than they have done; the number of reports
    # tells them apart from those that count from 1.
    first = others[0] if others else CurvePoint(event.epoch, time_s, None, None)
    before = sum(epoch < first.epoch for epoch in progress.earlier)
    done = before + len(others) + 1 - is_baseline(first)
    epochs = max(progress.epochs, event.epoch, done)
    finite = value if math.isfinite(value) else None
    point = CurvePoint(event.epoch, time_s, energy_between(begun, begun + time_s), finite)
    reached = progress.reached
    if reached is None and meets_target(value, trial.target, trial.mode):
        reached = point._replace(epoch=epochs)
    return replace(
        progress,
        epochs=epochs,
        curve=(*others, point),
        reported_t=(*(progress.reported_t[i] for i in kept), event.t),
        last_value=value,
        best_value=better_value(value, progress.best_value, trial.mode),
        reached=reached,
    )
