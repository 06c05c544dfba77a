"""The CPU as a device, for jobs without a GPU: RAPL counters if readable, otherwise a model."""

from __future__ import annotations

import math
import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.energy.cpu_times import DescendantTimes
from zeusrun.energy.device import Reading
from zeusrun.energy.rapl import POWERCAP, RaplCpu
from zeusrun.errors import DeviceError, UsageError
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.energy.device import Device

WATTS_PER_CORE_VARIABLE = "ZEUSRUN_CPU_WATTS_PER_CORE"
DEFAULT_WATTS_PER_CORE = 10.0


class EstimatedCpu:
    """A model: each CPU second of the processes that this process launched costs the same joules.

    The default of 10 W is a round assumption, not a measurement. To improve it, set
    ``ZEUSRUN_CPU_WATTS_PER_CORE`` to the CPU's rated power (TDP) divided by its cores.
    """

    uuid = "cpu"
    is_gpu = False
    energy_source = EnergySource.ESTIMATED
    caveat = None

    def __init__(
        self,
        model: str,
        watts_per_core: float = DEFAULT_WATTS_PER_CORE,
        times: DescendantTimes | None = None,
    ) -> None:
        """Start counting.

        Args:
            model: Product name of the CPU.
            watts_per_core: Joules per CPU second.
            times: Counts the CPU seconds; ``None``: those of all processes that this one launches.

        Raises:
            DeviceError: If the kernel provides no CPU times.
        """
        self.model = model
        self.max_power_w = watts_per_core * len(os.sched_getaffinity(0))
        self._watts_per_core = watts_per_core
        try:
            self._times = DescendantTimes() if times is None else times
        except OSError as error:
            raise self._device_error(error) from error

    def read(self) -> Reading:
        """See ``Device.read``. It has no power: clock ticks of 10 ms are too coarse for that."""
        try:
            energy_j = self._watts_per_core * self._times.cpu_s()
        except OSError as error:
            raise self._device_error(error) from error
        return Reading(energy_j=energy_j, power_w=None, power_limit_w=None)

    def compute_processes(self) -> None:
        """See ``Device.compute_processes``: every process uses the CPU, so this is unknown."""

    def close(self) -> None:
        """See ``Device.close``; nothing is held."""

    def _device_error(self, error: OSError) -> DeviceError:
        return DeviceError(f"CPU time cannot be read: {error}; is /proc mounted?")


def cpu_device(environment: Mapping[str, str], powercap: Path = POWERCAP) -> Device:
    """Open the CPU: by its counters if they can be read, otherwise by the model.

    Args:
        environment: Read for ``ZEUSRUN_CPU_WATTS_PER_CORE``.
        powercap: The kernel's powercap folder.

    Raises:
        UsageError: If the variable is not a positive number.
        DeviceError: If not even CPU times can be read.
    """
    watts_per_core = _load_watts_per_core(environment)
    model = _load_model()
    try:
        return RaplCpu(model, watts_per_core * (os.cpu_count() or 1), powercap)
    except DeviceError:  # usually there are no counters, or only root may read them
        return EstimatedCpu(model, watts_per_core)


def _load_watts_per_core(environment: Mapping[str, str]) -> float:
    text = environment.get(WATTS_PER_CORE_VARIABLE)
    if text is None:
        return DEFAULT_WATTS_PER_CORE
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
