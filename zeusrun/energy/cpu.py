"""The CPU time of processes, and the CPU as a device, for jobs without a GPU.

The device has energy counters if they are readable, otherwise a model of the CPU time.

Source of the counters (RAPL): Linux kernel documentation, "Power Capping Framework"
(``Documentation/power/powercap/powercap.rst``). AMD's counters appear under the same names.
"""

from __future__ import annotations

import math
import os
import platform
import re
import resource
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import Reading
from zeusrun.errors import DeviceError, UsageError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.energy.device import Device

PROC = Path("/proc")
_REFRESH_S = 1.0
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
POWERCAP = Path("/sys/class/powercap")
WATTS_PER_CORE_VARIABLE = "ZEUSRUN_CPU_WATTS_PER_CORE"
DEFAULT_WATTS_PER_CORE = 10.0


class Stat(NamedTuple):
    """What proc_pid_stat(5) says of a process, and the CPU time of its ended children."""

    name: str
    parent: int
    cpu_s: float
    started: int


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
    return Stat(name, int(fields[1]), sum(ticks) / TICKS_PER_S, int(fields[19]))


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


class _Cpu:
    uuid = "cpu"
    is_gpu = False
    caveat = None

    def compute_processes(self) -> None:
        """See ``Device.compute_processes``: every process uses the CPU, so this is unknown."""

    def close(self) -> None:
        """See ``Device.close``; nothing is held."""


class EstimatedCpu(_Cpu):
    """A model: each CPU second of the processes that this process launched costs the same joules.

    The default of 10 W is a round assumption; better is the rated power (TDP) divided by the cores.
    """

    energy_source = EnergySource.ESTIMATED

    def __init__(
        self,
        model: str,
        watts_per_core: float = DEFAULT_WATTS_PER_CORE,
        times: DescendantTimes | None = None,
    ) -> None:
        self.model = model
        self.max_power_w = watts_per_core * len(os.sched_getaffinity(0))
        self._watts_per_core = watts_per_core
        self._times = DescendantTimes() if times is None else times

    def read(self) -> Reading:
        """See ``Device.read``. It has no power: clock ticks of 10 ms are too coarse for that."""
        return Reading(self._watts_per_core * self._times.cpu_s(), None, None)


class RaplCpu(_Cpu):
    """All CPU packages of this machine as one device, whatever runs on them.

    Memory is not included. Read it more often than the counters wrap: every 20 minutes at 200 W.
    """

    energy_source = EnergySource.COUNTER

    def __init__(
        self, model: str, nominal_max_power_w: float | None = None, root: Path = POWERCAP
    ) -> None:
        """Open the counters, or raise a ``DeviceError``. AMD's have no maximum power."""
        self.model = model
        packages = [path for path in sorted(root.glob("intel-rapl:*")) if _is_package(path)]
        if not packages:
            raise DeviceError(f"{root} has no CPU package with an energy counter")
        self._counters = [_PackageCounter(path) for path in packages]
        known_w = [watts for path in packages if (watts := _max_power_w(path)) is not None]
        complete = len(known_w) == len(packages)
        self.max_power_w = sum(known_w) if complete else nominal_max_power_w

    def read(self) -> Reading:
        """See ``Device.read``."""
        return Reading(sum(counter.read_j() for counter in self._counters), None, None)


class _PackageCounter:
    def __init__(self, path: Path) -> None:
        self._path = path / "energy_uj"
        self._range_uj = _read_int(path / "max_energy_range_uj")
        self._last_uj = _read_int(self._path)
        self._wrapped_uj = 0

    def read_j(self) -> float:
        energy_uj = _read_int(self._path)
        if energy_uj < self._last_uj:
            self._wrapped_uj += self._range_uj
        self._last_uj = energy_uj
        return (self._wrapped_uj + energy_uj) / 1e6


def cpu_device(environment: Mapping[str, str], powercap: Path = POWERCAP) -> Device:
    """Open the CPU: by its counters if they can be read, otherwise by the model.

    ``UsageError`` if ``ZEUSRUN_CPU_WATTS_PER_CORE`` is not a positive number; ``DeviceError`` if
    not even CPU times can be read.
    """
    watts_per_core = _load_watts_per_core(environment)
    model = _load_model()
    try:
        return RaplCpu(model, watts_per_core * (os.cpu_count() or 1), powercap)
    except DeviceError:  # usually there are no counters, or only root may read them
        return EstimatedCpu(model, watts_per_core)


def _load_watts_per_core(environment: Mapping[str, str]) -> float:
    text = environment.get(WATTS_PER_CORE_VARIABLE, str(DEFAULT_WATTS_PER_CORE))
    try:
        watts = float(text)
    except ValueError:
        watts = math.nan
    if not 0 < watts < math.inf:
        raise UsageError(
            f"{WATTS_PER_CORE_VARIABLE}={text!r} is not a number of watts; "
            f"give a positive one, such as {DEFAULT_WATTS_PER_CORE:g}"
        )
    return watts


def _load_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine() or "CPU")  # Arm kernels give no name


def _is_package(path: Path) -> bool:
    # intel-rapl:0:0 is a part of a package. The zone "psys" contains the packages.
    if not re.fullmatch(r"intel-rapl:\d+", path.name):
        return False
    try:
        return (path / "name").read_text(encoding="ascii").startswith("package")
    except OSError:
        return False


def _max_power_w(package: Path) -> float | None:
    try:
        return _read_int(package / "constraint_0_max_power_uw") / 1e6 or None  # 0 on some machines
    except DeviceError:
        return None


def _read_int(path: Path) -> int:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError) as error:
        raise DeviceError(f"{path} cannot be read ({error}); reading it may need root") from error
