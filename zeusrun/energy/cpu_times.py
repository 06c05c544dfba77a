"""CPU time of all processes that this process has launched."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable

PROC = Path("/proc")
_REFRESH_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)


class Stat(NamedTuple):
    """What proc_pid_stat(5) says of a process, and the CPU time of its ended children."""

    name: str
    parent: int
    cpu_s: float
    started: int
    own_s: float  # without its children


def read_stat(pid: int, proc: str = "/proc") -> Stat | None:
    """Read a process; ``None`` if it has ended or is hidden."""
    try:
        file = os.open(f"{proc}/{pid}/stat", os.O_RDONLY)
        try:
            text = os.read(file, 4096)
        finally:
            os.close(file)
    except _GONE:
        return None
    # The name is in brackets and may contain anything. After it follow the state, the parent, …;
    # user, system, reaped user and reaped system time are fields 14-17.
    fields = text[text.rindex(b")") + 2 :].split()
    name = text[text.index(b"(") + 1 : text.rindex(b")")].decode("utf-8", "replace")
    ticks = [int(field) for field in fields[11:15]]
    own_s, cpu_s = sum(ticks[:2]) / TICKS_PER_S, sum(ticks) / TICKS_PER_S
    return Stat(name, int(fields[1]), cpu_s, int(fields[19]), own_s)


def reaped_cpu_s() -> float:
    """Return the CPU seconds of this process's ended children, including their own children."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


class DescendantTimes:
    """CPU seconds of all descendants of a process since this object was made. Never decreases.

    The kernel adds the time of an ended process to the parent that waits for it. So the total is
    the time of the live descendants, with their own ended children, plus the time of the children
    that ended here. The time of an orphan goes to another process: the total drops for good, and
    this class adds the lost time again after a second.

    It does not count a process that leaves our tree within a second of its start (a daemon that
    forks twice). If ``proc`` cannot be read, it raises a ``DeviceError``.
    """

    def __init__(
        self,
        process: int | None = None,
        proc: Path = PROC,
        reaped_s: Callable[[], float] = reaped_cpu_s,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at zero. The process itself is not counted; ``None`` is this process."""
        self._process = os.getpid() if process is None else process
        self._proc = str(proc)
        self._reaped_s = reaped_s
        self._clock = clock
        self._descendants: dict[int, int] = {}  # pid -> start; a parent always before its children
        self._strangers: set[int] = set()
        self._refresh_at_s = 0.0
        self._lost_s = 0.0
        self._drop: tuple[float, float] | None = None  # start and depth, while the total is lower
        self._highest_s = float("-inf")
        self._origin_s = 0.0
        self._origin_s = self.cpu_s()

    @property
    def pids(self) -> frozenset[int]:
        """The process and its descendants, as of the last ``cpu_s``."""
        return frozenset({self._process, *self._descendants})

    def cpu_s(self) -> float:
        """Return the CPU seconds so far."""
        now_s = self._clock()
        if now_s >= self._refresh_at_s:
            self._refresh()
            self._refresh_at_s = now_s + _REFRESH_S
        # Read from the root to the leaves: a process that ends between two reads is then missing
        # from this total. In the other order it would count twice.
        total_s = self._reaped_s() + self._lost_s
        for pid, started in list(self._descendants.items()):
            stat = read_stat(pid, self._proc)
            if stat is None or stat.started != started:  # ended; its number may be reused
                del self._descendants[pid]
            else:
                total_s += stat.cpu_s
        self._highest_s = max(self._highest_s, self._lift(now_s, total_s))
        return self._highest_s - self._origin_s

    def _lift(self, now_s: float, total_s: float) -> float:
        """Add the lost time to a total that stays lower for a second."""
        if total_s >= self._highest_s:
            self._drop = None
            return total_s
        since_s, deepest_s = self._drop or (now_s, 0.0)
        deepest_s = max(deepest_s, self._highest_s - total_s)
        if now_s - since_s < _REFRESH_S:
            self._drop = (since_s, deepest_s)
            return total_s  # probably ended between two reads: the next total includes it
        self._drop = None
        self._lost_s += deepest_s
        return total_s + deepest_s

    def _refresh(self) -> None:
        """Find new descendants; read only processes that were not seen before."""
        try:
            names = os.listdir(self._proc)  # noqa: PTH208 - ten times faster than Path.iterdir
        except OSError as error:
            raise DeviceError(f"CPU time cannot be read: {error}; is /proc mounted?") from error
        pids = {int(name) for name in names if name.isdecimal()}
        self._strangers &= pids
        unknown = {}
        for pid in pids - self._strangers - self._descendants.keys() - {self._process}:
            stat = read_stat(pid, self._proc)
            if stat is not None:
                unknown[pid] = stat
        ours = {self._process, *self._descendants}
        while found := {pid: stat for pid, stat in unknown.items() if stat.parent in ours}:
            for pid, stat in found.items():
                self._descendants[pid] = stat.started
                del unknown[pid]
            ours = set(found)
        self._strangers |= unknown.keys()
