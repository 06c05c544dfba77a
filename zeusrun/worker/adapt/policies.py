"""The rules by which a batch size adapts: what was seen goes in, a batch size comes out. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

_HYSTERESIS = 1.05  # of the goodput (AdaptDL's)
_ETA = 0.2  # of the norm test: the largest noise of a mean gradient, relative to the gradient
_ROUNDING = 1e-6  # of a ratio that is a whole number but for its last bits


@dataclass(frozen=True)
class Limits:
    """What a batch size must satisfy.

    Attributes:
        least: The smallest.
        most: The largest.
        growth: By which factor one decision may change it at most; above 1.
        ranks: How many share it evenly.
        per_device_max: Samples of a rank in a forward pass; ``None``: any.
        schedule: Batch sizes by the epochs from which on they hold, ascending.
    """

    least: int
    most: int
    growth: float = 2.0
    ranks: int = 1
    per_device_max: int | None = None
    schedule: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Seen:
    """What a decision is made from; ``None`` is unknown.

    Attributes:
        batch_size: The present one, over all ranks.
        first_batch_size: That of the run's first step.
        epoch: The present one, or the one that is about to begin, from 1.
        step: Optimizer steps so far.
        samples: Samples so far, over all ranks.
        noise_scale: The smoothed one, in samples.
        first_noise_scale: That at the first decision that had one.
        epoch_sums: The noise scale summed over the steps of each whole epoch, oldest first.
        step_s: Median seconds of a step, by batch size.
        trace: The smoothed trace of the covariance of single samples' gradients.
        squared_gradient: The smoothed squared norm of the gradient.
        rate: The learning rate as the script's schedule has it, and the highest so far.
    """

    batch_size: int
    first_batch_size: int
    epoch: int = 1
    step: int = 0
    samples: int = 0
    noise_scale: float | None = None
    first_noise_scale: float | None = None
    epoch_sums: tuple[float, ...] = ()
    step_s: Mapping[int, float] = field(default_factory=dict)
    trace: float | None = None
    squared_gradient: float | None = None
    rate: tuple[float, float] | None = None


class Wish(NamedTuple):
    """The batch size that a rule asks for, before the limits, and why."""

    batch_size: float
    why: str


def decide(policy: str, seen: Seen, limits: Limits) -> Wish | None:
    """Return the next batch size by a policy of ``POLICIES``; ``None`` to keep the present one."""
    wish = POLICIES[policy](seen, limits)
    if wish is None:
        return None
    if policy == "schedule":  # what the user wrote is what happens
        size = int(wish.batch_size)
    else:
        size = bound(wish.batch_size, seen, limits, shrinks=policy == "goodput")
    return None if size == seen.batch_size else Wish(size, wish.why)


def bound(wanted: float, seen: Seen, limits: Limits, *, shrinks: bool) -> int:
    """Return the nearest batch size to the wanted one that the limits allow.

    A run that begins outside of the limits may stay there. The result is the present batch size if
    no other one fits.
    """
    now, first = seen.batch_size, seen.first_batch_size
    low = max(min(limits.least, first), now / limits.growth if shrinks else now)
    high = min(max(limits.most, first), now * limits.growth)
    size = quantise(min(max(wanted, low), high), limits)
    return size if low <= size <= high else now


def admit(size: int, first: int, limits: Limits) -> int:
    """Return the nearest batch size to that of an earlier start which today's limits allow."""
    if size == first:
        return size
    low, high = min(limits.least, first), max(limits.most, first)
    return quantise(min(max(size, low), high), limits)


def quantise(wanted: float, limits: Limits) -> int:
    """Return the largest batch size up to the wanted one that ranks and micro-batches share."""
    each = max(1, int(wanted * (1 + 1e-9)) // limits.ranks)
    while each % split(each, limits.per_device_max)[1]:  # a multiple of per_device_max has no rest
        each -= 1
    return each * limits.ranks


def split(each: int, per_device_max: int | None) -> tuple[int, int]:
    """Return the samples of the largest micro-batch of a rank's share, and how many there are."""
    steps = 1 if per_device_max is None else math.ceil(each / per_device_max)
    return math.ceil(each / steps), steps


def _noise_scale(seen: Seen, _limits: Limits) -> Wish | None:
    """Grow with the noise scale over its first value (KungFu: Mai et al., OSDI 2020)."""
    noise, first = seen.noise_scale, seen.first_noise_scale
    if not noise or not first:
        return None
    ratio = noise / first
    why = f"the noise scale is {ratio:.3g} times its first value ({first:.3g})"
    return Wish(seen.first_batch_size * ratio, why)


def _double_on_rise(seen: Seen, _limits: Limits) -> Wish | None:
    """Double after an epoch whose summed noise scale is above that of the epoch before."""
    if len(seen.epoch_sums) < 2 or not seen.epoch_sums[-1] > seen.epoch_sums[-2]:
        return None
    before, last = seen.epoch_sums[-2:]
    why = f"the noise scale summed over an epoch rose from {before:.3g} to {last:.3g}"
    return Wish(seen.batch_size * 2, why)


def _goodput(seen: Seen, limits: Limits) -> Wish | None:
    """Choose the most of throughput times statistical efficiency (Pollux: Qiao et al., OSDI 2021).

    The efficiency is relative to the first batch size: (noise + first) / (noise + size).
    """
    noise, first, now = seen.noise_scale, seen.first_batch_size, seen.batch_size
    if noise is None or not seen.step_s:
        return None

    def goodput(size: int) -> float:
        return size / step_time_s(size, seen.step_s) * (noise + first) / (noise + size)

    best = max(grid(seen, limits), key=goodput)
    if goodput(best) <= _HYSTERESIS * goodput(now):
        return None
    gain = goodput(best) / goodput(now) - 1
    return Wish(
        best, f"its goodput is expected to be {gain:.0%} higher, at noise scale {noise:.3g}"
    )


def grid(seen: Seen, limits: Limits) -> list[int]:
    """Return the batch sizes that ``goodput`` compares: two in each factor of the growth."""
    ratio, first = math.sqrt(limits.growth), seen.first_batch_size
    steps = range(
        math.ceil(math.log(min(limits.least, first) / first, ratio) - _ROUNDING),
        math.floor(math.log(max(limits.most, first) / first, ratio) + _ROUNDING) + 1,
    )
    sizes = {bound(first * ratio**step, seen, limits, shrinks=True) for step in steps}
    return sorted({seen.batch_size, *sizes})


def step_time_s(size: int, known: Mapping[int, float]) -> float:
    """Return the seconds of a step at a batch size, expected from those at others.

    With one other it is taken to be the same, so that a larger one is tried. With several, it is a
    constant and a part for each sample, by least squares, neither of them negative.
    """
    if size in known or len(known) == 1:
        return known.get(size) or next(iter(known.values()))
    mean_size, mean_s = (sum(values) / len(known) for values in (known, known.values()))
    spread = sum((each - mean_size) ** 2 for each in known)
    slope = sum((each - mean_size) * (s - mean_s) for each, s in known.items()) / spread
    slope = max(0.0, slope)
    constant = mean_s - slope * mean_size
    if constant < 0:
        slope = sum(each * s for each, s in known.items()) / sum(each * each for each in known)
        constant = 0.0
    return constant + slope * size


def _seesaw(seen: Seen, _limits: Limits) -> Wish | None:
    """Double where the script's schedule halves the learning rate (arXiv:2510.14717).

    With the learning rate by the square root of the batch size, it falls by √2 instead of 2.
    """
    if seen.rate is None or not seen.rate[0] > 0:
        return None
    rate, highest = seen.rate
    halvings = min(64, math.floor(math.log2(highest) - math.log2(rate) + _ROUNDING))
    why = f"the schedule has brought the learning rate from {highest:.3g} to {rate:.3g}"
    return Wish(seen.first_batch_size * 2.0**halvings, why)


def _norm_test(seen: Seen, _limits: Limits) -> Wish | None:
    """Keep the noise of the mean gradient below 0.2 of its norm (arXiv:2412.21124)."""
    trace, square = seen.trace, seen.squared_gradient
    if trace is None or square is None or trace <= 0:
        return None
    mean_square = square + trace / seen.batch_size  # of the gradient as it is measured
    if mean_square <= 0:
        return None
    noise = math.sqrt(trace / seen.batch_size / mean_square)
    why = f"the noise of the gradient is {noise:.2g} of its norm, more than {_ETA:g}"
    return Wish(trace / mean_square / _ETA**2, why)


def _schedule(seen: Seen, limits: Limits) -> Wish | None:
    """Take the batch size that the schedule has for an epoch."""
    sizes = [(epoch, size) for epoch, size in limits.schedule if epoch <= seen.epoch]
    return (
        Wish(sizes[-1][1], f"the schedule has it from epoch {sizes[-1][0]} on") if sizes else None
    )


MEASURING = frozenset({"noise-scale", "double-on-rise", "goodput", "norm-test"})
"""The policies that need the noise scale."""

POLICIES: dict[str, Callable[[Seen, Limits], Wish | None]] = {
    "noise-scale": _noise_scale,
    "double-on-rise": _double_on_rise,
    "goodput": _goodput,
    "seesaw": _seesaw,
    "norm-test": _norm_test,
    "schedule": _schedule,
}
