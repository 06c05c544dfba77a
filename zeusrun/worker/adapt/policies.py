"""The policies by which a batch size adapts: pure functions from an observation to a proposal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.worker.stats.noise import Estimate

_HYSTERESIS = 1.05  # least gain of the goodput for a change, as in AdaptDL
_ROUNDING = 1e-6  # tolerance for a logarithm that should be a whole number


@dataclass(frozen=True)
class Limits:
    """The batch sizes that are allowed.

    Attributes:
        least: The smallest.
        most: The largest.
        growth: The largest factor by which one decision may change the batch size; above 1.
        ranks: They share the batch size evenly.
        per_device_max: The most samples of a rank in a forward pass; ``None``: any number.
        schedule: First epochs and their batch sizes, ascending.
    """

    least: int
    most: int
    growth: float = 2.0
    ranks: int = 1
    per_device_max: int | None = None
    schedule: Sequence[tuple[int, int]] = ()


@dataclass(frozen=True)
class Observation:
    """What a policy decides from; ``None`` is unknown.

    Attributes:
        batch_size: The present one, over all ranks.
        first_batch_size: That of the run's first step.
        epoch: The present one, or the one that is about to begin, from 1.
        step: Optimizer steps so far.
        samples: Samples so far, over all ranks.
        noise: The noise scale, in samples, with its range of 99 %.
        least_noise: The range that ended lowest of those at decisions so far.
        step_s: Median seconds of a step, by batch size.
    """

    batch_size: int
    first_batch_size: int
    epoch: int = 1
    step: int = 0
    samples: int = 0
    noise: Estimate | None = None
    least_noise: tuple[float, float] | None = None
    step_s: Mapping[int, float] = field(default_factory=dict)

    @property
    def noise_scale(self) -> float | None:
        """The noise scale, in samples; ``None`` while it is unknown."""
        return None if self.noise is None else self.noise.value


class Proposal(NamedTuple):
    """The batch size that a policy proposes, and a sentence that says why."""

    batch_size: float
    reason: str


def decide(policy: str, observation: Observation, limits: Limits) -> Proposal | None:
    """Return the next batch size by a policy of ``POLICIES``; ``None`` to keep the present one."""
    proposal = POLICIES[policy](observation, limits)
    if proposal is None:
        return None
    if policy == "schedule":  # its batch sizes are the user's own, and not clipped
        size = int(proposal.batch_size)
    else:
        size = clip(proposal.batch_size, observation, limits, may_shrink=policy in _SHRINKING)
    return None if size == observation.batch_size else Proposal(size, proposal.reason)


def clip(size: float, observation: Observation, limits: Limits, *, may_shrink: bool) -> int:
    """Return the nearest batch size that the limits allow after the present one.

    A run that begins outside the limits may stay there. The result is the present batch size if
    no other one is allowed.
    """
    now, first = observation.batch_size, observation.first_batch_size
    low = max(min(limits.least, first), now / limits.growth if may_shrink else now)
    high = min(max(limits.most, first), now * limits.growth)
    clipped = round_down(min(max(size, low), high), limits)
    return clipped if low <= clipped <= high else now


def clip_restored(size: int, first: int, limits: Limits) -> int:
    """Return the nearest batch size that the limits allow to one of an earlier start."""
    if size == first:
        return size
    low, high = min(limits.least, first), max(limits.most, first)
    return round_down(min(max(size, low), high), limits)


def round_down(size: float, limits: Limits) -> int:
    """Return the largest batch size up to this one that ranks and micro-batches share evenly."""
    share = max(1, int(size * (1 + 1e-9)) // limits.ranks)
    while share % split(share, limits.per_device_max)[1]:  # ends: a multiple of per_device_max fits
        share -= 1
    return share * limits.ranks


def split(share: int, per_device_max: int | None) -> tuple[int, int]:
    """Return the samples of the largest micro-batch of a rank's share, and how many there are."""
    count = 1 if per_device_max is None else math.ceil(share / per_device_max)
    return math.ceil(share / count), count


def _noise_scale(observation: Observation, _limits: Limits) -> Proposal | None:
    """Follow the noise scale over its least value (after KungFu: Mai et al., OSDI 2020).

    Of the ratios that are likely, the one nearest to the present batch size is proposed.
    """
    noise, least = observation.noise, observation.least_noise
    if noise is None or least is None or least[1] <= 0:
        return None
    low, high = noise.low / least[1], math.inf
    if noise.high is not None and least[0] > 0:
        high = noise.high / least[0]
    now = observation.batch_size / observation.first_batch_size
    ratio = min(max(now, low), high)
    if ratio == now:
        return None
    bound = "at least" if ratio > now else "at most"
    reason = f"the noise scale is {bound} {ratio:.3g} times its least value"
    return Proposal(observation.first_batch_size * ratio, reason)


def _goodput(observation: Observation, limits: Limits) -> Proposal | None:
    """Maximize throughput times statistical efficiency (Pollux: Qiao et al., OSDI 2021).

    The efficiency is relative to the first batch size: (noise + first) / (noise + size).
    """
    noise, first, now = (
        observation.noise_scale,
        observation.first_batch_size,
        observation.batch_size,
    )
    if noise is None or not observation.step_s:
        return None

    def goodput(size: int) -> float:
        return size / step_time_s(size, observation.step_s) * (noise + first) / (noise + size)

    best = max(find_candidates(observation, limits), key=goodput)
    if goodput(best) <= _HYSTERESIS * goodput(now):
        return None
    gain = goodput(best) / goodput(now) - 1
    return Proposal(
        best, f"its goodput is expected to be {gain:.0%} higher, at noise scale {noise:.3g}"
    )


def find_candidates(observation: Observation, limits: Limits) -> list[int]:
    """Return the batch sizes that ``goodput`` compares, ascending.

    They are a geometric grid around the first batch size, with two in each factor of the growth.
    """
    ratio, first = math.sqrt(limits.growth), observation.first_batch_size
    exponents = range(
        math.ceil(math.log(min(limits.least, first) / first, ratio) - _ROUNDING),
        math.floor(math.log(max(limits.most, first) / first, ratio) + _ROUNDING) + 1,
    )
    sizes = {
        clip(first * ratio**exponent, observation, limits, may_shrink=True)
        for exponent in exponents
    }
    return sorted({observation.batch_size, *sizes})


def step_time_s(size: int, times_s: Mapping[int, float]) -> float:
    """Return the expected seconds of a step at a batch size, from the measured ones of others.

    If only one is measured, the time is assumed to be the same, so that a larger batch size is
    tried. Otherwise a line is fitted by least squares: a constant and a time for each sample,
    neither of them negative.
    """
    if size in times_s or len(times_s) == 1:
        return times_s.get(size) or next(iter(times_s.values()))
    mean_size, mean_s = (sum(values) / len(times_s) for values in (times_s, times_s.values()))
    spread = sum((each - mean_size) ** 2 for each in times_s)
    slope = sum((each - mean_size) * (s - mean_s) for each, s in times_s.items()) / spread
    slope = max(0.0, slope)
    constant = mean_s - slope * mean_size
    if constant < 0:
        slope = sum(each * s for each, s in times_s.items()) / sum(each * each for each in times_s)
        constant = 0.0
    return constant + slope * size


def _schedule(observation: Observation, limits: Limits) -> Proposal | None:
    """Return the batch size of the schedule for an epoch."""
    begun = [(epoch, size) for epoch, size in limits.schedule if epoch <= observation.epoch]
    if not begun:
        return None
    epoch, size = begun[-1]
    return Proposal(size, f"the schedule has it from epoch {epoch} on")


_SHRINKING = {"noise-scale", "goodput"}

MEASURING = frozenset({"noise-scale", "goodput"})
"""The policies that need the noise scale."""

POLICIES: dict[str, Callable[[Observation, Limits], Proposal | None]] = {
    "noise-scale": _noise_scale,
    "goodput": _goodput,
    "schedule": _schedule,
}
