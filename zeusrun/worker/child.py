"""Begins in each interpreter that ``multiprocessing`` starts for a rank or its children.

Until torch is imported there, this imports little: most of them load data.
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.worker.hooks.imports import after_import

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
    child = _Child(launched_ranks)
    after_import((_GROUPS, _OPTIMIZER, "multiprocessing.spawn"), child.hook)


class _Child:
    def __init__(self, launched_ranks: int) -> None:
        self._launched_ranks = launched_ranks
        self._done = False  # the hooks are installed, or it has said that it trains

    def hook(self, module: ModuleType) -> None:
        from zeusrun.worker.hooks import members  # noqa: PLC0415 - few children need it

        known: Any = module
        if module.__name__ == _OPTIMIZER:
            known.register_optimizer_step_post_hook(self._step)
        elif module.__name__ == _GROUPS:
            members.after_joining(module, self._join)
        else:
            members.reach_children(module, self._launched_ranks)

    def _join(self) -> None:
        if self._done or self._launched_ranks > 1:
            return
        self._done = True
        from torch import distributed  # noqa: PLC0415 - the script has imported it

        from zeusrun.worker.context import current_run  # noqa: PLC0415
        from zeusrun.worker.hooks.install import install_hooks  # noqa: PLC0415
        from zeusrun.worker.hooks.members import open_clock, take_place  # noqa: PLC0415

        run = current_run()
        take_place(run, distributed.get_rank(), distributed.get_world_size())
        install_hooks(open_clock(run, run.rank), launched=False)

    def _step(self, _optimizer: object, _args: object, _options: object) -> None:
        if self._done:
            return
        self._done = True
        from zeusrun.sidecar.events import EventWriter, Spawned  # noqa: PLC0415

        try:
            writer = EventWriter(os.environ["ZEUSRUN_SIDECAR"])
            writer.write(Spawned(time.monotonic(), os.getpid()))
            writer.close()
        except OSError as error:
            print(f"zeusrun: could not record an event: {error}", file=sys.stderr)  # noqa: T201
