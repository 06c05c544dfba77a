"""Hooks of an elastic training: replace the process group, and track what has a state."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import replace_in_distributed, wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.elastic.rank.member import Member

_GROUPS, _MODELS = "torch.distributed.distributed_c10d", "torch.nn.parallel.distributed"
_OPTIMIZERS = "torch.optim.optimizer"
_STATES = {
    _OPTIMIZERS: ("Optimizer",),
    "torch.optim.lr_scheduler": ("LRScheduler", "ReduceLROnPlateau"),
    "torch.amp.grad_scaler": ("GradScaler",),
}  # modules of torch, and their classes of which each object is tracked
MODULES = {_GROUPS, _MODELS, *_STATES}
"""Modules of torch with a hook."""


def install(module: ModuleType, member: Member) -> None:
    """Install the hook of a module that has just been executed."""
    if module.__name__ == _GROUPS:
        groups(module, member)
    elif module.__name__ == _MODELS:
        cls: Any = vars(module)["DistributedDataParallel"]
        wrap(cls, "__init__", lambda model, *_, **given: member.tracked.add_model(model, given))
    elif module.__name__ == _OPTIMIZERS:
        module.register_optimizer_step_post_hook(member.count_step)
    for name in _STATES.get(module.__name__, ()):
        wrap(vars(module)[name], "__init__", lambda owner, *_, **__: member.tracked.add(owner))


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

    for new in (init_process_group, broadcast_object_list):
        replace_in_distributed(module, new)
