"""How much of the CPUs other programs take while a run trains.

Source: proc_stat(5). Its times are those of the whole machine, also in a container. What is not
idle and not of this process or its descendants is of others: their programs, the kernel, and what
the host of a virtual machine takes for itself or for other machines ("steal").
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.cpu_times import PROC, DescendantTimes, read_stat
from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from zeusrun.energy.cpu_times import Stat

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_FIELDS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user
_IDLE, _IOWAIT = 3, 4
_NAMES = 3


class Load(NamedTuple):
    """Mean shares of the time of the CPUs, from 0 to 1, over some seconds."""

    seconds: float
    others: float
    idle: float  # waiting for a disk included


class OtherPrograms:
    """Measures from its making on, over the CPUs that this process may use."""

    def __init__(
        self,
        proc: Path = PROC,
        cpus: Collection[int] | None = None,
        own_s: Callable[[], float] = time.process_time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start. ``own_s`` is the CPU time of this process itself.

        Raises ``DeviceError`` if ``proc`` cannot be read.
        """
        self._proc, self._clock, self._own_s = proc, clock, own_s
        cpus = os.sched_getaffinity(0) if cpus is None else cpus
        self._names = {f"cpu{number}" for number in cpus}
        self._descendants = DescendantTimes(proc=proc, clock=clock)
        self._processes_before = self._read_processes()
        self._begun_s, self._own_before_s = clock(), own_s()
        self._ticks_before = self._read_ticks()

    def measure(self) -> Load | None:
        """Return the load since this object was made; ``None`` if the counters did not move.

        Raises ``DeviceError`` if ``/proc`` cannot be read.
        """
        own_s = self._own_s() - self._own_before_s + self._descendants.cpu_s()
        now, seconds = self._read_ticks(), self._clock() - self._begun_s
        spent = [0] * _FIELDS
        for name, before in self._ticks_before.items():  # a CPU may be switched off meanwhile
            for place, (then, after) in enumerate(zip(before, now.get(name, before), strict=True)):
                spent[place] += max(0, after - then)  # idle and iowait may go back
        total = sum(spent)
        if not total:
            return None
        idle = spent[_IDLE] + spent[_IOWAIT]
        others = max(0.0, total - idle - own_s * _TICKS_PER_S)
        return Load(seconds, others / total, idle / total)

    def largest(self) -> list[str]:
        """Return the names of the present programs that used the most CPU time, the most first."""
        spent_s: dict[str, float] = {}
        for pid, now in self._read_processes().items():
            before = self._processes_before.get(pid)
            same = before is not None and before.started == now.started
            before_s = before.own_s if before is not None and same else 0.0
            spent_s[now.name] = spent_s.get(now.name, 0.0) + now.own_s - before_s
        most = sorted(spent_s, key=lambda name: -spent_s[name])[:_NAMES]
        return [name for name in most if spent_s[name] > sum(spent_s.values()) / 10]

    def _read_processes(self) -> dict[int, Stat]:
        """Return all processes but ours."""
        pids = {int(name) for name in os.listdir(self._proc) if name.isdecimal()}  # noqa: PTH208
        pids -= self._descendants.pids
        found = {pid: read_stat(pid, str(self._proc)) for pid in pids}
        return {pid: stat for pid, stat in found.items() if stat is not None}

    def _read_ticks(self) -> Mapping[str, tuple[int, ...]]:
        """Return the counters of each of our CPUs; those of all if ours are not listed."""
        try:
            text = (self._proc / "stat").read_text(encoding="ascii")
            lines = [line.split() for line in text.splitlines() if line.startswith("cpu")]
            ticks = {line[0]: tuple(map(int, line[1 : _FIELDS + 1])) for line in lines}
        except (OSError, ValueError) as error:
            raise DeviceError(f"{self._proc / 'stat'} cannot be read: {error}") from error
        # Some containers number their CPUs anew.
        ours = {name: ticks[name] for name in ticks.keys() & self._names}
        return ours or {name: ticks[name] for name in ticks.keys() & {"cpu"}}
