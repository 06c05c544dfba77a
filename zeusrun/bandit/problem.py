"""The question to a policy, and its answer about each batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from zeusrun.trial import Hardware

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.lever import Lever


@dataclass(frozen=True)
class PowerObjective:
    """What makes one power limit better than another.

    ``cost``: the least cost under ``Problem.eta_knob``; ``energy``: the fewest joules; ``time``:
    the fastest; ``max_slowdown``: the fewest joules among limits that take at most ``factor`` times
    the time of the highest one. Only ``max_slowdown`` has a factor, at least 1.
    """

    name: Literal["cost", "energy", "time", "max_slowdown"] = "cost"
    factor: float | None = None

    def __post_init__(self) -> None:
        if (self.name == "max_slowdown") != (self.factor is not None):
            raise ValueError(f"a factor belongs to max_slowdown alone, not to {self.name}")
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be at least 1, not {self.factor}")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The question: which batch size does the next trial of a job get?

    Raises:
        ValueError: If a value is outside its range.
    """

    candidates: tuple[int, ...]  # global batch sizes, ascending
    default: int  # one of them
    ignored: bool = False  # whether the script ignores the batch size, so that no other one runs
    metric: str
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    eta_knob: float  # weight of energy in the cost, 0 to 1; see ``cost.cost_j``
    cost_factor: float | None = None  # stop a trial at this multiple of the best cost
    window: int | None = None  # how many of an arm's newest runs count; ``None``: all
    control: int | None = None  # every so many recurrences, the default runs; ``None``: never
    recurrence: int  # of the trial
    last_attempt: bool = False  # whether attempts have failed, and this one is the last allowed
    attempts_left: int | None = None  # this one included; ``None``: nobody makes another
    hardware: Hardware = field(default_factory=Hardware)
    energy_measured: bool | None = None  # ``False``: a model estimates it; ``None``: there is none
    # By batch size, from the job file. A batch size that is absent keeps its learning rate.
    learning_rates: Mapping[int, float | None] = field(default_factory=dict)
    micro_batch_sizes: Mapping[int, int] = field(default_factory=dict)  # per rank, where split
    max_power_w: float | None = None  # summed over the job's devices
    samples_per_epoch: float | None = None  # ``None`` until a trial has shown it
    # Samples that count as an epoch, if trainings report the metric within epochs: then all that
    # is said of epochs is about so many samples.
    unit: int | None = None
    levers: tuple[Lever, ...] = ()  # to choose from, ascending; empty: nothing may be set
    power_objective: PowerObjective = PowerObjective()
    learn_from_shared: bool = False  # whether disturbed trials count for speed and cost
    variant: str | None = None  # ``Trial.variant`` of the trials that count
    fingerprint: Mapping[str, str] | None = None  # ``Trial.fingerprint`` of a training today
    speed_checks: bool = True  # whether a run may be replaced once its speed is known

    def __post_init__(self) -> None:
        if list(self.candidates) != sorted({b for b in self.candidates if b > 0}):
            raise ValueError(f"candidates must be positive and ascending: {self.candidates}")
        if self.default not in self.candidates:
            raise ValueError(f"the default, {self.default}, is not among {self.candidates}")
        if not 0 <= self.eta_knob <= 1:
            raise ValueError(f"eta_knob must be from 0 to 1, not {self.eta_knob}")
        if self.cost_factor is not None and not 0 < self.cost_factor < math.inf:
            raise ValueError(f"cost_factor must be above 0, not {self.cost_factor}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"window must be at least 1, not {self.window}")
        if self.control is not None and self.control < 2:
            raise ValueError(f"control must be at least 2, not {self.control}")

    @property
    def epoch_limit(self) -> float:
        """The epochs after which a training ends; infinite if they are not counted."""
        return self.max_epochs if self.unit is None else math.inf

    @property
    def energy_weight(self) -> float:
        """Weight of energy in what ``power_objective`` minimises, 0 to 1."""
        return {"cost": self.eta_knob, "time": 0.0}.get(self.power_objective.name, 1.0)


@dataclass(frozen=True, kw_only=True)
class ArmBelief:
    """What a policy expects of one batch size. ``None`` is unknown."""

    global_batch_size: int
    trials: int  # finished ones that taught something about it
    reached: int  # those among them that reached the target
    epochs: float | None = None  # expected to the target
    epoch_cost_j: float | None = None  # expected at the best power limit known
    cost_j: float | None = None  # expected to the target
    cost_range_j: tuple[float, float] | None = None  # 5th and 95th percentile of the next run
    failure_chance: float | None = None  # that the next run is stopped or misses the target
    value_j: float | None = None  # expected to be saved later by trying it, less the cost of that
    chance: float  # probability that it is chosen next
    verdict: str  # its state, in a sentence; of the next one, why it is chosen

    @property
    def is_next(self) -> bool:
        """Whether the next run uses it for certain."""
        return self.chance == 1
