"""How the gradient noise scale of a training went: one point an epoch, with its range. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

_MOST_POINTS = 200
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
    if len(kept) >= _MOST_POINTS:
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
