"""What this process watches of its models' gradients, and what it reports of them."""

from __future__ import annotations

import contextlib
import json
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import NoiseScale

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.stats.noise import Norms

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
        model = Model(self.run, len(self._models), sum(p.numel() for p in ddp.parameters()))
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

        noise = NoiseScale(self.settings.alpha)
        watch = GradientWatch(
            ddp,
            interval=self.settings.interval,
            samples=self._samples,
            scale=self._read_scale,
            take=lambda norms: model.take(noise, norms),
        )
        watch.register()
        model.watch = watch

    def after_step(self) -> None:
        """Begin another optimizer step."""
        self.scale = 1.0
        for model in self._models.values():
            if model.watch is not None:
                model.watch.after_step()

    def flush(self) -> None:
        """Record what is not recorded yet, at the end of the script."""
        for model in self._models.values():
            if model.watch is not None:
                with contextlib.suppress(Exception):  # the process group may be gone
                    model.watch.flush()
            model.record()


class Model:
    """A watched model: its newest values, recorded once a second."""

    def __init__(self, run: RunContext, index: int, parameters: int) -> None:
        self._run, self._index, self._parameters = run, index, parameters
        self._values: dict[str, float] = {}
        self._recorded_t = 0.0
        self._new = False
        self.watch: Any = None

    def take(self, noise: NoiseScale, norms: Norms) -> None:
        """Take in the norms of a step."""
        noise.add(norms)
        values = {"noise_scale": noise.value, "gradient_variance": noise.variance.value}
        self._values = {name: value for name, value in values.items() if value is not None}
        self._new = True
        if time.monotonic() - self._recorded_t >= _INTERVAL_S:
            self.record()

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
            self._run.record_on_0(Watched(now_t, self._index, self._parameters, dict(self._values)))

