"""A job to simulate: how every run of every batch size would go."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.observation import Pace


class LearningCurve(NamedTuple):
    """How one run learns if it is not stopped."""

    epochs: int | None  # to the target; ``None``: it is never reached
    pace: Pace


class Rate(NamedTuple):
    """Speed and power under a power limit: seconds per epoch, watts over all GPUs."""

    epoch_s: float
    power_w: float


class Expected(NamedTuple):
    """Mean cost, energy and time until a batch size reaches the target; infinite if it never does.

    A failed run takes ``max_epochs`` and is repeated.
    """

    cost_j: float
    energy_j: float
    time_s: float


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A recurring job of which everything is known.

    A run follows one of the learning curves of its batch size at random. A job that does not change
    has one era, from recurrence 1.
    """

    name: str
    default: int  # the user's own batch size
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    max_power_w: float  # of the GPU
    rates: Mapping[int, Mapping[float, Rate]]  # by batch size, then by power limit; never empty
    eras: Sequence[tuple[int, Mapping[int, Sequence[LearningCurve]]]]  # by first recurrence
    slowness: Mapping[int, float] = field(default_factory=dict)  # by recurrence, of its epochs; 1

    @cached_property
    def arms(self) -> tuple[int, ...]:
        """Batch sizes, ascending."""
        return tuple(sorted(self.rates))

    @cached_property
    def power_limits_w(self) -> tuple[float, ...]:
        """Power limits of all batch sizes, ascending."""
        return tuple(sorted(set().union(*self.rates.values())))

    def rates_at(self, arm: int, recurrence: int) -> Mapping[float, Rate]:
        """Return speed and power of a batch size at a recurrence, by power limit."""
        slower = self.slowness.get(recurrence, 1.0)
        if slower == 1.0:
            return self.rates[arm]
        return {w: Rate(rate.epoch_s * slower, rate.power_w) for w, rate in self.rates[arm].items()}

    def curves(self, arm: int, recurrence: int) -> Sequence[LearningCurve]:
        """Return the learning curves that a run of a batch size may follow."""
        return [curves for first, curves in self.eras if first <= recurrence][-1][arm]


def watts(job: SimulatedJob, rate: Rate, eta_knob: float) -> float:
    """Return cost per second under a rate; You et al. (NSDI 2023), the cost metric."""
    return eta_knob * rate.power_w + (1 - eta_knob) * job.max_power_w


def best_limit_w(job: SimulatedJob, arm: int, eta_knob: float) -> float:
    """Return the limit under which an epoch costs least."""
    rates = job.rates[arm]
    return min(rates, key=lambda w: rates[w].epoch_s * watts(job, rates[w], eta_knob))


def expected(
    job: SimulatedJob, arm: int, eta_knob: float, recurrence: int, limit_w: float | None = None
) -> Expected:
    """Return what a batch size takes at a recurrence; ``limit_w=None`` is its best power limit."""
    rate = job.rates[arm][best_limit_w(job, arm, eta_knob) if limit_w is None else limit_w]
    curves = job.curves(arm, recurrence)
    reached = sum(curve.epochs is not None for curve in curves)
    epochs = sum(curve.epochs or job.max_epochs for curve in curves)
    time_s = (epochs / reached if reached else math.inf) * rate.epoch_s
    return Expected(time_s * watts(job, rate, eta_knob), time_s * rate.power_w, time_s)


def best_arm(job: SimulatedJob, eta_knob: float, recurrence: int) -> int:
    """Return the batch size of least expected cost."""
    return min(job.arms, key=lambda arm: expected(job, arm, eta_knob, recurrence).cost_j)


def never_optimising(job: SimulatedJob, eta_knob: float, recurrence: int) -> Expected:
    """Return what the default batch size takes at its highest power limit."""
    return expected(job, job.default, eta_knob, recurrence, max(job.rates[job.default]))
