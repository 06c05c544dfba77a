"""Which processes train, and which optimizer steps count, where a script starts its own processes.

A fork has the hooks of its rank. An interpreter that ``multiprocessing`` starts (spawn, forkserver)
gets them when it joins a process group, as only then its rank is known: see ``child.py``. A rank
that ``subprocess`` starts has no hooks; the launcher finds it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Spawned
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.worker.environment import announce_hooks
from zeusrun.worker.hooks.imports import after_joining, reach_children

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

    from zeusrun.worker.environment import WorkerEnvironment


def install(module: ModuleType, hooks: Any) -> None:
    """Reach the interpreters that this process starts; follow every process group."""
    if module.__name__ == "multiprocessing.spawn":
        reach_children(module, hooks.member.launched_ranks)
    else:
        after_joining(module, hooks.member.join)


class Member:
    """This process: a rank that torchrun has started, a fork of one, or the child of one.

    Attributes:
        clock: Counts optimizer steps; ``None`` if they cannot be counted.
        launched_ranks: How many ranks torchrun has started.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        clock: StepClock | None,
        flush: Callable[[], None],
        *,
        launched: bool,
    ) -> None:
        self.clock = clock
        self.launched_ranks = environment.world_size if launched else 1
        self._environment, self._flush, self._launched = environment, flush, launched
        # The size of the process group, if it is another one than torchrun's.
        self._group = 1 if launched else environment.world_size
        self._begin()
        os.register_at_fork(after_in_child=self._fork)

    def counts(self) -> bool:
        """Whether a step that has just been made counts; called after each."""
        return self._stepping[0] == self._pid or self._take_part()

    def join(self) -> None:
        """Take the place of this process in a process group that it has just joined."""
        from torch import distributed  # noqa: PLC0415 - the script has imported it

        rank, size = distributed.get_rank(), distributed.get_world_size()
        is_elastic = self._environment.slot is not None and self._launched
        if self.launched_ranks > 1 or is_elastic or (self._launched and size == 1):
            return  # torchrun's own group, or a helper of such a rank
        self._group = size
        if self._launched:
            announce_hooks()
            self._environment.is_grown, self._is_other_rank = True, rank > 0
            return
        self.clock = take_place(self._environment)
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._is_beside = self._is_other_rank = False
        # The pid of the process whose steps count, among this one and its forks.
        self._stepping = memoryview(mmap.mmap(-1, 8)).cast("Q")

    def _fork(self) -> None:
        self._pid, self._group = os.getpid(), 1
        self._launched = self._is_beside = False

    def _take_part(self) -> bool:
        """Return whether the steps of this process count; record if it is not just a rank."""
        if self._is_beside:
            return False
        other = self._stepping[0]
        is_second = bool(other) and os.path.exists(f"/proc/{other}")  # noqa: PTH110
        self._is_beside = is_second and not self._launched
        if not self._is_beside:
            self._stepping[0] = self._pid
        if not self._launched or is_second or self._group > 1:
            followed = not is_second and not self._is_other_rank
            size = self._group if followed else None
            self._environment.record(Spawned(time.monotonic(), self._pid, size, followed))
        if not self._launched and (util := sys.modules.get("multiprocessing.util")) is not None:
            util.Finalize(None, self._flush, exitpriority=100)
        return not self._is_beside


def take_place(environment: WorkerEnvironment) -> StepClock | None:
    """Make a process that the script has started a rank of the group that it has joined.

    Returns what counts its steps; ``None`` if the disk is full.
    """
    from torch import distributed  # noqa: PLC0415 - the script has imported it

    announce_hooks()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    environment.rank, environment.world_size, environment.is_grown = rank, size, size > 1
    with contextlib.suppress(OSError):
        return StepClock(f"{environment.plan.run_dir}/clock/rank{rank}")
    return None
