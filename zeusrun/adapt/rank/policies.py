"""The policies by which a batch size adapts: from an observation to a proposal."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.worker.user_class import create_policy, describe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.gradients.rank.noise import NoiseEstimate

_MAX_UNKNOWN = 5  # decisions in a row without a noise scale, after which the user is warned
_METHODS = tuple(
    f"{when}_{what}" for when in ("before", "after") for what in ("train", "epoch", "step")
)


@dataclass(frozen=True)
class Limits:
    """The batch sizes that are allowed.

    Attributes:
        minimum: The smallest.
        maximum: The largest.
        growth: The largest factor by which one decision may change the batch size; above 1.
        ranks: They share the batch size evenly.
        per_device_max: The most samples of a rank in a forward pass; ``None``: any number.
        schedule: First epochs and their batch sizes, ascending.
    """

    minimum: int
    maximum: int
    growth: float = 2.0
    ranks: int = 1
    per_device_max: int | None = None
    schedule: Sequence[tuple[int, int]] = ()

    @classmethod
    def read(cls, given: Mapping[str, Any], ranks: int) -> Limits:
        """Read the values that the section ``adapt`` gives to its rank side."""
        names = ("minimum", "maximum", "growth", "per_device_max", "schedule")
        return cls(**{name: given[name] for name in names}, ranks=ranks)


@dataclass(frozen=True)
class TrainingObservation:
    """What a policy decides from; ``None`` is unknown.

    Attributes:
        batch_size: The present one, over all ranks.
        first_batch_size: That of the run's first step.
        epoch: The present one, or the one that is about to begin, from 1.
        step: Optimizer steps so far.
        samples: Samples so far, over all ranks.
        noise: The noise scale, in samples, with its range of 99 %.
        least_noise: The range that ended lowest of those at decisions so far.
    """

    batch_size: int
    first_batch_size: int
    epoch: int = 1
    step: int = 0
    samples: int = 0
    noise: NoiseEstimate | None = None
    least_noise: tuple[float, float] | None = None

    @property
    def noise_scale(self) -> float | None:
        """The noise scale, in samples; ``None`` while it is unknown."""
        return None if self.noise is None else self.noise.value


class BatchSizeProposal(NamedTuple):
    """The batch size that a policy proposes, and a sentence that says why."""

    batch_size: float
    reason: str


def clip(size: float, observation: TrainingObservation, limits: Limits) -> int:
    """Return the nearest batch size that the limits allow after the present one.

    A run that begins outside the limits may stay there. The result is the present batch size if
    no other one is allowed.
    """
    now, first = observation.batch_size, observation.first_batch_size
    low = max(min(limits.minimum, first), now / limits.growth)
    high = min(max(limits.maximum, first), now * limits.growth)
    clipped = round_down(min(max(size, low), high), limits)
    return clipped if low <= clipped <= high else now


def clip_restored(size: int, first: int, limits: Limits) -> int:
    """Return the nearest batch size that the limits allow to one of an earlier start."""
    if size == first:
        return size
    low, high = min(limits.minimum, first), max(limits.maximum, first)
    return round_down(min(max(size, low), high), limits)


def round_down(size: float, limits: Limits) -> int:
    """Return the largest batch size up to this one that ranks and micro-batches share evenly."""
    share = max(1, int(size * (1 + 1e-9)) // limits.ranks)
    # It ends: a multiple of per_device_max fits.
    while share % math.ceil(share / (limits.per_device_max or share)):
        share -= 1
    return share * limits.ranks


def _noise_scale(observation: TrainingObservation, limits: Limits) -> BatchSizeProposal | None:
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
    return BatchSizeProposal(
        clip(observation.first_batch_size * ratio, observation, limits), reason
    )


def _schedule(observation: TrainingObservation, limits: Limits) -> BatchSizeProposal | None:
    """Return the batch size of the schedule for an epoch; it is the user's own, and not clipped."""
    begun = [(epoch, size) for epoch, size in limits.schedule if epoch <= observation.epoch]
    if not begun:
        return None
    epoch, size = begun[-1]
    return BatchSizeProposal(size, f"the schedule has it from epoch {epoch} on")


POLICIES: dict[str, Callable[[TrainingObservation, Limits], BatchSizeProposal | None]] = {
    "noise-scale": _noise_scale,
    "schedule": _schedule,
}


class PolicyRunner:
    """Asks the policy of the job file.

    Of the user's classes, it calls the methods that they have, and keeps the last batch size
    returned. Methods that begin with ``before_`` are called in the order of the job file, those
    that begin with ``after_`` in the reverse order.

    Args:
        names: One policy of zeusrun, or the user's classes as ``module:Class``.
        warn: Called with a sentence for the user, also if a class fails; that class is not called
            again.

    Raises:
        RuntimeError: If a class of the user cannot be imported, or created without arguments, or
            has none of the methods.
    """

    def __init__(self, names: Sequence[str], warn: Callable[[str], None]) -> None:
        self._name, self._warn = names[0], warn
        classes = [] if self._name in POLICIES else names
        self._policies = [
            (name, create_policy("adapt.batch_size.policy", name, _METHODS)) for name in classes
        ]
        self._wished: BatchSizeProposal | None = None  # by a class, or at the decision before
        self._unknown = 0  # decisions in a row without a noise scale

    def call(self, method: str, observe: Callable[[], TrainingObservation]) -> None:
        """Call a method of every class of the user that has it."""
        if not self._policies:
            return
        observation = observe()
        order = -1 if method.startswith("after_") else 1
        for name, policy in self._policies[::order]:
            problem = None
            try:
                function = getattr(policy, method, None)
                size = None if function is None else function(observation)
                if size is not None and not _is_batch_size(size):
                    problem = f"returned {describe(size)}, which is no batch size"
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's class may do anything
                problem = f"raised {describe(error)}"
            if problem is not None:
                self._policies = [each for each in self._policies if each[1] is not policy]
                self._warn(
                    f"{method} of {name} {problem}; the batch size stays as it was, and the class "
                    "is not called again in this run. Correct it"
                )
            elif size is not None:
                self._wished = BatchSizeProposal(float(size), f"{name} asked for {size}")

    def propose(self, observation: TrainingObservation, limits: Limits) -> BatchSizeProposal | None:
        """Return a batch size within the limits; ``None`` to keep the present one."""
        if self._name not in POLICIES:
            wish, self._wished = self._wished, None
            return wish and BatchSizeProposal(
                clip(wish.batch_size, observation, limits), wish.reason
            )
        proposal = POLICIES[self._name](observation, limits)
        if self._name != "noise-scale":
            return proposal
        self._warn_if_unknown(observation)
        return self._confirm(observation.batch_size, proposal)

    def _confirm(self, now: int, proposal: BatchSizeProposal | None) -> BatchSizeProposal | None:
        """Return the smaller of two changes in the same direction, decided one after the other."""
        before, self._wished = self._wished, proposal
        if proposal is None or before is None:
            return None
        changes = [each.batch_size - now for each in (before, proposal)]
        if changes[0] * changes[1] <= 0:
            return None
        return proposal if abs(changes[1]) <= abs(changes[0]) else before

    def _warn_if_unknown(self, observation: TrainingObservation) -> None:
        # A lower bound is enough, once there is a least value to compare it with.
        is_unknown = observation.least_noise is None and observation.step > 0
        self._unknown = self._unknown + 1 if is_unknown else 0
        if self._unknown == _MAX_UNKNOWN:
            self._warn(
                f"policy {self._name} does not change the batch size while the noise scale is "
                f"unknown, and it is unknown after {_MAX_UNKNOWN} decisions; "
                "docs/training-watch.md says what it needs"
            )


def _is_batch_size(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):  # NumPy's numbers are Real
        return False
    return math.isfinite(value) and float(value) >= 1
