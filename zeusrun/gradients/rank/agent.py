"""The section ``watch`` inside a rank: the models whose gradients are measured."""

from __future__ import annotations

import contextlib
import math
import time
import weakref
from typing import TYPE_CHECKING, Any

from zeusrun.gradients.rank.noise import Measuring, NoiseScale
from zeusrun.sidecar.events import Watched
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import refuse, wrap

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from types import ModuleType

    from zeusrun.gradients.rank.noise import Norms
    from zeusrun.worker.environment import WorkerEnvironment
    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.hooks.observer import Observer

_MODELS, _SCALER = "torch.nn.parallel.distributed", "torch.amp.grad_scaler"
_MAX_STEPS = 10  # optimizer steps without a model, after which the user is warned
_INTERVAL_S = 1.0  # between two records in an epoch
_LEAST_S = 0.1  # between two records
_MAX_LOST = 30  # measurements in a row without a result, after which the user is warned
SHARDED = (
    "the parameters are sharded over the ranks, which cannot be measured: use "
    "DistributedDataParallel, or remove watch from the job file"
)


def join(hooks: Hooks, given: Mapping[str, Any]) -> WatchedModels:
    """Return the agent that measures the gradients of this rank."""
    return WatchedModels(hooks.environment, given["noise_scale"]["interval"], hooks.observer)


class WatchedModel:
    """A watched model; its newest values are recorded once a second.

    Args:
        environment: This rank.
        index: Its number among the models of the script, from 0.
        parameters: The tensors.
        interval: Steps between two measurements.
        observer: Counts the samples so far.
        window: Returns the half-life of the averages in samples, and the number of the epoch.

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
        *,
        interval: int,
        observer: Observer,
        window: Callable[[], tuple[float, int | None]],
    ) -> None:
        self._environment, self._observer, self.index = environment, observer, index
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
            done, values = self._observer.consumed, self._values
            self._was_known |= "noise_scale" in values
            behind = getattr(self.watch, "behind", 0) * self._interval * self._step_samples
            samples = None if done is None else max(0, round(done - behind - self.noise.age))
            what = (self.index, self.parameters, values, self._how, self._problem)
            self._environment.record_on_0(Watched(now_t, *what, samples=samples))


class WatchedModels(RankAgent):
    """Measures ``DistributedDataParallel`` and ``zeusrun.watch`` models of this process.

    Args:
        environment: This rank.
        interval: Optimizer steps between two measurements.
        observer: Knows the samples of a step.

    Attributes:
        scale: By what a ``GradScaler`` multiplies the loss of the present step.
    """

    modules = frozenset({_MODELS, _SCALER})

    def __init__(self, environment: WorkerEnvironment, interval: int, observer: Observer) -> None:
        self._environment, self._interval = environment, interval
        self.scale: Any = 1.0
        self._observer = observer
        self._count = 0  # of models
        self._steps = 0  # optimizer steps before the first model
        self._has_matched = False  # whether an optimizer had parameters of a model
        self._models: weakref.WeakKeyDictionary[Any, WatchedModel] = weakref.WeakKeyDictionary()
        self._gone: list[WatchedModel] = []  # of modules that have been freed

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        if module.__name__ == _SCALER:
            wrap(vars(module)["GradScaler"], "scale", self._take_scale)
            wrap(vars(module)["GradScaler"], "update", self._end_scale)
            return
        cls: Any = vars(module)["DistributedDataParallel"]
        wrap(cls, "__init__", lambda ddp, *_, **__: self.attach(ddp))
        for name in ("register_comm_hook", "_register_builtin_comm_hook"):
            refuse(cls, name, self._refuse_hook)
        refuse(cls, "join", self._refuse_join)

    def _take_scale(self, scaler: Any, *_: Any, **__: Any) -> None:
        if scaler._scale is not None:
            self.scale = scaler._scale

    def _end_scale(self, *_: Any, **__: Any) -> None:
        self.scale = 1.0

    def _refuse_hook(self, ddp: Any, *_: Any, **__: Any) -> str | None:
        text = "the script registers a communication hook, and the job file has watch: remove one"
        return text if self._has(ddp) else None

    def _refuse_join(
        self, ddp: Any, divide_by_initial_world_size: Any = True, *_: Any, **__: Any
    ) -> str | None:
        if divide_by_initial_world_size or not self._has(ddp):
            return None
        return (
            "a watched model cannot divide by the number of ranks that still have data: leave "
            "divide_by_initial_world_size True, or remove 'watch' from the job file"
        )

    def _has(self, ddp: Any) -> bool:
        model = self._models.get(ddp)
        return model is not None and model.watch is not None

    def attach(self, ddp: Any) -> None:
        """Watch a ``DistributedDataParallel``; if it cannot be watched, it stays unchanged."""

        def measure(model: WatchedModel) -> Any:
            if ddp.process_group.size() == 1:
                return self._measure_alone(ddp, model)
            from zeusrun.gradients.rank.ddp import GradientWatch  # noqa: PLC0415 - imports torch

            return GradientWatch(ddp, self._measuring(model))

        self._begin(ddp, measure)

    def watch(self, model: Any) -> None:
        """Watch the model of ``zeusrun.watch``; if it cannot be watched, it stays unchanged."""
        if not hasattr(model, "named_parameters"):
            problem = f"zeusrun.watch takes a torch.nn.Module, not {type(model).__name__}"
            self._new_model().report_problem(problem)
            return
        inner = (getattr(ddp, "module", None) for ddp in self._models)
        if model in self._models or any(each is model for each in inner):
            return
        try:
            self._begin(model, lambda watched: self._measure_one_rank(model, watched))
        except Exception as error:  # noqa: BLE001 - such as parameters without a size yet
            self._new_model().report_problem(f"{type(error).__name__}: {error}")

    def _begin(self, module: Any, measure: Callable[[WatchedModel], Any]) -> None:
        """Add a model, with what begins to measure it, or says in a sentence why it cannot be."""
        model = self._models[module] = self._new_model(module.parameters())
        # The callback only appends: the garbage collector may run it while an event is written.
        weakref.finalize(module, self._gone.append, model).atexit = False
        try:
            found = measure(model)
        except Exception as error:  # noqa: BLE001 - another version of torch
            found = f"{type(error).__name__}: {error}"
        if isinstance(found, str):
            model.report_problem(found)
        else:
            model.watch = found

    def _measure_one_rank(self, module: Any, model: WatchedModel) -> Any:
        """Return what measures a model; a sentence if nothing can."""
        if any(map(_is_sharded, module.parameters())):
            return SHARDED
        if not any(parameter.requires_grad for parameter in module.parameters()):
            return "none of its parameters needs a gradient; call zeusrun.watch once one does"
        if (world_size := self._environment.world_size) > 1:
            return (
                "zeusrun.watch got a model without DistributedDataParallel, and there are "
                f"{world_size} ranks: wrap it in DistributedDataParallel, which is watched without "
                "this call"
            )
        return self._measure_alone(module, model)

    def _measure_alone(self, module: Any, model: WatchedModel) -> Any:
        from zeusrun.gradients.rank.gradients import Gradients  # noqa: PLC0415 - imports torch

        return Gradients(module.parameters(), self._measuring(model))

    def _measuring(self, model: WatchedModel) -> Measuring:
        return Measuring(
            self._interval,
            self._observer.samples,
            lambda: self.scale if isinstance(self.scale, float) else self.scale.clone(),
            model.add,
            model.report_problem,
            model.report_own_problem,
            self._environment.plan.accumulation_steps or 1,
        )

    def _explain_no_model(self, optimizer: Any) -> str:
        """Return why there is no watched model, although an optimizer steps."""
        if any(_is_sharded(p) for group in optimizer.param_groups for p in group["params"]):
            return SHARDED
        if self._environment.world_size > 1:
            return "the script makes no DistributedDataParallel; on several ranks, watch needs one"
        return "no model is watched: call zeusrun.watch(model) before the first training step"

    def _new_model(self, parameters: Iterable[Any] = ()) -> WatchedModel:
        index, self._count = self._count, self._count + 1
        return WatchedModel(
            self._environment,
            index,
            list(parameters),
            interval=self._interval,
            observer=self._observer,
            window=self._window,
        )

    def _window(self) -> tuple[float, int | None]:
        """Return the half-life of averages in samples, and the present epoch.

        It is one epoch; of data without a size, a quarter of the samples so far.
        """
        data, done = self._observer.data, self._observer.consumed
        if data is None:
            return math.inf if done is None else done / 4, None
        return data, None if done is None else done // data

    def follow(self, ddp: Any, synced: Any) -> bool:
        """Average as the job file says; return whether the measuring hook does it."""
        model = self._models.get(ddp)
        if model is None or not hasattr(model.watch, "follow"):
            return False
        model.watch.follow(synced)
        return True

    def count_step(self, optimizer: Any) -> None:
        """Begin another optimizer step."""
        self._finish_gone()
        if not self._count:
            self._steps += 1
            if self._steps == _MAX_STEPS:
                self._new_model().report_problem(self._explain_no_model(optimizer))
        trained = [model for model in self._models.values() if model.is_of(optimizer)]
        self._has_matched = self._has_matched or bool(trained)
        everyone = [] if self._has_matched else list(self._models.values())
        for model in trained or everyone:  # an optimizer may have copies of the parameters
            try:
                if model.watch is not None:
                    if trained or model.watch.follows_copies:
                        model.watch.after_step()
                    model.count_step()
            except Exception as error:  # noqa: BLE001 - the training goes on
                model.watch = None
                model.report_problem(
                    f"measuring ended with an error ({type(error).__name__}: {error})"
                )

    @property
    def noise(self) -> NoiseScale | None:
        """Those of the largest measured model, the newest of equal ones."""
        measured = [model for model in self._models.values() if model.watch is not None]
        largest = max(measured, key=lambda each: (each.parameters, each.index), default=None)
        return None if largest is None else largest.noise

    def conclude(self) -> None:
        """Record the last values, at the end of the script."""
        for model in self._models.values():
            _finish(model)
        self._finish_gone()

    def _finish_gone(self) -> None:
        with contextlib.suppress(Exception):  # the training goes on
            while self._gone:
                _finish(self._gone.pop())


def _finish(model: WatchedModel) -> None:
    if model.watch is not None:
        with contextlib.suppress(Exception):  # the process group may be gone
            model.watch.flush()
    model.finish()


def _is_sharded(parameter: Any) -> bool:
    """Whether FSDP shards it: a ``DTensor`` of version 2, or a ``FlatParameter`` of version 1."""
    return type(parameter).__name__ in {"DTensor", "FlatParameter"} or hasattr(
        parameter, "_fsdp_flattened"
    )
