"""A job to simulate: what every run of every batch size would do."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.observation import Pace


class Course(NamedTuple):
    """How one run learns if it is left alone.

    Attributes:
        epochs: Epochs to the target; ``None`` if it never gets there.
        pace: ``(epoch, value)`` wherever its best value rises.
    """

    epochs: int | None
    pace: Pace


class Rate(NamedTuple):
    """Speed and power under a power limit: seconds per epoch, watts over all GPUs."""

    epoch_s: float
    power_w: float


class Expected(NamedTuple):
    """What an arm takes on average until it reaches the target; infinite if it never does."""

    cost_j: float
    energy_j: float
    time_s: float


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A recurring job of which everything is known.

    Attributes:
        name: For tables.
        default: The user's own batch size.
        mode: Whether a higher or a lower metric is better.
        target: Value of the metric to reach.
        max_epochs: Epochs that a run may take.
        max_power_w: Maximum power of the GPU.
        rates: Speed and power by batch size and power limit. Limits may differ by batch size.
        eras: ``(first recurrence, courses by batch size)`` in order; a job that does not drift
            has one era. A run takes one of the courses of its batch size at random.

    Raises:
        ValueError: If a batch size has no rate under any power limit.
    """

    name: str
    default: int
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    max_power_w: float
    rates: Mapping[int, Mapping[float, Rate]]
    eras: Sequence[tuple[int, Mapping[int, Sequence[Course]]]]

    def __post_init__(self) -> None:
        """Check what everything that is expected relies on."""
        if not self.rates or not all(self.rates.values()):
            raise ValueError(f"{self.name}: every batch size needs a rate under a power limit")

    @cached_property
    def arms(self) -> tuple[int, ...]:
        """Batch sizes, ascending."""
        return tuple(sorted(self.rates))

    @cached_property
    def power_limits_w(self) -> tuple[float, ...]:
        """Power limits of all batch sizes, ascending."""
        return tuple(sorted(set().union(*self.rates.values())))

    def courses(self, arm: int, recurrence: int) -> Sequence[Course]:
        """Return the courses that a run of an arm may take."""
        found = self.eras[0][1]
        for first, courses in self.eras[1:]:
            if first > recurrence:
                break
            found = courses
        return found[arm]

    def expected_epochs(self, arm: int, recurrence: int) -> float:
        """Return the epochs charged until the target is reached; infinite if it never is.

        Failed runs are charged ``max_epochs`` and tried again.
        """
        courses = self.courses(arm, recurrence)
        reached = sum(course.epochs is not None for course in courses)
        epochs = sum(course.epochs or self.max_epochs for course in courses)
        return epochs / reached if reached else math.inf


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
    """Return what an arm takes on average until it reaches the target.

    Args:
        job: The job.
        arm: Its batch size.
        eta_knob: Weight of energy in the cost.
        recurrence: When; matters to jobs that drift.
        limit_w: Power limit; ``None`` for the best one.
    """
    rate = job.rates[arm][best_limit_w(job, arm, eta_knob) if limit_w is None else limit_w]
    time_s = job.expected_epochs(arm, recurrence) * rate.epoch_s
    return Expected(time_s * watts(job, rate, eta_knob), time_s * rate.power_w, time_s)


def expected_cost_j(
    job: SimulatedJob, arm: int, eta_knob: float, recurrence: int, limit_w: float | None = None
) -> float:
    """Return the cost of ``expected``."""
    return expected(job, arm, eta_knob, recurrence, limit_w).cost_j


def best_arm(job: SimulatedJob, eta_knob: float, recurrence: int) -> int:
    """Return the batch size of least expected cost."""
    return min(job.arms, key=lambda arm: expected_cost_j(job, arm, eta_knob, recurrence))


def never_optimising(job: SimulatedJob, eta_knob: float, recurrence: int) -> Expected:
    """Return what the default batch size takes at its highest power limit."""
    return expected(job, job.default, eta_knob, recurrence, max(job.rates[job.default]))
