"""The values that travel through one submit: Decision, Outcome, Trial. All frozen."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.lever import Lever, power_lever
from zeusrun.noise_curve import NoisePoint  # noqa: TC001 - read_fields needs it
from zeusrun.reasons import ReasonCode, Stall  # noqa: TC001 - read_fields needs them
from zeusrun.record_json import read_fields, write_fields
from zeusrun.target import meets_target

if TYPE_CHECKING:
    from collections.abc import Sequence


class TrialStatus(str, Enum):
    """``DISPATCHED``, then one of the others; a preempted trial may be continued."""

    DISPATCHED = "DISPATCHED"
    REACHED = "REACHED"
    MISSED = "MISSED"
    STOPPED = "STOPPED"
    OOM = "OOM"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"

    @property
    def finished(self) -> bool:
        """Whether the trial has ended."""
        return self is not TrialStatus.DISPATCHED

    @property
    def final(self) -> bool:
        """Whether the trial has ended for good: a preempted one may be continued."""
        return self not in {TrialStatus.DISPATCHED, TrialStatus.PREEMPTED}


class EnergySource(str, Enum):
    """How energy was determined. Measured and estimated joules are never mixed."""

    COUNTER = "counter"
    INTEGRATED = "integrated"
    ESTIMATED = "estimated"

    @property
    def measured(self) -> bool:
        """Whether a device measured it; ``False`` for a model."""
        return self is not EnergySource.ESTIMATED


class Stage(str, Enum):
    """Why a batch size was chosen, in one word; ``Decision.why`` says it in a sentence."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"
    SPEED_CHECK = "look"  # after its speed is measured, the policy decides again
    RETRY = "retry"
    CONCURRENT = "concurrent"
    FORCED = "forced"
    CONTROL = "control"


@dataclass(frozen=True)
class Decision:
    """What a policy chose for one trial."""

    global_batch_size: int  # samples per optimizer step over all ranks
    stage: Stage
    why: str  # a sentence for people
    lever: Lever | None = None  # to begin with; ``None``: it stays as it is
    bound: Bound | None = None  # ``None``: the trial is never stopped for its cost

    @property
    def cost_bound_j(self) -> float | None:
        """The cost at which a trial is stopped, also within an epoch; ``None``: at none."""
        return self.bound.cost_j if self.bound and self.bound.epochs is None else None


@dataclass(frozen=True)
class Bound:
    """What a trial may cost, in joules.

    ``paces`` are runs that reached the target: ``(epoch, value)`` wherever the best value improved,
    the last one at the target. A trial that learns more slowly may cost less. ``epochs``: as many
    as the cost usually pays for; if they are known, they count instead of the cost.
    """

    cost_j: float
    paces: tuple[tuple[tuple[int, float], ...], ...] = ()
    epochs: float | None = None


class CurvePoint(NamedTuple):
    """The metric after an epoch; time and energy since training started."""

    epoch: int  # epochs completed
    time_s: float
    energy_j: float | None  # ``None``: not measured
    value: float | None  # ``None``: not finite


def is_baseline(point: CurvePoint) -> bool:
    """Whether a first point is an evaluation before training: epoch 0, before the first step."""
    return point.epoch == 0 and point.time_s <= 0


def counts_from_zero(epochs: tuple[int, ...]) -> bool:
    """Whether a loop reports one epoch less than it has done, by its first reports.

    Such as 0, 1, 2, or 4, 9, 14 if it evaluates every five epochs. A baseline is no report.
    """
    first = epochs[:3]
    gaps = {later - earlier for earlier, later in pairwise((-1, *first))}
    return 0 in first or (len(first) > 1 and len(gaps) == 1)


def epochs_of(curve: Sequence[CurvePoint]) -> int:
    """Return the epochs completed at the end of a curve, also for loops that count from 0."""
    own = curve[1:] if curve and is_baseline(curve[0]) else curve
    more = counts_from_zero(tuple(point.epoch for point in own[:3]))
    return max(own[-1].epoch + more, len(own)) if own else 0


MOST_POINTS = 1000
"""Of a learning curve; a longer one is thinned."""


def thin_curve(curve: Sequence[CurvePoint], target: float, mode: str) -> tuple[CurvePoint, ...]:
    """Return a learning curve; one of more than ``MOST_POINTS`` keeps at most about half of them.

    It keeps a point for every 2, 4, 8, … epochs, the best and the last one, and the first one that
    meets the target.
    """
    if len(curve) <= MOST_POINTS:
        return tuple(curve)
    step = 1 << ((curve[-1].epoch - curve[0].epoch) // (MOST_POINTS // 2)).bit_length()
    kept = {
        len(curve) - 1,
        *{curve[n].epoch // step: n for n in reversed(range(len(curve)))}.values(),
    }
    values = [(point.value, n) for n, point in enumerate(curve) if point.value is not None]
    if values:
        kept.add(min(values)[1] if mode == "min" else max(values)[1])
    kept.update([n for value, n in values if meets_target(value, target, mode)][:1])
    return tuple(curve[n] for n in sorted(kept))


class SizeChange(NamedTuple):
    """From when on a training that adapts its batch size has had one; the first one included."""

    epoch: int  # in which, from 1
    batch_size: int  # over all ranks


def join_changes(
    before: Sequence[SizeChange], since: Sequence[SizeChange]
) -> tuple[SizeChange, ...]:
    """Return both parts; an epoch that was trained again counts once, as does a size that stays."""
    joined: list[SizeChange] = []
    for change in (*before, *since):
        while joined and joined[-1].epoch > change.epoch:
            joined.pop()
        if not joined or joined[-1].batch_size != change.batch_size:
            joined.append(change)
    return tuple(joined)


class Interruption(NamedTuple):
    """When torchrun restarted the ranks of a run, or when the run was preempted."""

    time_s: float  # since training began
    epochs: int  # reported by then


class PowerPoint(NamedTuple):
    """Speed and power of training under a power limit."""

    power_limit_w: float | None  # per GPU; ``None``: the device has no limit to set
    steps_per_s: float  # optimizer steps
    power_w: float  # mean, summed over the job's GPUs

    @property
    def lever(self) -> Lever | None:
        """What was held meanwhile."""
        return power_lever(self.power_limit_w)


@dataclass(frozen=True)
class Outcome:
    """How a trial ended and what it took. ``None`` is unknown, never zero.

    The span that counts is from the start of training to the moment the target was first reached,
    else to the last optimizer step or report, whichever is later.
    """

    status: TrialStatus  # any but ``DISPATCHED``
    reason: str  # one sentence for people
    finished_at: str  # RFC 3339
    startup_s: float | None = None  # from launch to the start of training
    time_s: float | None = None  # of the span, as are energy, cost and epochs
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    max_power_w: float | None = None  # summed over the job's devices
    cost_j: float | None = None  # see ``cost.cost_j``
    epochs: int | None = None
    steps: int | None = None  # of rank 0 in the whole run
    best_metric: float | None = None  # the best finite value in the whole run
    curve: tuple[CurvePoint, ...] = ()
    power_profile: tuple[PowerPoint, ...] = ()
    power_limit_w: float | None = None  # per GPU, most of the span; ``None``: as dispatched
    energy_counter_j: float | None = None  # over the span, by the devices' counters
    energy_integrated_j: float | None = None  # over the span, by integrating sampled power
    # What trying other limits cost above holding the chosen one: in ``cost_j``, not the arm's.
    profiling_cost_j: float | None = None
    shared: bool | None = None  # whether others used the job's GPUs, or its CPUs to their full
    shutdown_s: float | None = None  # from the end of the span to the end of the processes
    observed_batch_size: int | None = None  # if it is not the trial's, the trial teaches nothing
    noise_curve: tuple[NoisePoint, ...] = ()
    gradients_of: str | None = None  # how they were measured; see ``Watched.how``
    batch_sizes: tuple[SizeChange, ...] = ()  # of a run that adapted it
    price: float | None = None  # of ``energy_j``, with what held while it ran, in ``currency``
    currency: str | None = None
    carbon_g: float | None = None  # grams of CO2 equivalent; both include ``pue``
    pue: float | None = None  # energy of the site over that of the devices
    cause: str | None = None  # of a crash, without ranks, numbers and paths, to compare crashes
    warnings: tuple[str, ...] = ()  # sentences for people
    interruptions: tuple[Interruption, ...] = ()  # within the span
    samples: int | None = None  # that the optimizer consumed up to the last report
    progress: float | None = None  # these in epochs; ``None``: the data have no known size
    by_samples: tuple[CurvePoint, ...] = ()  # see ``Trial``
    by_reports: bool = False  # whether its epochs are only the numbers of its reports
    reason_code: ReasonCode | None = None  # what ``reason`` says, for programs
    stalls: tuple[Stall, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as ``Trial.to_json`` does."""
        return write_fields(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Outcome:
        """Read what ``to_json`` wrote. Fields that this version does not know are ignored.

        Raises:
            ValueError: If a field is missing or has the wrong type.
        """
        return read_fields(cls, record, "an outcome")


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run of one arm. Field order is the order of the stable JSON.

    The first 23 fields stay as they are for programs that read them. ``None`` is unknown. ``host``
    is the machine of its launcher. ``variant`` says how the batch size changed during the run;
    ``None`` if it was fixed. A policy learns nothing from runs of another variant.
    ``micro_batch_size``: samples of a rank in a forward pass, where gradients are accumulated.
    ``uuid`` stays the same if a shared history numbers the trial later. ``fingerprint``: a hash of
    each part of the training; two joined by ``+`` if the part changed while it was preempted.
    ``by_samples``: where the metric is reported within epochs, the curve with samples for epochs.
    """

    trial: str
    job: str
    recurrence: int
    attempt: int
    status: TrialStatus = TrialStatus.DISPATCHED
    reason: str | None = None
    global_batch_size: int
    power_limit_w: float | None = None
    learning_rate: float | None = None
    world_size: int
    gpu_model: str | None = None
    gpu_count: int = 0
    started_at: str
    startup_s: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    max_power_w: float | None = None
    cost_j: float | None = None
    epochs: int | None = None
    metric: str
    best_metric: float | None = None
    run_dir: str
    stage: Stage
    why: str
    mode: str
    target: float
    max_epochs: int
    eta_knob: float
    default_batch_size: int | None = None
    finished_at: str | None = None
    steps: int | None = None
    curve: tuple[CurvePoint, ...] = ()
    power_profile: tuple[PowerPoint, ...] = ()
    energy_counter_j: float | None = None
    energy_integrated_j: float | None = None
    profiling_cost_j: float | None = None
    shared: bool | None = None
    cause: str | None = None
    preemptions: int = 0
    shutdown_s: float | None = None
    observed_batch_size: int | None = None
    forgotten: bool = False
    warnings: tuple[str, ...] = ()
    host: str | None = None
    variant: str | None = None
    micro_batch_size: int | None = None
    noise_curve: tuple[NoisePoint, ...] = ()
    gradients_of: str | None = None
    batch_sizes: tuple[SizeChange, ...] = ()
    price: float | None = None
    currency: str | None = None
    carbon_g: float | None = None
    pue: float | None = None
    uuid: str
    fingerprint: dict[str, str] | None = field(default=None, hash=False)
    interruptions: tuple[Interruption, ...] = ()
    samples: int | None = None
    progress: float | None = None
    by_samples: tuple[CurvePoint, ...] = ()
    by_reports: bool = False
    reason_code: ReasonCode | None = None
    stalls: tuple[Stall, ...] = ()

    @property
    def last_batch_size(self) -> int:
        """The batch size at its end: the chosen one, or what that has become."""
        return self.batch_sizes[-1].batch_size if self.batch_sizes else self.global_batch_size

    @property
    def teaches(self) -> bool:
        """Whether a policy may learn from it about its batch size."""
        return not self.forgotten and self.observed_batch_size in {None, self.global_batch_size}

    def finish(self, outcome: Outcome) -> Trial:
        """Return this trial with its outcome; the same outcome again changes nothing.

        A preempted trial may still be cancelled, and a late result replaces LOST. Raises
        ``ValueError`` if the trial is finished already, or the outcome is not.
        """
        if not outcome.status.finished:
            raise ValueError(f"an outcome of {self.trial} cannot be {outcome.status.value}")
        values = {f.name: getattr(outcome, f.name) for f in fields(outcome)}
        if outcome.power_limit_w is None:
            del values["power_limit_w"]
        ended = replace(self, **values)
        is_cancelled = (self.status, ended.status) == (TrialStatus.PREEMPTED, TrialStatus.CANCELLED)
        may_change = self.status in {TrialStatus.DISPATCHED, TrialStatus.LOST} or is_cancelled
        if ended != self and not may_change:
            raise ValueError(f"trial {self.trial} is {self.status.value} already and never changes")
        return ended

    @property
    def outcome(self) -> Outcome:
        """How this trial ended and what it took."""
        return Outcome(**{each.name: getattr(self, each.name) for each in fields(Outcome)})

    def ended_as(self, status: TrialStatus, code: ReasonCode | None, why: str, at: str) -> Outcome:
        """Return an outcome with what this trial has taken so far."""
        return replace(self.outcome, status=status, reason_code=code, reason=why, finished_at=at)

    def resume(self, started_at: str, host: str | None = None) -> Trial:
        """Return this preempted trial as one that is running again; others raise ``ValueError``.

        It keeps what it has taken so far. The outcome that finishes it must include that.
        """
        if self.status is not TrialStatus.PREEMPTED:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot go on")
        return replace(
            self,
            status=TrialStatus.DISPATCHED,
            reason=None,
            reason_code=None,
            started_at=started_at,
            host=host,
            finished_at=None,
            preemptions=self.preemptions + 1,
        )

    def forget(self, *, forgotten: bool) -> Trial:
        """Return this trial, marked so that policies ignore it, or no longer marked.

        Raises ``ValueError`` if it has not finished.
        """
        if not self.status.finished:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot be forgotten")
        return replace(self, forgotten=forgotten)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; curve points become ``[epoch, time_s, energy_j, value]``."""
        return write_fields(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trial:
        """Read what ``to_json`` wrote; raises ``ValueError`` as ``Outcome.from_json`` does."""
        return read_fields(cls, record, "a trial")
