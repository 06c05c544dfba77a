"""Whether others compute on the same CPU as a run without GPUs: other runs, other programs.

Source of the CPU times: proc_stat(5). They are those of the whole machine, also in a container.
What is not idle and not of this process or its descendants is of others: their programs, the
kernel, and what the host of a virtual machine takes for itself or for other machines ("steal").
"""

from __future__ import annotations

import os
import platform
import time
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.cpu import PROC, TICKS_PER_S, DescendantTimes
from zeusrun.errors import DeviceError, HistoryError
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.supervision.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping
    from pathlib import Path

    from zeusrun.metrics.progress import Progress

_PERIOD_S = 1.0
MIN_MEASURED_S = 3.0
"""What is measured over less says nothing: one short job of cron would be a large share of it."""
# Where ranks fill the CPUs, a share s of others slows them by 1 / (1 - s): measured 5 %: 1.05,
# 11 %: 1.12, 34 %: 1.51, 50 %: 2.0. An undisturbed submit sees 0.1 %, and speeds scatter by a few
# percent between nights anyway.
_MIN_OTHERS = 0.1
_MAX_IDLE = 0.1
# Of a line of /proc/stat.
_FIELDS = 8  # user, nice, system, idle, iowait, irq, softirq, steal; time of guests is in user
_IDLE, _IOWAIT = 3, 4


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
        others = max(0.0, total - idle - own_s * TICKS_PER_S)
        return Load(seconds, others / total, idle / total)

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


class Neighbours:
    """Checks once a second while a run trains.

    Another run counts once two checks in a row find it: one may be ending. Other programs count by
    their mean share of the CPUs over the whole training.
    """

    def __init__(
        self,
        home: Path,
        *,
        on_cpu: bool,
        others: Callable[[], OtherPrograms] = OtherPrograms,
        submit_pid: int | None = None,
    ) -> None:
        """Prepare; ``submit_pid`` is the process of the submit, ``None`` for this one."""
        self._on_cpu = on_cpu
        self._submit_pid = submit_pid or os.getpid()
        self._tickets = Tickets(home)
        self._due_t = 0.0
        self._before: frozenset[int] = frozenset()
        self._found = False
        self._begin = others
        self._others: OtherPrograms | None = None
        self._load: Load | None = None

    @property
    def shared(self) -> bool | None:
        """Whether others compute on the CPU; ``None`` if unknown, as on GPUs: the meter sees it."""
        if self._found:
            return True
        return None if self._load is None else disturbs(self._load)

    def check(self, now_t: float, *, trains: bool) -> str | None:
        """Check if it is time and the run is training; return a warning once runs are found."""
        if not self._on_cpu or not trains or now_t < self._due_t:
            return None
        self._due_t = now_t + _PERIOD_S
        self._measure()
        return None if self._found else self._find_runs()

    def describe_load(self) -> str | None:
        """Return a warning, once the run has ended, if other programs took too much."""
        if self._found or self._load is None or not disturbs(self._load):
            return None
        return (
            f"other programs took {100 * self._load.others:.0f} % of this machine's CPU time while "
            "it trained, so its time and cost are unreliable: they count only where no better ones "
            "are known"
        )

    def _measure(self) -> None:
        try:
            if self._others is None:
                self._others = self._begin()
            load = self._others.measure()
        except (DeviceError, OSError, ValueError):  # then it is unknown; it must not end a run
            return
        if load is not None and load.seconds >= MIN_MEASURED_S:
            self._load = load

    def _find_runs(self) -> str | None:
        try:
            present = self._tickets.present()
        except (OSError, HistoryError):  # a newer zeusrun may have come meanwhile
            present = []
        here = [t for t in present if t.on_cpu and t.host == platform.node()]
        found = [t for t in here if t.pid != self._submit_pid]
        again = Counter(ticket.job for ticket in found if ticket.number in self._before)
        self._before = frozenset(ticket.number for ticket in found)
        if not again:
            return None
        self._found = True
        jobs = [job if runs == 1 else f"{job} ({runs} runs)" for job, runs in sorted(again.items())]
        return (
            f"other runs train on this CPU: {', '.join(jobs)}; so the time and cost of "
            "this run are unreliable: they count only where no better ones are known"
        )


class CpuSharing(Agent):
    """Warns of other programs on the CPU."""

    def __init__(self, neighbours: Neighbours, warn: Callable[[str], None]) -> None:
        """Prepare; ``neighbours`` finds the other programs."""
        self._neighbours, self._warn = neighbours, warn

    def advance(self, progress: Progress) -> None:
        """Look for other programs from the start of the training until a rank ends."""
        begun = progress.training_t is not None or bool(progress.ranks.spawned)
        trains = begun and not progress.ranks.exit_codes
        if (text := self._neighbours.check(progress.now_t, trains=trains)) is not None:
            self._warn(text)

    def conclude(self, progress: Progress) -> None:
        """Warn if other programs used too much of the CPU."""
        self.advance(progress)
        if (text := self._neighbours.describe_load()) is not None:
            self._warn(text)


def disturbs(load: Load) -> bool:
    """Whether others slowed a training. On CPUs with idle time, they did not."""
    return load.others >= _MIN_OTHERS and load.idle < _MAX_IDLE
