"""The small values of a trial: what was decided and why, its status, power, pauses and curves.

The curves are those of the metric, and of the gradient noise scale: one point an epoch, with its
range.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.lever import Lever, power_lever
from zeusrun.target import meets_target

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_SYNCS = 100  # changes, on a network that comes and goes


class Stage(str, Enum):
    """Why a batch size was chosen, in one word; ``Decision.why`` says it in a sentence."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"
    SPEED_CHECK = "look"  # after its speed is measured, the policy decides again
    RETRY = "retry"
    CONCURRENT = "concurrent"
    FORCED = "forced"
    CONTROL = "control"


class Hardware(NamedTuple):
    """What a training runs on, as far as its speed and cost depend on it."""

    world_size: int = 1  # ranks
    gpu_model: str | None = None
    gpu_count: int = 0  # 0: it runs on the CPU
    host_count: int = 1


class HostShare(NamedTuple):
    """One of several hosts of a run, and its part of the energy."""

    name: str
    ranks: int
    energy_j: float | None = None  # of the span, as that of the run


def host_of(hosts: Sequence[HostShare], rank: int | None) -> str | None:
    """Return the name of the host of a rank; ``None`` if there is only one, or it is unknown."""
    names = [share.name for share in hosts for _ in range(share.ranks)]
    return None if rank is None or rank >= len(names) else names[rank]


def rank_label(hosts: Sequence[HostShare], rank: int) -> str:
    """Return what people call a rank, with the name of its host if there are several."""
    return " ".join(filter(None, (host_of(hosts, rank), f"rank{rank}")))


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


class Interruption(NamedTuple):
    """When the ranks of a run were restarted, or when the run was preempted."""

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
    points = curve[1:] if curve and is_baseline(curve[0]) else curve
    more = counts_from_zero(tuple(point.epoch for point in points[:3]))
    return max(points[-1].epoch + more, len(points)) if points else 0


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


class WorldChange(NamedTuple):
    """From when on an elastic training has had a number of ranks; the first one included."""

    time_s: float  # since the training began
    epochs: int  # completed by then
    world_size: int
    took_s: float | None = None  # from the order, or the loss of a rank
    paused_s: float | None = None  # how long those that stay paused; ``None``: none stays
    step: int | None = None  # optimizer steps before it


class WorkersChange(NamedTuple):
    """From when on the loader of a training has had a number of workers, and what it measured."""

    time_s: float  # since the training began
    workers: int
    stays: bool  # from pass to pass
    step_s: float | None = None  # without evaluations; ``None``: not measured
    wait: float | None = None  # share of that time
    died: bool = False  # one of them did
    settled: str | None = None  # limits of the search that has ended here, as ``1 of 16``


class SyncChange(NamedTuple):
    """From when on the ranks of a training have agreed in another way, and why."""

    epochs: int  # completed by then
    why: str
    way: str


BY_RANKS = "ranks"
"""``Trial.variant`` of an elastic training whose batch size follows its number of ranks."""

_SYNC = "sync "


def name_variant(adapts: str | None, sync: str | None) -> str | None:
    """Return a ``Trial.variant``: how the batch size adapts, and how the ranks agree."""
    named = None if sync is None else _SYNC + sync
    return f"{adapts}, {named}" if adapts and named else adapts or named


def split_variant(variant: str | None) -> tuple[str | None, str | None]:
    """Return how the batch size of a ``Trial.variant`` adapts, and how its ranks agree."""
    if variant is None or _SYNC not in variant:
        return variant, None
    adapts, _, sync = variant.rpartition(_SYNC)
    return adapts.removesuffix(", ") or None, sync


def adapts(variant: str | None) -> bool:
    """Whether the batch size of a ``Trial.variant`` changes within a run."""
    return split_variant(variant)[0] is not None


def join_syncs(
    before: Sequence[SyncChange], since: Sequence[SyncChange], epochs: int = 0
) -> tuple[SyncChange, ...]:
    """Return both parts, of which the first has trained so many epochs; only the newest changes."""
    later = [change._replace(epochs=change.epochs or epochs) for change in since]
    return (*before, *later)[-_MOST_SYNCS:]


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


def spread_samples(
    curve: Sequence[CurvePoint], samples: int | None, since: int = 0
) -> tuple[CurvePoint, ...]:
    """Return a curve by epochs with the samples so far for epochs; empty if they are unknown.

    ``samples``: at its last point. ``since``: the last epoch before a curve that goes on.
    """
    more = -since or count_missing(curve)
    epochs = curve[-1].epoch + more if curve and not is_baseline(curve[-1]) else 0
    return scale_curve(curve, more, samples / epochs) if samples and epochs > 0 else ()


def count_missing(curve: Sequence[CurvePoint]) -> int:
    """Return 1 if a curve is of a loop that reports one epoch less than it has done, else 0."""
    first = curve[1:4] if curve and is_baseline(curve[0]) else curve[:3]
    return int(counts_from_zero(tuple(point.epoch for point in first)))


def scale_curve(
    curve: Sequence[CurvePoint], more: int, scale: float, least: int = 0
) -> tuple[CurvePoint, ...]:
    """Return a curve with ``(epoch + more) * scale`` for each epoch, at least ``least``."""
    return tuple(
        point
        if is_baseline(point)
        else point._replace(epoch=max(least, round((point.epoch + more) * scale)))
        for point in curve
    )


_MOST_NOISE_POINTS = 200
_PER_E_FOLD = 20  # points while the samples of a stream grow by a factor of e


class NoisePoint(NamedTuple):
    """The noise scale in samples, with its range of 90 %.

    It is averaged over about an epoch, in the middle of which the point is.
    Where the gradients cannot be told from their noise, only ``low`` is known: it is at least that.
    """

    samples: int  # that the optimizer had consumed there
    epoch: float | None  # the same in epochs; ``None``: the data have no known size
    low: float
    value: float | None
    high: float | None

    @property
    def known(self) -> float:
        """The value, else what it is at least."""
        return self.low if self.value is None else self.value


def add_point(curve: Sequence[NoisePoint], point: NoisePoint) -> tuple[NoisePoint, ...]:
    """Return a curve with a newer point: each epoch keeps its last one."""
    kept = [each for each in curve if each.samples < point.samples]
    if point.epoch is not None:  # those before the size of the data was known
        kept = [each for each in kept if each.epoch is not None]
    if kept and _part(kept[-1]) == _part(point):
        kept.pop()
    if len(kept) >= _MOST_NOISE_POINTS:
        kept = kept[1::2]
    return (*kept, point)


def join_curves(
    before: Sequence[NoisePoint], since: Sequence[NoisePoint], samples: int, epochs: float | None
) -> tuple[NoisePoint, ...]:
    """Return the curve of a run whose later part began after so many samples and epochs."""
    joined = tuple(before)
    for each in since:
        known = each.epoch is not None and epochs is not None
        epoch = (each.epoch or 0) + (epochs or 0) if known else None
        joined = add_point(joined, each._replace(samples=samples + each.samples, epoch=epoch))
    return joined


def _part(point: NoisePoint) -> int:
    """Return the epoch in which a point is; of a stream, a part of it."""
    if point.epoch is not None:
        return math.ceil(point.epoch)
    return int(_PER_E_FOLD * math.log(max(1, point.samples)))
