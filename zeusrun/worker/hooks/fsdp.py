"""Attaches the statistics of gradients to every model that the script shards by FSDP2."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.install import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(fsdp_state: ModuleType, hooks: Hooks) -> None:
    """Watch each model at its first forward pass, when torch finds out which module is the root.

    ``fully_shard`` itself is called for each submodule, and for the root last, if at all.
    """
    watch = hooks.watch
    if watch is None:
        return

    def after_lazy_init(state: Any) -> None:
        if state._is_root:
            watch.attach_sharded(state)

    wrap(fsdp_state.FSDPState, "_lazy_init", after_lazy_init)
