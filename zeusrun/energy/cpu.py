"""The CPU as a device, for jobs without a GPU: energy counters if readable, otherwise a model.

Source of the counters (RAPL): Linux kernel documentation, "Power Capping Framework"
(``Documentation/power/powercap/powercap.rst``). AMD's counters appear under the same names.
"""

from __future__ import annotations

import math
import os
import platform
import re
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.energy.cpu_times import DescendantTimes
from zeusrun.energy.device import Reading
from zeusrun.errors import DeviceError, UsageError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.energy.device import Device

POWERCAP = Path("/sys/class/powercap")
WATTS_PER_CORE_VARIABLE = "ZEUSRUN_CPU_WATTS_PER_CORE"
DEFAULT_WATTS_PER_CORE = 10.0


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
