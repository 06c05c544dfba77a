"""Learning curves and changes of the batch size, as a trial records them. Pure."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.target import meets_target

if TYPE_CHECKING:
    from collections.abc import Sequence


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
