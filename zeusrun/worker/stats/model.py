"""A watched model: the moving averages of its statistics, and their records in the sidecar."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import NoiseScale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.stats.noise import Norms

_INTERVAL_S = 1.0  # between two records in an epoch
_LEAST_S = 0.1  # between two records
_MAX_LOST = 30  # measurements in a row without a result, after which the user is warned


@dataclass(frozen=True)
class Settings:
    """The section ``watch`` of the job file; an interval is in steps, and ``None`` for never."""

    noise_interval: int | None
    variance_interval: int | None

    @classmethod
    def read(cls, text: str) -> Settings:
        """Read what the launcher wrote into ``ZEUSRUN_WATCH``."""
        section = json.loads(text)
        return cls(*(section.get(name, {}).get("interval") for name in ("noise_scale", "variance")))

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
        self,
        run: RunContext,
        index: int,
        parameters: Sequence[Any],
        settings: Settings,
        window: Callable[[], tuple[float, int | None]],
    ) -> None:
        self._run, self.index = run, index
        self.parameters: int = sum(parameter.numel() for parameter in parameters)
        self._ids = {id(parameter) for parameter in parameters}
        self._settings = settings
        self._window = window  # returns the half-life of averages, and the present epoch
        # By how they are measured: ``adam`` is of the gradients as Adam scales them.
        self._scales = {how: NoiseScale() for how in ("adam", "examples", "micro_batches", "ranks")}
        self._recorded_t = 0.0
        self._epoch: int | None = None
        self._is_new = False  # whether there are values that are not recorded
        self._step_samples = 0.0  # of the last measured step, over all ranks
        self._was_known = False  # whether a noise scale has been recorded
        self._problem: str | None = None
        self._steps_without = 0  # optimizer steps since the last result
        self._is_finite = True  # whether the gradients measured last were
        self.watch: Any = None

    @property
    def how(self) -> str:
        """How the noise scale is measured: the first way that has a result."""
        found = (how for how, scale in self._scales.items() if scale.trace is not None)
        return next(found, "ranks")

    @property
    def noise(self) -> NoiseScale:
        """The averages for gradients as Adam scales them if they are known, else the plain ones."""
        return self._scales[self.how]

    def is_of(self, optimizer: Any) -> bool:
        """Whether an optimizer trains it: the first parameter of a group belongs to it."""
        firsts = (group["params"][:1] for group in optimizer.param_groups)
        return any(id(parameter) in self._ids for first in firsts for parameter in first)

    def count_step(self) -> None:
        """Count an optimizer step; warn the user if many have given no result."""
        self._steps_without += 1
        if self._steps_without == _MAX_LOST * self._settings.interval and self._problem is None:
            why = (
                "a rank has no gradients, or no data loader shows how many samples they are of"
                if self._is_finite
                else "the gradients are infinite or NaN"
            )
            self.report_problem(
                f"nothing was measured in the last {self._steps_without} optimizer steps: {why}"
            )

    def add(self, norms: Norms, how: str, preconditioned: Norms | None = None) -> None:
        """Add a measurement of a step; ``preconditioned``: of the gradients as Adam scales them."""
        half_life, epoch = self._window()
        self._is_finite = self._add(norms, how, half_life)
        if not self._is_finite:
            return
        self._steps_without = 0
        if preconditioned is not None:
            self._add(preconditioned, "adam", half_life)
        self._is_new = True
        interval_s = _INTERVAL_S if epoch == self._epoch else _LEAST_S
        if time.monotonic() - self._recorded_t >= interval_s:
            self._epoch = epoch
            self.record()

    def _add(self, norms: Norms, how: str, half_life: float) -> bool:
        scale = self._scales[how]
        scale.half_life = half_life
        self._step_samples = norms.samples
        return scale.add(norms, self._interval_of(how))

    def _interval_of(self, how: str) -> int:
        """Return for how many steps a measurement stands."""
        settings = self._settings
        if how == "examples":
            return settings.noise_interval or 1
        # Beside examples, whole gradients are compared for the variance alone.
        is_beside = how == "micro_batches" and self._scales["examples"].trace is not None
        return (settings.variance_interval if is_beside else None) or settings.interval

    @property
    def _values(self) -> dict[str, float]:
        values: dict[str, float | None] = {}
        estimate = self.noise.estimate()
        if self._settings.noise_interval is not None and estimate is not None:
            low, value, high = estimate
            values = {"noise_scale": value, "noise_scale_low": low, "noise_scale_high": high}
        if self._settings.variance_interval is not None:
            whole = (self._scales["micro_batches"].variance, self._scales["ranks"].variance)
            values["gradient_variance"] = next((each for each in whole if each is not None), None)
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
        noise, asked = self.noise, self._settings.noise_interval is not None
        if self.watch is None or self._problem is not None:
            pass
        elif not self._is_finite and noise.trace is None:
            self.report_problem("nothing was measured: the gradients are infinite or NaN")
        elif (
            asked
            and noise.trace is not None
            and not (self._was_known or "noise_scale" in self._values)
        ):
            self.report_problem(
                "its noise scale stayed unknown, because |G|² was within four standard errors of "
                "0; it needs more steps in an epoch, more ranks, or a larger batch size"
            )
        self.record()

    def record(self) -> None:
        """Record the newest values, if they are new."""
        if self._is_new:
            self._is_new = False
            self._recorded_t = now_t = time.monotonic()
            done, values = self._run.consumed(), self._values
            self._was_known |= "noise_scale" in values
            behind = getattr(self.watch, "behind", 0) * self._settings.interval * self._step_samples
            samples = None if done is None else max(0, round(done - behind - self.noise.age))
            event = Watched(
                now_t, self.index, self.parameters, values, self.how, self._problem, samples=samples
            )
            self._run.record_on_0(event)
