"""What this process watches of its models' gradients, and what it reports of them."""

from __future__ import annotations

import contextlib
import json
import math
import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Watched
from zeusrun.worker.stats.noise import Average, NoiseScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.stats.ddp import Step
    from zeusrun.worker.stats.noise import Norms

_INTERVAL_S = 1.0  # between two records of a model
_PATIENCE = 10  # optimizer steps without a model, after which the user is told
_MOST_LOST = 30  # measurements in a row without a result, after which the user is told
SHARDED = (
    "the parameters are sharded over the ranks, so no rank has a gradient of its own to compare: "
    "use DistributedDataParallel, or remove watch from the job file"
)


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
        self._count = 0  # of models
        self._steps = 0  # before the first model
        self._matches = False  # whether an optimizer has been seen with parameters of a model
        self._models: weakref.WeakKeyDictionary[Any, Model] = weakref.WeakKeyDictionary()

    def attach(self, ddp: Any) -> None:
        """Watch a ``DistributedDataParallel``; one that cannot be watched stays as it is."""
        model = self._new_model(ddp.parameters())
        self._models[ddp] = model
        try:
            if ddp.process_group.size() == 1:
                self._attach_alone(ddp, model)
            else:
                self._attach(ddp, model)
        except Exception as error:  # noqa: BLE001 - whatever torch has changed into
            model.refuse(f"{type(error).__name__}: {error}")

    def has(self, ddp: Any) -> bool:
        """Whether a model is watched."""
        model = self._models.get(ddp)
        return model is not None and model.watch is not None

    def add(self, module: Any) -> None:
        """Watch a model that the script names; one that cannot be watched stays as it is."""
        try:
            if module in self._models or any(
                getattr(known, "module", None) is module for known in self._models
            ):
                return
            model = self._new_model(module.parameters())
            self._models[module] = model
        except Exception:  # noqa: BLE001 - anything but a model
            model = self._new_model()
            model.refuse(f"zeusrun.watch takes a torch.nn.Module, not {type(module).__name__}")
            return
        try:
            problem = _problem_of(module, self.run.world_size)
            if problem is None:
                self._attach_alone(module, model)
            else:
                model.refuse(problem)
        except Exception as error:  # noqa: BLE001 - whatever torch has changed into
            model.refuse(f"{type(error).__name__}: {error}")

    def _why_nothing(self, optimizer: Any) -> str:
        """Return why there is no model to watch, although an optimizer steps."""
        if any(_is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
            return SHARDED
        if self.run.world_size > 1:
            return "the script makes no DistributedDataParallel, which the statistics need"
        return "the script does not say which model: call zeusrun.watch(model) before it trains"

    def _new_model(self, parameters: Iterable[Any] = ()) -> Model:
        self._count += 1
        return Model(self.run, self._count - 1, list(parameters), self.settings)

    def compose(self, ddp: Any, state: object, hook: Any) -> bool:
        """Take in a hook that the script registers; ``False`` if its model is not watched."""
        model = self._models.get(ddp)
        if model is None or not hasattr(model.watch, "compose"):
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
            refuse=model.refuse,
        )
        watch.register(ddp)
        model.watch = watch

    def _attach_alone(self, module: Any, model: Model) -> None:
        from zeusrun.worker.stats.one_rank import OneRank  # noqa: PLC0415 - imports torch

        model.watch = OneRank(
            module,
            model,
            self.settings,
            samples=self._samples,
            parts=self.run.accumulation_steps(),
            scale=self._read_scale,
        )

    def after_step(self, optimizer: Any) -> None:
        """Begin another optimizer step."""
        if not self._count:
            self._steps += 1
            if self._steps == _PATIENCE:
                self._new_model().refuse(self._why_nothing(optimizer))
        trained = [model for model in self._models.values() if model.is_of(optimizer)]
        self._matches = self._matches or bool(trained)
        everyone = [] if self._matches else list(self._models.values())
        for model in trained or everyone:  # an optimizer may have copies of the parameters
            try:
                if model.watch is not None:
                    model.watch.after_step(optimizer)
                    model.count_step()
            except Exception as error:  # noqa: BLE001 - the training goes on
                model.watch = None
                model.refuse(f"measuring ended with an error ({type(error).__name__}: {error})")

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


def _problem_of(module: Any, world_size: int) -> str | None:
    """Return why a model that is no ``DistributedDataParallel`` cannot be watched."""
    if any(map(_is_sharded, module.parameters())):
        return SHARDED
    if not any(parameter.requires_grad for parameter in module.parameters()):
        return "none of its parameters needs a gradient; call zeusrun.watch once one does"
    if world_size > 1:
        return (
            f"zeusrun.watch got a model without DistributedDataParallel, and there are {world_size}"
            " ranks: wrap the model first, and it is watched by itself"
        )
    return None


def _is_sharded(parameter: Any) -> bool:
    """Whether it belongs to FSDP: a ``DTensor`` of version 2, a ``FlatParameter`` of version 1."""
    return type(parameter).__name__ in {"DTensor", "FlatParameter"} or hasattr(
        parameter, "_fsdp_flattened"
    )
