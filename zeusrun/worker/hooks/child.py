"""Begins in each interpreter that ``multiprocessing`` starts for a rank or its children.

Most of them load data: until one joins a process group or trains, this imports little.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import after_import, after_joining, reach_children

if TYPE_CHECKING:
    from types import ModuleType

_GROUPS, _OPTIMIZER = "torch.distributed.distributed_c10d", "torch.optim.optimizer"


def begin(launched_ranks: int) -> None:
    """Install the hooks when this process joins a process group; see whether it trains without.

    Args:
        launched_ranks: How many ranks torchrun has started. With several, a child is no rank.
    """
    if not os.environ.get("ZEUSRUN_RUN_DIR") or not os.environ.get("ZEUSRUN_SIDECAR"):
        return  # a process that is to outlive the run
    done = False  # the hooks are installed, or it has said that it trains

    def hook(module: ModuleType) -> None:
        if module.__name__ == _OPTIMIZER:
            optimizer: Any = module
            with contextlib.suppress(AttributeError):  # a stand-in for torch
                optimizer.register_optimizer_step_post_hook(step)
        elif module.__name__ == _GROUPS:
            after_joining(module, join)
        else:
            reach_children(module, launched_ranks)

    def join() -> None:
        nonlocal done
        if not done and launched_ranks == 1:
            done = True
            _become_rank()

    def step(*_: object) -> None:
        nonlocal done
        if not done:
            done = True
            with contextlib.suppress(Exception):  # an error of ours must not end the child
                from zeusrun.sidecar.events import Spawned, append_event  # noqa: PLC0415 - few need it

                append_event(os.environ["ZEUSRUN_SIDECAR"], Spawned(time.monotonic(), os.getpid()))

    after_import((_GROUPS, _OPTIMIZER, "multiprocessing.spawn"), hook)


def _become_rank() -> None:
    from zeusrun.sidecar.orders import LEAVE_SIGNAL  # noqa: PLC0415 - few children need it
    from zeusrun.worker.ending import leave  # noqa: PLC0415
    from zeusrun.worker.environment import current_environment  # noqa: PLC0415
    from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415
    from zeusrun.worker.hooks.members import take_place  # noqa: PLC0415

    install_hooks(take_place(current_environment()), launched=False)
    signal.signal(LEAVE_SIGNAL, leave)
