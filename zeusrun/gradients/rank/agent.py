"""The section ``watch`` inside a rank: hooks into models and ``GradScaler``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.gradients.rank.watch import WatchedModels
from zeusrun.worker.agent import RankAgent
from zeusrun.worker.hooks.imports import replaces, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks

_MODELS, _SCALER = "torch.nn.parallel.distributed", "torch.amp.grad_scaler"


def join(hooks: Hooks, given: Mapping[str, Any]) -> GradientAgent:
    """Return the agent that measures the gradients of this rank."""
    interval = given["noise_scale"]["interval"]
    return GradientAgent(WatchedModels(hooks.environment, interval, hooks.observer))


class GradientAgent(RankAgent):
    """Measures the gradients of ``DistributedDataParallel`` and ``zeusrun.watch`` models."""

    modules = frozenset({_MODELS, _SCALER})

    def __init__(self, models: WatchedModels) -> None:
        self.models = models

    def hook(self, module: ModuleType) -> None:
        """See ``RankAgent.hook``."""
        if module.__name__ == _SCALER:
            self._follow_scale(vars(module)["GradScaler"])
            return
        cls: Any = vars(module)["DistributedDataParallel"]
        wrap(cls, "__init__", lambda ddp, *_, **__: self.models.attach(ddp))
        self._compose(cls, vars(module)["dist"].BuiltinCommHookType.ALLREDUCE)
        self._refuse_joins(cls)

    def watch(self, model: object) -> None:
        """See ``RankAgent.watch``."""
        self.models.add(model)

    def count_step(self, optimizer: Any) -> None:
        """See ``RankAgent.count_step``."""
        self.models.after_step(optimizer)

    def conclude(self) -> None:
        """See ``RankAgent.conclude``."""
        self.models.flush()

    def _follow_scale(self, cls: Any) -> None:
        """Record the factor by which a ``GradScaler`` multiplies the loss of a step."""

        def scale(scaler: Any, *_: Any, **__: Any) -> None:
            if scaler._scale is not None:
                self.models.scale = scaler._scale

        def update(*_: Any, **__: Any) -> None:
            self.models.scale = 1.0

        wrap(cls, "scale", scale)
        wrap(cls, "update", update)

    def _compose(self, cls: Any, allreduce: Any) -> None:
        """Combine zeusrun's communication hook with the script's: a model accepts only one."""
        register, register_builtin = cls.register_comm_hook, cls._register_builtin_comm_hook
        compose = self.models.compose

        def register_comm_hook(ddp: Any, state: object, hook: Any) -> None:
            ddp._check_comm_hook(hook)
            if not compose(ddp, state, hook):
                register(ddp, state, hook)

        def _register_builtin_comm_hook(ddp: Any, kind: Any) -> None:
            from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415

            mean, halves = default_hooks.allreduce_hook, default_hooks.fp16_compress_hook
            if not compose(ddp, None, mean if kind == allreduce else halves):
                register_builtin(ddp, kind)

        cls.register_comm_hook = register_comm_hook
        cls._register_builtin_comm_hook = _register_builtin_comm_hook

    def _refuse_joins(self, cls: Any) -> None:
        begin_join, has = cls.join, self.models.has

        @replaces(cls, "join")
        def join(
            ddp: Any, divide_by_initial_world_size: Any = True, *args: Any, **more: Any
        ) -> Any:
            if not divide_by_initial_world_size and has(ddp):
                raise ValueError(
                    "zeusrun: a watched model cannot divide by the number of ranks that still have "
                    "data: leave divide_by_initial_world_size True, or remove 'watch' from the job "
                    "file"
                )
            return begin_join(ddp, divide_by_initial_world_size, *args, **more)
