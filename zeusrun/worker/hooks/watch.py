"""Attaches the statistics of gradients to every ``DistributedDataParallel`` of the script."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(distributed: ModuleType, hooks: Hooks) -> None:
    """Watch each model once it is built; ``distributed`` is ``torch.nn.parallel.distributed``."""
    watch = hooks.watch
    if watch is None:
        return
    cls: Any = distributed.DistributedDataParallel
    build = cls.__init__

    @functools.wraps(build)
    def __init__(ddp: Any, *args: Any, **options: Any) -> None:
        build(ddp, *args, **options)
        watch.attach(ddp)

    register, register_builtin = cls.register_comm_hook, cls._register_builtin_comm_hook

    def register_comm_hook(ddp: Any, state: object, hook: Any) -> None:
        ddp._check_comm_hook(hook)
        if not watch.compose(ddp, state, hook):
            register(ddp, state, hook)

    def _register_builtin_comm_hook(ddp: Any, kind: Any) -> None:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks  # noqa: PLC0415

        hook = default_hooks.allreduce_hook
        if kind != distributed.dist.BuiltinCommHookType.ALLREDUCE:
            hook = default_hooks.fp16_compress_hook
        if not watch.compose(ddp, None, hook):
            register_builtin(ddp, kind)

    cls.__init__ = __init__
    cls.register_comm_hook = register_comm_hook
    cls._register_builtin_comm_hook = _register_builtin_comm_hook
