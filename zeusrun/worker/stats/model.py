"""A model whose gradients are measured: its moving averages, and their records in the sidecar."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import Average, NoiseScale

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.stats.ddp import Step
    from zeusrun.worker.stats.noise import Norms

_INTERVAL_S = 1.0  # between two records
_MOST_LOST = 30  # measurements in a row without a result, after which the user is told


@dataclass(frozen=True)
class Settings:
    """The section ``watch`` of the job file; an interval is in steps, and ``None`` for never."""

    noise_interval: int | None
    alpha: float
    variance_interval: int | None
    variance_kind: str

    @classmethod
    def read(cls, text: str) -> Settings:
        """Read what the launcher wrote into ``ZEUSRUN_WATCH``."""
        asked = json.loads(text)
        noise, variance = asked.get("noise_scale", {}), asked.get("variance", {})
        return cls(
            noise.get("interval"),
            noise.get("alpha", 0.01),
            variance.get("interval"),
            variance.get("kind", "trace"),
        )

    @property
    def interval(self) -> int:
        """Steps between two measurements."""
        return min(n for n in (self.noise_interval, self.variance_interval) if n is not None)


class Model:
    """A watched model: its newest values, recorded once a second."""

    def __init__(
        self, run: RunContext, index: int, parameters: Sequence[Any], settings: Settings
    ) -> None:
        self._run, self._index = run, index
        self._parameters: int = sum(parameter.numel() for parameter in parameters)
        self._own = {id(parameter) for parameter in parameters}
        self._settings = settings
        self._noise = NoiseScale(settings.alpha)
        self._preconditioned = NoiseScale(settings.alpha)
        self._variance = Average(settings.alpha)
        self._recorded_t = 0.0
        self._new = False
        self._how = "ranks"
        self._problem: str | None = None
        self._lost = 0  # optimizer steps since the last result
        self._finite = True  # whether the gradients measured last were
        self.watch: Any = None

    @property
    def parameters(self) -> int:
        """How many numbers it has."""
        return self._parameters

    @property
    def noise(self) -> NoiseScale:
        """The averages as its optimizer scales gradients, once that is known."""
        scaled = self._preconditioned
        return self._noise if scaled.trace.value is None else scaled

    def is_of(self, optimizer: Any) -> bool:
        """Whether an optimizer trains it: the first parameter of a group is one of its own."""
        firsts = (group["params"][:1] for group in optimizer.param_groups)
        return any(id(parameter) in self._own for first in firsts for parameter in first)

    def count_step(self) -> None:
        """Count an optimizer step; tell the user if many have given no result."""
        self._lost += 1
        if self._lost == _MOST_LOST * self._settings.interval and self._problem is None:
            why = (
                "a rank has no gradients, or they are not made by loss.backward() from the batches "
                "of a data loader"
                if self._finite
                else "the gradients are infinite or NaN"
            )
            self.refuse(f"nothing was measured in the last {self._lost} optimizer steps: {why}")

    def take(self, step: Step) -> None:
        """Take in what was measured in a step."""
        if not self._add(step.norms):
            return
        if step.preconditioned is not None:
            self._preconditioned.add(step.preconditioned)
        if step.variance is not None:
            self._variance.add(step.variance)
        elif self._settings.variance_kind == "trace":
            self._variance.add(step.norms.variance)
        self._record_sometimes()

    def take_norms(self, norms: Norms, how: str, *, variance: bool) -> None:
        """Take in what was measured in a step on one rank, for the noise scale."""
        self._how = how
        if not self._add(norms):
            return
        if variance:
            self._variance.add(norms.variance)
        self._record_sometimes()

    def take_variance(self, norms: Norms) -> None:
        """Take in what was measured in a step on one rank, for the variance only."""
        self._finite = math.isfinite(norms.variance)
        if self._finite:
            self._lost = 0
            self._variance.add(norms.variance)
            self._record_sometimes()

    def _add(self, norms: Norms) -> bool:
        """Take in the norms of a step, unless they are infinite or NaN."""
        self._finite = self._noise.add(norms)
        self._lost = 0 if self._finite else self._lost
        return self._finite

    def _record_sometimes(self) -> None:
        self._new = True
        if time.monotonic() - self._recorded_t >= _INTERVAL_S:
            self.record()

    @property
    def _values(self) -> dict[str, float]:
        found: dict[str, float | None] = {}
        if self._settings.noise_interval is not None:
            found["noise_scale"] = self._noise.value
            found["preconditioned_noise_scale"] = self._preconditioned.value
        if self._settings.variance_interval is not None:
            found["gradient_variance"] = self._variance.value
        return {name: value for name, value in found.items() if value is not None}

    def refuse(self, problem: str) -> None:
        """Record why this model is not watched."""
        self._problem = problem
        self._new = True
        self.record()

    def record(self) -> None:
        """Record the newest values, if they are new."""
        if self._new:
            self._new = False
            self._recorded_t = now_t = time.monotonic()
            values, how, problem = self._values, self._how, self._problem
            self._run.record_on_0(
                Watched(now_t, self._index, self._parameters, values, how, problem)
            )
