"""How far a running trial is: a frozen value, and how an event changes it. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, TypeAlias

from zeusrun.sidecar import Ended, Reported, Started
from zeusrun.trial import CurvePoint

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.sidecar import Event, StepCount

    EnergyBetween: TypeAlias = Callable[[float, float], float | None]


@dataclass(frozen=True)
class Goal:
    """What a trial tries to reach: a metric, its target, and which way is better."""

    metric: str
    target: float
    mode: str
    max_epochs: int

    def reached_by(self, value: float) -> bool:
        """Whether the value meets the target; NaN never does."""
        if math.isnan(value):
            return False
        return value <= self.target if self.mode == "min" else value >= self.target

    def better(self, value: float, best: float | None) -> float | None:
        """Return the better of a value and the best so far; what is not finite never counts."""
        if not math.isfinite(value):
            return best
        if best is None:
            return value
        return min(best, value) if self.mode == "min" else max(best, value)


@dataclass(frozen=True)
class Progress:
    """A trial at monotonic second ``now_t``.

    Attributes:
        launched_t: When torchrun was started.
        now_t: The moment described.
        script_t: When rank 0 began to run the script.
        training_t: When training began; ``None`` until then.
        steps: Optimizer steps of rank 0.
        stepping_s: Monotonic seconds of the first and of the last of them; ``None`` before one.
        epochs: Epochs completed.
        curve: The metric after every epoch.
        seen_metrics: Names of every metric reported.
        last_value: The metric as last reported, NaN and infinities included.
        best_value: Its best finite value.
        reached: The curve point that first met the target.
        restarts: How often torchrun has restarted the ranks.
        exit_codes: Of the ranks whose script has ended since.
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
    epochs: int = 0
    curve: tuple[CurvePoint, ...] = ()
    seen_metrics: frozenset[str] = frozenset()
    last_value: float | None = None
    best_value: float | None = None
    reached: CurvePoint | None = None
    restarts: int = 0
    exit_codes: Mapping[int, int] = field(default_factory=dict)
    energy_j: float | None = None
    power_w: float | None = None
    cost_j: float | None = None
    power_limit_w: float | None = None
    probing: bool = False
    earlier: tuple[int, ...] = ()

    @property
    def time_s(self) -> float | None:
        """Seconds of training so far; ``None`` before it began."""
        return None if self.training_t is None else max(0.0, self.now_t - self.training_t)

    @property
    def startup_s(self) -> float | None:
        """Seconds from launch to the start of training; ``None`` where nothing marked it."""
        if self.training_t is None or self.training_t == self.launched_t:
            return None
        return self.training_t - self.launched_t


def take_step_clock(progress: Progress, count: StepCount | None) -> Progress:
    """Take in rank 0's step clock: training begins with its first step."""
    if count is None:
        return progress
    begun = count.first_step_t if progress.training_t is None else progress.training_t
    stepping_s = (count.first_step_t, count.last_step_t)
    return replace(progress, steps=count.steps, stepping_s=stepping_s, training_t=begun)


def advance(
    progress: Progress, event: Event, goal: Goal, energy_between: EnergyBetween
) -> Progress:
    """Return the progress after an event.

    Where no optimizer step was seen before the first report, training is taken to begin with the
    script, or with the launch when nothing marked the script: a start that is too early makes a
    dear trial, one that is too late would make a free one.

    Args:
        progress: Before.
        event: From the sidecar.
        goal: What the trial tries to reach.
        energy_between: Joules between two monotonic seconds, ``None`` if unknown.
    """
    if isinstance(event, Started):
        codes = {rank: code for rank, code in progress.exit_codes.items() if rank != event.rank}
        begun_t = event.t if event.rank == 0 else progress.script_t
        restarts = max(progress.restarts, event.restart)
        return replace(progress, script_t=begun_t, restarts=restarts, exit_codes=codes)
    if isinstance(event, Ended):
        return replace(progress, exit_codes={**progress.exit_codes, event.rank: event.code})
    return _report(progress, event, goal, energy_between)


def _report(
    progress: Progress, event: Reported, goal: Goal, energy_between: EnergyBetween
) -> Progress:
    begun = progress.training_t
    if begun is None or event.t < begun:  # a report before the first step, read after it
        begun = progress.launched_t if progress.script_t is None else progress.script_t
    seen = progress.seen_metrics | event.metrics.keys()
    progress = replace(progress, training_t=begun, seen_metrics=seen)
    value = event.metrics.get(goal.metric)
    if value is None:
        return progress
    others = progress.curve
    if others and event.epoch <= others[-1].epoch:  # again: a restart, or twice an epoch
        others = tuple(point for point in others if point.epoch < event.epoch)
    # Loops that count from 0 report one epoch less than they have done; the number of reports
    # tells them apart from those that count from 1.
    first = others[0].epoch if others else event.epoch
    before = sum(epoch < first for epoch in progress.earlier)
    epochs = max(progress.epochs, event.epoch, before + len(others) + 1)
    finite = value if math.isfinite(value) else None
    time_s = max(0.0, event.t - begun)  # whoever writes the sidecar may have another clock
    point = CurvePoint(event.epoch, time_s, energy_between(begun, begun + time_s), finite)
    reached = progress.reached
    if reached is None and goal.reached_by(value):
        reached = point._replace(epoch=epochs)
    return replace(
        progress,
        epochs=epochs,
        curve=(*others, point),
        last_value=value,
        best_value=goal.better(value, progress.best_value),
        reached=reached,
    )
