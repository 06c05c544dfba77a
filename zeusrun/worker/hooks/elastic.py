"""Lets a script train with ranks that come and go: its process group, and what has a state."""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.elastic.member import Member

MODULES = {
    "torch.distributed.distributed_c10d": "groups",
    "torch.nn.parallel.distributed": "models",
    "torch.optim.optimizer": "optimizers",
    "torch.optim.lr_scheduler": "schedulers",
    "torch.amp.grad_scaler": "scalers",
}
"""Module of torch -> the function that hooks into it."""


def install(module: ModuleType, member: Member) -> None:
    """Install the hook of a module that has just been executed."""
    globals()[MODULES[module.__name__]](module, member)


def groups(module: Any, member: Member) -> None:
    """Replace the process group that a script makes by that of the present generation."""
    initialize = module.init_process_group

    @functools.wraps(initialize)
    def init_process_group(backend: str | None = None, *args: Any, **options: Any) -> Any:
        if member.is_opening:  # our own
            return initialize(backend, *args, **options)
        if backend is not None and "gloo" not in backend:
            raise RuntimeError(
                f"zeusrun: an elastic training needs the backend gloo, not {backend}: write  "
                "init_process_group('gloo')  or remove elastic from the job file"
            )
        return member.open()

    broadcast = module.broadcast_object_list

    @functools.wraps(broadcast)
    def broadcast_object_list(objects: list[Any], *args: Any, **options: Any) -> Any:
        return None if member.is_alone else broadcast(objects, *args, **options)

    package: Any = sys.modules.get("torch.distributed")
    for new in (init_process_group, broadcast_object_list):
        old = getattr(module, new.__name__)
        setattr(module, new.__name__, new)
        if getattr(package, new.__name__, None) is old:  # imported before
            setattr(package, new.__name__, new)


def models(module: ModuleType, member: Member) -> None:
    """Track each ``DistributedDataParallel``."""
    cls: Any = vars(module)["DistributedDataParallel"]

    def built(model: Any, *_: Any, **options: Any) -> None:
        model._zeusrun_arguments = options
        member.tracked.add_model(model)

    wrap(cls, "__init__", built)


def optimizers(module: ModuleType, member: Member) -> None:
    """Track each optimizer."""
    wrap(vars(module)["Optimizer"], "__init__", lambda owner, *_, **__: member.tracked.add(owner))


def schedulers(module: ModuleType, member: Member) -> None:
    """Track each scheduler of the learning rate."""
    for name in ("LRScheduler", "ReduceLROnPlateau"):
        wrap(vars(module)[name], "__init__", lambda owner, *_, **__: member.tracked.add(owner))


def scalers(module: ModuleType, member: Member) -> None:
    """Track each gradient scaler."""
    wrap(vars(module)["GradScaler"], "__init__", lambda owner, *_, **__: member.tracked.add(owner))
