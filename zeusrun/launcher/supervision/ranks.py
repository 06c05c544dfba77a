"""The running ranks of a trial: all that needs their processes, their clocks and their files."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.files.private import open_for_reading
from zeusrun.launcher.processes.descendants import find_started_ranks, send, state_of
from zeusrun.launcher.processes.torchrun import TICK_S, ProcessExit, StopLevel, TorchrunProcess
from zeusrun.launcher.rundir.failure import count_oom_kills
from zeusrun.sidecar.events import Ended, Regrouped, Spawned, Started
from zeusrun.sidecar.orders import LEAVE_SIGNAL, STACK_SIGNAL
from zeusrun.sidecar.step_clock import read_step_clock

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zeusrun.launcher.context import Node
    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.layout import RunPaths
    from zeusrun.sidecar.events import Event
    from zeusrun.sidecar.step_clock import StepCount

_FIRST_SCAN_S = 2.0  # after the launch
_BACKOFF = 1.5  # each scan is this many times as late as the one before
_LEAVE_S = 5.0  # for a rank that does not save: it may wait in C for a rank that has left

_MAX_BYTES = 1 << 20  # of stacks: a hundred threads of a hundred frames
_SIGNALS_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


class RunningRanks:
    """The ranks of one run: ``members`` are torchrun's on this host, others are of ``nodes``.

    The processes of this host are known from their events, and are checked before every signal.
    The files of all ranks are in this run directory. If the run is ``flexible``, it goes on without
    the ranks of a node that fails.
    """

    exit: ProcessExit
    _torchrun: TorchrunProcess  # from ``run`` on

    def __init__(
        self,
        paths: RunPaths,
        members: range = range(1),
        nodes: Sequence[Node] = (),
        *,
        flexible: bool = False,
    ) -> None:
        """Prepare; nothing runs, and no rank is known yet."""
        self._paths, self._run_dir, self._nodes = paths, str(paths.run_dir), nodes
        self._flexible = flexible
        self._ranks = (*members, *(rank for node in nodes for rank in node.ranks))
        self._places: dict[int, Node | None] = {n: node for node in nodes for n in node.ranks}
        self._oom_kills: int | None = None  # of the machine before the run
        self.first_failed: int | None = None  # of several hosts: zeusrun ends the others
        self._offsets: dict[int, int] = {}  # of the stack files, before the ranks were asked
        self._sizes: dict[int, int] = {}  # of the same files at the last poll
        self._processes: dict[int, psutil.Process] = {}
        self._ended: set[int] = set()  # their script has ended
        self._gone: set[int] = set()  # their process had ended at the last request
        self._asked: set[psutil.Process] = set()  # each with its start time: a pid may come again
        self._left_t: dict[psutil.Process, float] = {}  # when those without a handler were asked
        self._training: set[psutil.Process] = set()  # beside or instead of a rank that started them
        self._scan_after_s = _FIRST_SCAN_S

    @contextlib.contextmanager
    def run(
        self, command: Command, grace_period_s: float, others: Sequence[Command] = ()
    ) -> Iterator[None]:
        """Start torchrun, with ``others`` on the nodes; on leaving, nothing of the run is left.

        ``exit`` is known then. Raises ``LaunchError`` if one could not be started.
        """
        self._oom_kills = count_oom_kills()
        self._torchrun = TorchrunProcess(command, self._paths, grace_period_s)
        try:
            for node, its in zip(self._nodes, others, strict=True):
                node.start(its, self._paths, grace_period_s)
            for node in self._nodes:
                node.wait_until_started()
            with self._torchrun:
                try:
                    yield
                finally:  # each is asked to end before any is waited for
                    for node in self._nodes:
                        node.stop(StopLevel.TERMINATE)
        finally:
            for node in self._nodes:
                node.stop(StopLevel.TERMINATE)
            exits = [node.finish() for node in self._nodes]
        if self._flexible:
            exits = [replace(each, code=0) for each in exits]
        self.exit = _join_exits([self._torchrun.exit, *exits])

    @property
    def world(self) -> tuple[int, ...]:
        """The numbers of the ranks; of an elastic training, of those that train now."""
        if not self._flexible:
            return self._ranks
        nodes = ((rank, self._node_of(rank)) for rank in self._ranks)
        return tuple(rank for rank, node in nodes if node is None or node.lost is None)

    @property
    def _members(self) -> tuple[int, ...]:
        return tuple(rank for rank in self._ranks if self._node_of(rank) is None)

    def step(self, level: StopLevel) -> bool:
        """End the run as firmly as ``level`` says, wait a tick; return whether it still runs.

        If torchrun has failed on one host, the ranks of the others may wait for it for ever.
        """
        others = [] if self._flexible else [node.failed for node in self._nodes]
        local, failed = level, [self._torchrun.failed, *others]
        if self._nodes and self.first_failed is None and any(failed):
            self.first_failed = failed.index(True)
        if self.first_failed is not None:
            local = level = max(level, StopLevel.TERMINATE)
            if self._processes and not any(map(state_of, self._processes.values())):
                local = StopLevel.KILL  # torchrun would wait for the other agents
        self._torchrun.stop(local, self.ask_to_end)
        for node in self._nodes:
            node.stop(level)
        self._torchrun.wait()
        running = [node for node in self._nodes if node.is_running]
        if running and not self._torchrun.is_running():
            running[0].ended.wait(TICK_S)
        return bool(running) or self._torchrun.is_running()

    @property
    def lost(self) -> str | None:
        """Which host has ended the run by its loss, and why; ``None`` if none has."""
        if self._flexible:
            return None
        return next((node.lost for node in self._nodes if node.lost is not None), None)

    def _node_of(self, rank: int) -> Node | None:
        return self._places.get(rank)

    def count(self, rank: int | None = None) -> StepCount | None:
        """Return the step clock of a rank, by default the first; ``None`` before its first step."""
        # If all are lost, and no others have started yet, there is no clock.
        rank = next(iter(self.world), -1) if rank is None else rank
        node = self._node_of(rank)
        if node is not None:
            return node.counts.get(rank)
        return read_step_clock(self._paths.rank_clock(rank))

    def counts(self) -> dict[int, StepCount]:
        """Return the step clocks of the ranks that have made a step."""
        counts = ((rank, self.count(rank)) for rank in self.world)
        return {rank: count for rank, count in counts if count is not None and count.steps}

    def slowest(self) -> StepCount | None:
        """Return the step clock of the rank that is furthest behind; ``None`` until all step."""
        counts = self.counts()
        if not counts or len(counts) < len(self.world):
            return None
        return min(counts.values(), key=lambda count: (count.steps, -count.last_step_t))

    def oom_kills(self) -> int | None:
        """Return how many processes the kernel has killed for memory since; ``None``: unknown."""
        now, before = count_oom_kills(), self._oom_kills
        local = None if now is None or before is None else now - before
        counts = [local, *(node.oom_kills for node in self._nodes)]
        return None if None in counts else sum(count or 0 for count in counts)

    def take(self, event: Event) -> None:
        """Remember the process of a rank that starts, or of one that trains in its place.

        Or that the script of a rank has ended.
        """
        if isinstance(event, Regrouped):
            self._regroup(event.members)
        if isinstance(event, Started):
            number = event.pid >> 32  # of the node of the process; 0 for this host
            known = 0 < number <= len(self._nodes)
            self._places[event.rank] = self._nodes[number - 1] if known else None
        if isinstance(event, (Started, Ended)) and self._node_of(event.rank) is not None:
            return
        if isinstance(event, Ended):
            self._ended.add(event.rank)
        if isinstance(event, Started):
            self._processes.pop(event.rank, None)
            self._ended.discard(event.rank)
        if isinstance(event, (Started, Spawned)):
            with contextlib.suppress(psutil.Error, OSError, ValueError, OverflowError):
                process = psutil.Process(event.pid)
                if process.environ().get("ZEUSRUN_RUN_DIR") != self._run_dir:
                    return
                if isinstance(event, Started):
                    self._processes[event.rank] = process
                else:
                    self._training.add(process)

    def _regroup(self, members: tuple[int, ...]) -> None:
        """Take other processes as the ranks, on all hosts."""
        for rank in set(self._ranks) - set(members):  # lost, or they have left
            self._processes.pop(rank, None)
        self._ranks = members
        for node in self._nodes:
            node.set_members([n for n in members if self._node_of(n) is node])

    def find_others(self, now_t: float, launched_t: float) -> list[Spawned]:
        """Return the ranks that the scripts of this host have started.

        Call it as long as no process of ours trains.
        """
        if now_t - launched_t < self._scan_after_s:
            return []
        self._scan_after_s = _BACKOFF * (now_t - launched_t)
        found = find_started_ranks(self._processes.values())
        return [Spawned(now_t, pid, size) for pid, size in found.items()]

    def ask_to_end(self) -> bool:
        """Send SIGTERM once to each rank that handles it; return whether the run will end.

        Call it until all ranks have ended. A data loader worker gets no signal: if it dies, its
        rank fails in mid-epoch. A rank without a handler would die of it at once, with its files
        open. Once all others have ended, it gets the ``LEAVE_SIGNAL`` and 5 seconds. The processes
        that train in the place of a rank that waits for them get it first.

        The run will not end if a rank is unknown, if one died without an ``Ended`` event, so that
        torchrun would restart it, or if the remaining ranks handle neither signal.
        """
        left = {rank: each for rank, each in self._processes.items() if state_of(each) is not None}
        # Its last events have been read since. One that is no member makes no difference.
        died = self._gone.intersection(self._members) - self._ended - left.keys()
        self._gone = self._processes.keys() - left.keys()
        if not self._processes.keys() >= set(self._members) or died:
            return False
        training = {process for process in self._training if state_of(process) is not None}
        able = [each for each in training.union(left.values()) if _handles(each, signal.SIGTERM)]
        for process in able:
            if process not in self._asked and send(process, signal.SIGTERM):
                self._asked.add(process)
        return (
            bool(able)
            or self._ask_to_leave([each for each in training if self._can_leave(each)])
            or left.keys() <= self._ended
            or self._ask_to_leave(
                [process for rank, process in left.items() if rank not in self._ended]
            )
        )

    def _ask_to_leave(self, processes: list[psutil.Process]) -> bool:
        """Send ``LEAVE_SIGNAL`` once to processes that all handle it; return whether to wait."""
        if not all(map(self._can_leave, processes)):
            return False
        now_t = time.monotonic()
        for process in processes:
            if process not in self._left_t:
                self._left_t[process] = now_t
                send(process, LEAVE_SIGNAL)
        return any(now_t < self._left_t[process] + _LEAVE_S for process in processes)

    def _can_leave(self, process: psutil.Process) -> bool:
        """Whether a process has got ``LEAVE_SIGNAL``, or handles it."""
        return process in self._left_t or _handles(process, LEAVE_SIGNAL)

    def all_live(self) -> bool:
        """Whether no known rank has ended. If one has, torchrun is about to act."""
        local = all(
            state_of(process) is not None
            for rank, process in self._processes.items()
            if rank in self._members
        )
        return local and all(node.all_live for node in self._nodes)

    def state(self, rank: int) -> str | None:
        """Return the process state of a rank as psutil names it; ``None`` if gone or unknown."""
        if (node := self._node_of(rank)) is not None:
            return node.states.get(rank)
        process = self._processes.get(rank)
        return None if process is None else state_of(process)

    @property
    def states(self) -> dict[int, str]:
        """The process state of each rank whose process is alive."""
        found = ((rank, self.state(rank)) for rank in self.world)
        return {rank: state for rank, state in found if state is not None}

    def ask_for_stacks(self) -> None:
        """Ask every rank to write its stacks into a file."""
        sizes = {rank: _size_of(self._paths.rank_stack(rank)) for rank in self.world}
        asked = {rank for rank in self._members if self.ask_for_stack(rank)}
        for node in self._nodes:
            node.ask_for_stacks()
            asked.update(node.ranks)
        self._offsets = {rank: sizes[rank] for rank in self.world if rank in asked}
        self._sizes = dict(self._offsets)

    def ask_for_stack(self, rank: int) -> bool:
        """Ask a rank to write its stacks into its file; return whether it will.

        Without a handler it would die; without the open file it would write elsewhere.
        """
        process, file = self._processes.get(rank), self._paths.rank_stack(rank)
        if process is None:
            return False
        try:
            if not _handles(process, STACK_SIGNAL) or not _has_open(process.pid, file):
                return False
        except OSError:  # it ends just now
            return False
        return send(process, STACK_SIGNAL)

    def have_answered(self) -> bool:
        """Whether all ranks that were asked have written their stacks, and write no more."""
        before = self._sizes
        self._sizes = {rank: _size_of(self._paths.rank_stack(rank)) for rank in self._offsets}
        written = all(self._sizes[rank] > offset for rank, offset in self._offsets.items())
        return written and self._sizes == before

    def stacks(self) -> dict[int, str]:
        """Return what each rank wrote when it was asked; empty where there is no answer."""
        asked = self._offsets
        return {
            rank: read_stack(self._paths.rank_stack(rank), asked[rank]) if rank in asked else ""
            for rank in self.world
        }

    def kill(self) -> bool:
        """Kill every rank and its children, as stuck data loaders; return whether any is known."""
        found: list[psutil.Process] = []
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error):
                found += [process, *process.children(recursive=True)]
        for process in found:
            send(process, signal.SIGKILL)
        for node in self._nodes:
            node.kill_ranks()
        return bool(found)


def _join_exits(exits: Sequence[ProcessExit]) -> ProcessExit:
    """Return how the torchruns of all hosts ended: with a code that is not 0, if one did.

    A failure counts before a signal: zeusrun kills a torchrun that waits for one that has failed.
    """
    return ProcessExit(
        max((each.code for each in exits if each.code), default=0),
        max(each.ended_t for each in exits),
        tuple(name for each in exits for name in each.outlived),
        tuple(name for each in exits for name in each.left),
    )


def _handles(process: psutil.Process, number: int) -> bool:
    """Whether a process has a handler for a signal (proc_pid_status(5)); not if it has ended."""
    try:
        # The kernel cuts the name to 15 bytes, perhaps inside a character.
        status = Path(f"/proc/{process.pid}/status").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    found = _SIGNALS_CAUGHT.search(status)
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _has_open(pid: int, path: Path) -> bool:
    wanted = path.lstat()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False


def _size_of(path: Path) -> int:
    """Return the size of a file; 0 if there is none."""
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def read_stack(path: Path, offset: int) -> str:
    """Return what a rank wrote after ``offset``; empty if the file cannot be read."""
    try:
        with open(open_for_reading(path), "rb") as file:  # noqa: PTH123 - a descriptor
            file.seek(offset)
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:
        return ""
