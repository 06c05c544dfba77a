"""What this process watches of its models' gradients, and what it reports of them."""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import Average, NoiseScale

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.stats.ddp import Step

_INTERVAL_S = 1.0  # between two records of a model


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


class Watch:
    """Measures the models of this process.

    Attributes:
        scale: By what the loss of the present step is multiplied, as by a ``GradScaler``.
    """

    def __init__(self, run: RunContext, settings: Settings, samples: Callable[[], int]) -> None:
        self.run, self.settings = run, settings
        self.scale: Any = 1.0
        self._samples = samples
        self._models: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()

    def attach(self, ddp: Any) -> None:
        """Watch a ``DistributedDataParallel``; one that cannot be watched stays as it is."""
        size = sum(parameter.numel() for parameter in ddp.parameters())
        model = Model(self.run, len(self._models), size, self.settings)
        self._models[ddp] = model
        try:
            self._attach(ddp, model)
        except Exception as error:  # noqa: BLE001 - whatever torch has changed into
            model.refuse(f"{type(error).__name__}: {error}")

    def compose(self, ddp: Any, state: object, hook: Any) -> bool:
        """Take in a hook that the script registers; ``False`` if its model is not watched."""
        model = self._models.get(ddp)
        if model is None or model.watch is None:
            return False
        problem = model.watch.compose(state, hook)
        if problem is not None:
            model.refuse(problem)
        return True

    def _read_scale(self) -> Any:
        return self.scale if isinstance(self.scale, float) else self.scale.clone()

    def _attach(self, ddp: Any, model: Model) -> None:
        from zeusrun.worker.stats.ddp import GradientWatch  # noqa: PLC0415 - imports torch

        settings = self.settings
        reduced = settings.variance_kind if settings.variance_interval else "trace"
        watch = GradientWatch(
            ddp,
            interval=settings.interval,
            variance=None if reduced == "trace" else (reduced, settings.variance_interval or 1),
            samples=self._samples,
            scale=self._read_scale,
            take=model.take,
        )
        watch.register()
        model.watch = watch

    def after_step(self, optimizer: Any) -> None:
        """Begin another optimizer step."""
        self.scale = 1.0
        for model in self._models.values():
            if model.watch is not None:
                model.watch.after_step(optimizer)

    @property
    def noise(self) -> NoiseScale | None:
        """The averages of the largest model, as its optimizer scales gradients; ``None``: none."""
        largest = max(self._models.values(), key=lambda each: each.parameters, default=None)
        return None if largest is None else largest.noise

    def flush(self) -> None:
        """Record what is not recorded yet, at the end of the script."""
        for model in self._models.values():
            if model.watch is not None:
                with contextlib.suppress(Exception):  # the process group may be gone
                    model.watch.flush()
            model.record()


class Model:
    """A watched model: its newest values, recorded once a second."""

    def __init__(self, run: RunContext, index: int, parameters: int, settings: Settings) -> None:
        self._run, self._index, self._parameters = run, index, parameters
        self._settings = settings
        self._noise = NoiseScale(settings.alpha)
        self._preconditioned = NoiseScale(settings.alpha)
        self._variance = Average(settings.alpha)
        self._recorded_t = 0.0
        self._new = False
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

    def take(self, step: Step) -> None:
        """Take in what was measured in a step."""
        if not self._noise.add(step.norms):
            return
        if step.preconditioned is not None:
            self._preconditioned.add(step.preconditioned)
        if step.variance is not None:
            self._variance.add(step.variance)
        elif self._settings.variance_kind == "trace":
            self._variance.add(step.norms.variance)
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
        self._run.record_on_0(
            Watched(time.monotonic(), self._index, self._parameters, {}, problem=problem)
        )

    def record(self) -> None:
        """Record the newest values, if they are new."""
        if self._new:
            self._new = False
            self._recorded_t = now_t = time.monotonic()
            self._run.record_on_0(Watched(now_t, self._index, self._parameters, self._values))
