"""A watched model: the moving averages of its statistics, and their records in the sidecar."""

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
    from zeusrun.worker.stats.noise import Measurement, Norms

_INTERVAL_S = 1.0  # between two records
_MAX_LOST = 30  # measurements in a row without a result, after which the user is warned


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
        section = json.loads(text)
        noise, variance = section.get("noise_scale", {}), section.get("variance", {})
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
    """A watched model; its newest values are recorded once a second.

    Attributes:
        parameters: Their number of elements.
        watch: Measures the gradients; ``None`` if they cannot be measured.
    """

    def __init__(
        self, run: RunContext, index: int, parameters: Sequence[Any], settings: Settings
    ) -> None:
        self._run, self.index = run, index
        self.parameters: int = sum(parameter.numel() for parameter in parameters)
        self._ids = {id(parameter) for parameter in parameters}
        self._settings = settings
        self._noise = NoiseScale(settings.alpha)
        self._preconditioned = NoiseScale(settings.alpha)
        self._variance = Average(settings.alpha)
        self._recorded_t = 0.0
        self._is_new = False  # whether there are values that are not recorded
        self._how = "ranks"
        self._problem: str | None = None
        self._steps_without = 0  # optimizer steps since the last result
        self._is_finite = True  # whether the gradients measured last were
        self.watch: Any = None

    @property
    def noise(self) -> NoiseScale:
        """The averages for gradients as Adam scales them if they are known, else the plain ones."""
        preconditioned = self._preconditioned
        return self._noise if preconditioned.trace.value is None else preconditioned

    def is_of(self, optimizer: Any) -> bool:
        """Whether an optimizer trains it: the first parameter of a group belongs to it."""
        firsts = (group["params"][:1] for group in optimizer.param_groups)
        return any(id(parameter) in self._ids for first in firsts for parameter in first)

    def count_step(self) -> None:
        """Count an optimizer step; warn the user if many have given no result."""
        self._steps_without += 1
        if self._steps_without == _MAX_LOST * self._settings.interval and self._problem is None:
            why = (
                "a rank has no gradients, or they are not made by loss.backward() from the batches "
                "of a data loader"
                if self._is_finite
                else "the gradients are infinite or NaN"
            )
            self.report_problem(
                f"nothing was measured in the last {self._steps_without} optimizer steps: {why}"
            )

    def add(self, measurement: Measurement) -> None:
        """Add a measurement over several ranks."""
        norms, preconditioned, variance = measurement
        if not self._add_noise(norms):
            return
        if preconditioned is not None:
            self._preconditioned.add(preconditioned)
        if variance is not None:
            self._variance.add(variance)
        elif self._settings.variance_kind == "trace":
            self._variance.add(norms.variance)
        self._record_sometimes()

    def add_norms(self, norms: Norms, how: str, *, variance: bool) -> None:
        """Add a measurement on one rank, for the noise scale and, if asked, the variance."""
        self._how = how
        if not self._add_noise(norms):
            return
        if variance:
            self._variance.add(norms.variance)
        self._record_sometimes()

    def add_variance(self, norms: Norms) -> None:
        """Add a measurement on one rank, for the variance only."""
        self._is_finite = math.isfinite(norms.variance)
        if self._is_finite:
            self._steps_without = 0
            self._variance.add(norms.variance)
            self._record_sometimes()

    def _add_noise(self, norms: Norms) -> bool:
        """Add norms to the noise scale; return false if they are infinite or NaN."""
        self._is_finite = self._noise.add(norms)
        if self._is_finite:
            self._steps_without = 0
        return self._is_finite

    def _record_sometimes(self) -> None:
        self._is_new = True
        if time.monotonic() - self._recorded_t >= _INTERVAL_S:
            self.record()

    @property
    def _values(self) -> dict[str, float]:
        values: dict[str, float | None] = {}
        if self._settings.noise_interval is not None:
            values["noise_scale"] = self._noise.value
            values["preconditioned_noise_scale"] = self._preconditioned.value
        if self._settings.variance_interval is not None:
            values["gradient_variance"] = self._variance.value
        return {name: value for name, value in values.items() if value is not None}

    def report_problem(self, problem: str) -> None:
        """Record why something of this model is not measured."""
        self._problem = problem
        self._is_new = True
        self.record()

    def report_own_problem(self, problem: str) -> None:
        """Record a problem that only this rank knows of."""
        if self._run.rank == 0:
            self.report_problem(problem)
        else:
            self._problem = problem
            t, rank = time.monotonic(), self._run.rank
            self._run.record(Watched(t, self.index, 0, {}, problem=problem, rank=rank))

    def finish(self) -> None:
        """Record the last values, and why nothing was measured or a noise scale stayed unknown."""
        asked = self._settings.noise_interval is not None
        known = {self._noise.value, self._preconditioned.value} - {None}
        if self.watch is None or self._problem is not None:
            pass
        elif not self._is_finite and self._noise.trace.value is None:
            self.report_problem("nothing was measured: the gradients are infinite or NaN")
        elif asked and self._noise.trace.value is not None and not known:
            self.report_problem(
                "its noise scale stayed unknown, because |G|² was within two standard errors of 0; "
                "it needs more steps, more ranks, or a larger batch size"
            )
        self.record()

    def record(self) -> None:
        """Record the newest values, if they are new."""
        if self._is_new:
            self._is_new = False
            self._recorded_t = now_t = time.monotonic()
            values, how, problem = self._values, self._how, self._problem
            self._run.record_on_0(Watched(now_t, self.index, self.parameters, values, how, problem))
