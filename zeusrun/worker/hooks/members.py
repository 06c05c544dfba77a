"""Which processes train, and which optimizer steps count, where a script starts its own processes.

A fork has the hooks of its rank. An interpreter that ``multiprocessing`` starts (spawn, forkserver)
gets them when it joins a process group, as only then its rank is known: see ``worker/child.py``. So
does a rank that ``subprocess`` starts, where ``reach_programs`` can: such a rank is started
through ``worker/started.py``, which runs its script as Python does. That is known only for a script
or a module with plain options of Python, so any other command stays as it is, and so does every
program that is no rank. Elsewhere a rank has no hooks; the launcher finds it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import shutil
import sys
import time
from typing import TYPE_CHECKING, Any

from zeusrun.sidecar.events import Spawned
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.worker.environment import announce_hooks
from zeusrun.worker.hooks.imports import after_joining, reach_children, replaces

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from zeusrun.worker.environment import WorkerEnvironment


STARTED = os.path.join(os.path.dirname(os.path.dirname(__file__)), "started.py")  # noqa: PTH118, PTH120

_OPTION = re.compile(r"-[BEOPbdqsu]+|-[WX].*")  # with none of them does a script begin otherwise
_START_RANKS = {
    "torchrun",
    "accelerate",
    "torch.distributed.run",
    "torch.distributed.launch",
    "accelerate.commands.launch",
    "accelerate.commands.accelerate_cli",
}


def install(module: ModuleType, hooks: Any) -> None:
    """Reach the interpreters that this process starts; follow every process group."""
    if module.__name__ == "multiprocessing.spawn":
        reach_children(module, hooks.member.launched_ranks)
    elif module.__name__ == "subprocess":
        if hooks.member.launched_ranks == 1:
            reach_programs(module, hooks.member.place)
    else:
        after_joining(module, hooks.member.join)


class Member:
    """This process: a rank that torchrun has started, a fork of one, or the child of one.

    Attributes:
        tick: Counts one optimizer step; ``None`` if steps cannot be counted.
        launched_ranks: How many ranks torchrun has started.
        place: What the environment said of this process when it began.
    """

    def __init__(
        self,
        environment: WorkerEnvironment,
        tick: Callable[..., None] | None,
        flush: Callable[[], None],
        *,
        launched: bool,
    ) -> None:
        self.tick = tick
        self.launched_ranks = environment.world_size if launched else 1
        self.place = place_in(os.environ)
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
        clock = take_place(self._environment)
        self.tick = None if clock is None else clock.tick
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
            self._environment.record(
                Spawned(time.monotonic(), self._pid, size, followed, self._launched)
            )
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


def place_in(environment: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return what the variables of torchrun say of a process."""
    return tuple(environment.get(name) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))


def reach_programs(subprocess: Any, own: tuple[str | None, ...]) -> None:
    """Start ranks, and programs that start ranks, through ``worker/started.py``.

    Args:
        subprocess: The module.
        own: The place with which this process began: a program that inherits it is no rank.
    """
    cls = subprocess.Popen
    start = cls.__init__

    @replaces(cls, "__init__")
    def start_through(process: Any, args: Any, *others: Any, **options: Any) -> None:
        words = None
        with contextlib.suppress(Exception):  # whatever a script may pass
            if not others and not options.get("shell") and options.get("executable") is None:
                environment = options.get("env")
                words = _reach(args, os.environ if environment is None else environment, own)
        start(process, args if words is None else words, *others, **options)
        process.args = args


def _reach(
    args: object, environment: Mapping[str, str], own: tuple[str | None, ...]
) -> list[str] | None:
    """Return the command that runs a program through ``started.py``; ``None`` to leave it alone."""
    if not isinstance(args, (list, tuple)) or not environment.get("ZEUSRUN_RUN_DIR"):
        return None
    words = [os.fspath(word) for word in args]
    program = shutil.which(words[0], path=environment.get("PATH")) or ""
    name = os.path.basename(program)  # noqa: PTH119
    if name in _START_RANKS:
        with open(program, encoding="utf-8") as file:  # noqa: PTH123
            words[:1] = [file.readline().removeprefix("#!").strip(), program]
    at = 1
    while _OPTION.fullmatch(words[at]):
        at += 2 if words[at] in {"-W", "-X"} else 1
    what = words[at + 1] if words[at] == "-m" else words[at]
    place = place_in(environment)
    is_rank = place != own and any(place[:2]) and int(place[2] or 1) > 1
    if what.startswith("-") or not what or what == STARTED or not _is_ours(words[0], environment):
        return None
    if is_rank or name in _START_RANKS or (words[at] == "-m" and what in _START_RANKS):
        return [*words[:at], STARTED, *words[at:]]
    return None


def _is_ours(python: str, environment: Mapping[str, str]) -> bool:
    """Whether a program is this interpreter: also ``python3`` beside ``python``, as in a venv."""
    path = shutil.which(python, path=environment.get("PATH")) or ""
    same_folder = os.path.dirname(path) == os.path.dirname(sys.executable)  # noqa: PTH120
    return same_folder and os.path.realpath(path) == os.path.realpath(sys.executable)
