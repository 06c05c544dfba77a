"""The values around a policy: the problem it is asked, and what it believes of each arm."""

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
        name: ``cost``: the least cost under the problem's ``eta_knob``; ``energy``: the fewest
            joules; ``time``: the fastest; ``max_slowdown``: the fewest joules among limits that
            take at most ``factor`` times the time of the highest one.
        factor: With ``max_slowdown``, at least 1; else ``None``.
    """

    name: Literal["cost", "energy", "time", "max_slowdown"] = "cost"
    factor: float | None = None

    def __post_init__(self) -> None:
        if (self.name == "max_slowdown") != (self.factor is not None):
            raise ValueError(f"a factor goes with max_slowdown alone, not with {self.name}")
        if self.factor is not None and not 1 <= self.factor < math.inf:
            raise ValueError(f"factor must be at least 1, not {self.factor}")


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One choice to make: which batch size the next trial of a job gets.

    Attributes:
        candidates: Global batch sizes to choose from, ascending.
        default: The user's own batch size, one of the candidates.
        metric: Name of the metric, as reported.
        mode: Whether a higher or a lower metric is better.
        target: The metric's value to reach.
        max_epochs: Epochs that a trial may take.
        eta_knob: Weight of energy in the cost, 0 to 1; see ``cost.cost_j``.
        cost_factor: Stop a trial at this multiple of the best cost; ``None`` never stops one.
        window: Costs per arm to look back on; ``None`` is all of them.
        recurrence: Number of the recurrence being decided.
        last_attempt: Whether earlier attempts of the recurrence have failed and this is the last
            one allowed: it goes to the batch size most likely to reach the target.
        world_size: Ranks of the job.
        gpu_model: Model of the job's GPUs, or ``None`` without one.
        gpu_count: GPUs of the job.
        energy_measured: Whether the device measures energy (``True``) or a model estimates it
            (``False``); ``None`` when it gives none.
        learning_rates: What the job's rule gives now, by batch size; absent: as it was.
        max_power_w: Maximum power summed over the job's devices; ``None`` if unknown.
        samples_per_epoch: Samples that an epoch takes in; ``None`` until a trial has shown it.
        power_limits_w: Limits per GPU that may be set, ascending; none where they are left alone.
        power_objective: Which of them is best.
        learn_from_shared: Whether trials whose GPUs others used, too, teach speed and cost.

    Raises:
        ValueError: If the values contradict each other or lie outside their range.
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
    max_power_w: float | None = None
    samples_per_epoch: float | None = None
    power_limits_w: tuple[float, ...] = ()
    power_objective: PowerObjective = PowerObjective()
    learn_from_shared: bool = False

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
        """Weight of energy in what the power objective makes least, 0 to 1."""
        fixed = {"cost": self.eta_knob, "time": 0.0}
        return fixed.get(self.power_objective.name, 1.0)


@dataclass(frozen=True, kw_only=True)
class ArmBelief:
    """What a policy thinks of one batch size. ``None`` is unknown.

    Attributes:
        global_batch_size: The arm.
        trials: Finished trials that taught something about it.
        reached: Those among them that reached the target.
        epochs: Expected epochs to the target.
        epoch_cost_j: Expected joules per epoch, at the best power limit known.
        cost_j: Expected joules to the target.
        cost_range_j: 5th and 95th percentile of the cost of the next run.
        failure_chance: Probability that its next run is stopped or misses the target; ``None`` if
            it was never tried.
        value_j: What trying it is expected to save over the horizon, less what it costs.
        chance: Probability of being chosen next.
        verdict: Where it stands, in a sentence.
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
