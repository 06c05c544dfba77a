"""Follows by what a ``GradScaler`` or ``ShardedGradScaler`` multiplies the loss of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(grad_scaler: ModuleType, hooks: Hooks) -> None:
    """Follow every scaler of a module of torch, if gradients are watched."""
    watch = hooks.watch
    if watch is None:
        return

    def scale(scaler: Any, *_: Any, **__: Any) -> None:
        if scaler._scale is not None:
            watch.scale = scaler._scale

    def update(*_: Any, **__: Any) -> None:
        watch.scale = 1.0

    # The sharded one has its own methods; its module also contains the other one.
    cls = getattr(grad_scaler, "ShardedGradScaler", None) or grad_scaler.GradScaler
    wrap(cls, "scale", scale)
    wrap(cls, "update", update)
