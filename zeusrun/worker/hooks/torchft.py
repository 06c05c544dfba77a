"""torchft: its managers average the ranks without a process group of ``torch.distributed``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from zeusrun.worker.hooks.imports import wrap

if TYPE_CHECKING:
    from types import ModuleType

    from zeusrun.worker.hooks.install import Hooks


def install(module: ModuleType, hooks: Hooks) -> None:
    """Take a rank with a ``Manager`` for one of a group.

    Not only with a quorum: the first one of DiLoCo comes after many steps.
    """

    def join(*_: object, **__: object) -> None:
        hooks.environment.look_for_groups()  # a replica group of several ranks has one, too
        hooks.environment.grouped = True

    wrap(module.Manager, "__init__", join)
