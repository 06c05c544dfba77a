"""What a policy is asked, and what it answers about each batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True)
class PowerObjective:
    """What makes one power limit better than another.

    Attributes:
        name: ``cost``: the least cost under ``Problem.eta_knob``; ``energy``: the fewest joules;
            ``time``: the fastest; ``max_slowdown``: the fewest joules among limits that take at
            most ``factor`` times the time of the highest one.
        factor: At least 1 with ``max_slowdown``, else ``None``.
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

    Attributes:
        candidates: Global batch sizes, ascending; ``default`` is one of them.
        eta_knob: Weight of energy in the cost, 0 to 1; see ``cost.cost_j``.
        cost_factor: A trial is stopped at this multiple of the best cost; ``None``: never.
        window: How many of an arm's newest runs count; ``None``: all.
        recurrence: Number of the recurrence that the trial belongs to.
        last_attempt: Whether attempts of the recurrence have failed and no further one may follow.
        energy_measured: ``False`` if a model estimates the energy; ``None`` if there is none.
        learning_rates: By batch size, from the job file; one that is absent keeps its own.
        micro_batch_sizes: By batch size, samples of a rank in a forward pass; one that is absent is
            not split.
        max_power_w: Summed over the job's devices; ``None`` if unknown.
        samples_per_epoch: ``None`` until a trial has shown it.
        power_limits_w: Limits per GPU that may be set, ascending; empty: they stay as they are.
        learn_from_shared: Whether trials on shared GPUs count for speed and cost.
        variant: ``Trial.variant`` of the trials that count; ``None`` for a fixed batch size.

    Raises:
        ValueError: If a value is outside its range.
    """

    candidates: tuple[int, ...]
    default: int
    metric: str
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    eta_knob: float
    cost_factor: float | None = None
    window: int | None = None
    recurrence: int
    last_attempt: bool = False
    world_size: int
    gpu_model: str | None = None
    gpu_count: int = 0
    energy_measured: bool | None = None
    learning_rates: Mapping[int, float | None] = field(default_factory=dict)
    micro_batch_sizes: Mapping[int, int] = field(default_factory=dict)
    max_power_w: float | None = None
    samples_per_epoch: float | None = None
    power_limits_w: tuple[float, ...] = ()
    power_objective: PowerObjective = PowerObjective()
    learn_from_shared: bool = False
    variant: str | None = None

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

    @property
    def energy_weight(self) -> float:
        """Weight of energy in what ``power_objective`` minimises, 0 to 1."""
        return {"cost": self.eta_knob, "time": 0.0}.get(self.power_objective.name, 1.0)


@dataclass(frozen=True, kw_only=True)
class ArmBelief:
    """What a policy expects of one batch size. ``None`` is unknown.

    Attributes:
        trials: Finished trials that taught something about it.
        reached: Those among them that reached the target.
        epochs: Expected epochs to the target; ``cost_j`` are the joules.
        epoch_cost_j: Expected joules per epoch, at the best power limit known.
        cost_range_j: 5th and 95th percentile of the cost of the next run.
        failure_chance: Probability that its next run is stopped or misses the target.
        value_j: Expected joules saved later by trying it, less the cost of the try.
        chance: Probability that it is chosen next.
        verdict: Its state, in a sentence.
    """

    global_batch_size: int
    trials: int
    reached: int
    epochs: float | None = None
    epoch_cost_j: float | None = None
    cost_j: float | None = None
    cost_range_j: tuple[float, float] | None = None
    failure_chance: float | None = None
    value_j: float | None = None
    chance: float
    verdict: str
