"""Attaches the statistics of gradients to the models of the script; nothing without ``watch``."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks
    from zeusrun.worker.stats.watch import Watch


def watch(distributed: ModuleType, hooks: Hooks) -> None:
    """Watch each ``DistributedDataParallel`` once it is built."""
    if hooks.watch is not None:
        cls, attach = distributed.DistributedDataParallel, hooks.watch.attach
        wrap(cls, "__init__", lambda ddp, *_, **__: attach(ddp))
        _compose(cls, hooks.watch, distributed.dist.BuiltinCommHookType.ALLREDUCE)
        _refuse_other_divisors(cls, hooks.watch)


def grad_scaler(module: ModuleType, hooks: Hooks) -> None:
    """Follow by what a ``GradScaler`` multiplies the loss of a step."""
    if (watch := hooks.watch) is None:
        return

    def scale(scaler: Any, *_: Any, **__: Any) -> None:
        if scaler._scale is not None:
            watch.scale = scaler._scale

    def update(*_: Any, **__: Any) -> None:
        watch.scale = 1.0

    wrap(module.GradScaler, "scale", scale)
    wrap(module.GradScaler, "update", update)


def _compose(cls: Any, watch: Watch, allreduce: Any) -> None:
    """Keep the communication hooks that the script registers; a model takes but one."""
    register, register_builtin = cls.register_comm_hook, cls._register_builtin_comm_hook

    def register_comm_hook(ddp: Any, state: object, hook: Any) -> None:
        ddp._check_comm_hook(hook)
        if not watch.compose(ddp, state, hook):
            register(ddp, state, hook)

    def _register_builtin_comm_hook(ddp: Any, kind: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415

        mean, halves = default_hooks.allreduce_hook, default_hooks.fp16_compress_hook
        if not watch.compose(ddp, None, mean if kind == allreduce else halves):
            register_builtin(ddp, kind)

    cls.register_comm_hook = register_comm_hook
    cls._register_builtin_comm_hook = _register_builtin_comm_hook


def _refuse_other_divisors(cls: Any, watch: Watch) -> None:
    begin_join = cls.join

    @functools.wraps(begin_join)
    def join(ddp: Any, divide_by_initial_world_size: Any = True, *args: Any, **options: Any) -> Any:
        if not divide_by_initial_world_size and watch.has(ddp):
            raise ValueError(
                "zeusrun: a watched model cannot divide by the number of ranks that still have "
                "data: leave divide_by_initial_world_size True, or remove 'watch' from the job file"
            )
        return begin_join(ddp, divide_by_initial_world_size, *args, **options)

    cls.join = join
