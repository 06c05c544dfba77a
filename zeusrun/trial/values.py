"""The small values of a trial: what was decided and why, its status, energy, power and pauses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from zeusrun.lever import Lever, power_lever


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
