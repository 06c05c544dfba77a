"""A watched model: the moving averages of its statistics, and their records in the sidecar."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import NoiseScale

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.stats.noise import Norms

_INTERVAL_S = 1.0  # between two records in an epoch
_LEAST_S = 0.1  # between two records
_MAX_LOST = 30  # measurements in a row without a result, after which the user is warned


class WatchedModel:
    """A watched model; its newest values are recorded once a second.

    Args:
        environment: This rank.
        index: Its number among the models of the script, from 0.
        parameters: The tensors.
        interval: Steps between two measurements.
        window: Returns the half-life of averages in samples, and the present epoch.

    Attributes:
        parameters: Their number of elements.
        watch: Measures the gradients; ``None`` if they cannot be measured.
        noise: The moving averages.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        index: int,
        parameters: Sequence[Any],
        interval: int,
        window: Callable[[], tuple[float, int | None]],
    ) -> None:
        self._environment, self.index = environment, index
        self.parameters: int = sum(parameter.numel() for parameter in parameters)
        self.noise = NoiseScale()
        self._how = "ranks"  # they are measured
        self._ids = {id(parameter) for parameter in parameters}
        self._interval, self._window = interval, window
        self._recorded_t = 0.0
        self._epoch: int | None = None
        self._is_new = False  # whether there are values that are not recorded
        self._step_samples = 0.0  # of the last measured step, over all ranks
        self._was_known = False  # whether a noise scale has been recorded
        self._problem: str | None = None
        self._steps_without = 0  # optimizer steps since the last result
        self._is_finite = True  # whether the gradients measured last were
        self.watch: Any = None

    def is_of(self, optimizer: Any) -> bool:
        """Whether an optimizer trains it: the first parameter of a group belongs to it."""
        firsts = (group["params"][:1] for group in optimizer.param_groups)
        return any(id(parameter) in self._ids for first in firsts for parameter in first)

    def count_step(self) -> None:
        """Count an optimizer step; warn the user if many have given no result."""
        self._steps_without += 1
        if self._steps_without == _MAX_LOST * self._interval and self._problem is None:
            why = (
                "a rank has no gradients, or no data loader shows how many samples they are of"
                if self._is_finite
                else "the gradients are infinite or NaN"
            )
            self.report_problem(
                f"nothing was measured in the last {self._steps_without} optimizer steps: {why}"
            )

    def add(self, norms: Norms, how: str) -> None:
        """Add a measurement of a step, and how it was made: ``Watched.how``."""
        if how != self._how:
            self._how, self.noise = how, NoiseScale()
        self.noise.half_life, epoch = self._window()
        self._step_samples = norms.samples
        self._is_finite = self.noise.add(norms, self._interval)
        if not self._is_finite:
            return
        self._steps_without = 0
        self._is_new = True
        interval_s = _INTERVAL_S if epoch == self._epoch else _LEAST_S
        if time.monotonic() - self._recorded_t >= interval_s:
            self._epoch = epoch
            self.record()

    @property
    def _values(self) -> dict[str, float]:
        names = ("noise_scale_low", "noise_scale", "noise_scale_high")
        values = dict(zip(names, self.noise.estimate() or (), strict=False))
        if self._how != "examples":  # those are gradients of a few layers
            values["gradient_variance"] = self.noise.variance
        return {name: value for name, value in values.items() if value is not None}

    def report_problem(self, problem: str) -> None:
        """Record why something of this model is not measured."""
        self._problem = problem
        self._is_new = True
        self.record()

    def report_own_problem(self, problem: str) -> None:
        """Record a problem that only this rank knows of."""
        if self._environment.rank == 0:
            self.report_problem(problem)
        else:
            self._problem = problem
            t, rank = time.monotonic(), self._environment.rank
            self._environment.record(Watched(t, self.index, 0, {}, problem=problem, rank=rank))

    def finish(self) -> None:
        """Record the last values, and why nothing was measured or a noise scale stayed unknown."""
        if self.watch is None or self._problem is not None:
            pass
        elif self.noise.trace is None and not self._is_finite:
            self.report_problem("nothing was measured: the gradients are infinite or NaN")
        elif self.noise.trace is not None and not self._was_known | ("noise_scale" in self._values):
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
            done, values = self._environment.consumed(), self._values
            self._was_known |= "noise_scale" in values
            behind = getattr(self.watch, "behind", 0) * self._interval * self._step_samples
            samples = None if done is None else max(0, round(done - behind - self.noise.age))
            what = (self.index, self.parameters, values, self._how, self._problem)
            self._environment.record_on_0(Watched(now_t, *what, samples=samples))
