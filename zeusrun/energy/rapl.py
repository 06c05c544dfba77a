"""The energy counters of CPU packages (RAPL), read through the Linux kernel.

Source: Linux kernel documentation, "Power Capping Framework"
(``Documentation/power/powercap/powercap.rst``). AMD's counters appear under the same names.
"""

from __future__ import annotations

import re
from pathlib import Path

from zeusrun.energy.device import Reading
from zeusrun.errors import DeviceError
from zeusrun.trial import EnergySource

POWERCAP = Path("/sys/class/powercap")


class RaplCpu:
    """All CPU packages of this machine as one device, whatever runs on them.

    Memory is not included. Read it more often than the counters wrap: every 20 minutes at 200 W.
    """

    uuid = "cpu"
    is_gpu = False
    energy_source = EnergySource.COUNTER
    caveat = None

    def __init__(
        self, model: str, nominal_max_power_w: float | None = None, root: Path = POWERCAP
    ) -> None:
        """Open the counters.

        Args:
            model: Product name of the CPU.
            nominal_max_power_w: Maximum power to assume where the kernel provides none (AMD).
            root: The kernel's powercap folder.

        Raises:
            DeviceError: If there is no counter, or any cannot be read.
        """
        self.model = model
        packages = [path for path in sorted(root.glob("intel-rapl:*")) if _is_package(path)]
        if not packages:
            raise DeviceError(f"{root} has no CPU package with an energy counter")
        self._counters = [_PackageCounter(path) for path in packages]
        known_w = [_max_power_w(path) for path in packages]
        in_full_w = [watts for watts in known_w if watts is not None]
        complete = len(in_full_w) == len(packages)
        self.max_power_w = sum(in_full_w) if complete else nominal_max_power_w

    def read(self) -> Reading:
        """See ``Device.read``."""
        energy_j = sum(counter.read_j() for counter in self._counters)
        return Reading(energy_j=energy_j, power_w=None, power_limit_w=None)

    def compute_processes(self) -> None:
        """See ``Device.compute_processes``: every process uses the CPU, so this is unknown."""

    def close(self) -> None:
        """See ``Device.close``; nothing is held."""


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
