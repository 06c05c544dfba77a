"""NVIDIA GPUs through NVML: the only importer of ``pynvml``.

Names, units and return codes: NVML API Reference, "Device Queries" and "Device Commands".
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.energy.device import Health, Reading, check_power_limit
from zeusrun.errors import DeviceError, LimitRefusedError, VisibleGpusError
from zeusrun.gpu.cuda_visible import VisibleGpu, parse_visible, resolve_visible
from zeusrun.gpu.nvml_answers import first_answer, unless_unsupported
from zeusrun.gpu.nvml_health import read_health
from zeusrun.gpu.nvml_identity import identify_gpus, read_pci_address
from zeusrun.gpu.nvml_power import PowerSensor
from zeusrun.gpu.zeusd import find_zeusd
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from zeusrun.energy.device import Device
    from zeusrun.gpu.cuda_visible import GpuIdentity
    from zeusrun.gpu.zeusd import Zeusd

# Values that change slowly are read this often and reused in between: at 10 Hz on eight GPUs, the
# queries would cost too much.
_SLOW_PERIOD_S = 0.5


_Answer = TypeVar("_Answer")


@dataclass(frozen=True)
class _SlowReading:
    power_limit_w: float | None
    health: Health
    until_s: float  # on the device's clock
    limits_set: int  # how many limits had been set through this device before the query


class NvmlGpu:
    """One GPU. It keeps NVML open from its creation until ``close``.

    Attributes:
        nvml_index: NVML's number for it.
    """

    is_gpu = True

    def __init__(
        self,
        gpu: VisibleGpu,
        zeusd: Zeusd | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the GPU.

        Args:
            gpu: Which GPU, and whether the job uses it whole.
            zeusd: Sets a limit if this process may not; ``None`` if there is none.
            clock: Monotonic seconds.

        Raises:
            DeviceError: If it does not answer.
        """
        import pynvml  # noqa: PLC0415 - the library is looked for when a job asks for GPUs

        self.nvml_index = gpu.nvml_index
        self.model = gpu.model
        self.uuid = f"GPU {gpu.nvml_index}"  # its name in errors, until NVML returns the UUID
        self._nvml: Any = pynvml
        self._zeusd = zeusd
        self._clock = clock
        self._limits_set = 0
        self._slow: _SlowReading | None = None
        self._call(pynvml.nvmlInit)
        self._open = True
        try:
            self._handle = self._call(pynvml.nvmlDeviceGetHandleByIndex, gpu.nvml_index)
            self.uuid = self._call(pynvml.nvmlDeviceGetUUID, self._handle)
        except DeviceError:
            self.close()
            raise
        range_w = _unless_failing(self.power_limit_range_w)
        self.max_power_w = range_w[1] if range_w else _unless_failing(self._max_power_w)
        self._sensor = PowerSensor(pynvml, self._handle, self.model)
        has_counter = _unless_failing(self._energy_j) is not None
        self.energy_source = EnergySource.COUNTER if has_counter else EnergySource.INTEGRATED
        self.caveat = (
            f"{self.model} is a part of {self.uuid}: power, energy and limit are those of the "
            "whole GPU, which its other MIG instances share"
            if gpu.is_mig
            else None
        )

    def read(self) -> Reading:
        """See ``Device.read``. Limit and health are up to half a second old.

        If one query fails, only its own value is unknown.
        """
        slow = self._read_slow()
        values: list[float | None] = []
        failures: list[DeviceError] = []
        for ask in (self._energy_j, self._power_w):
            try:
                values.append(ask())
            except DeviceError as error:
                values.append(None)
                failures.append(error)
        energy_j, power_w = values
        if failures and energy_j is None and power_w is None:
            raise failures[0]
        return Reading(energy_j, power_w, slow.power_limit_w, slow.health)

    def compute_processes(self) -> frozenset[int] | None:
        """See ``Device.compute_processes``; on a GPU with MIG, those of all instances."""
        names = (
            "nvmlDeviceGetComputeRunningProcesses_v3",
            "nvmlDeviceGetComputeRunningProcesses_v2",
        )
        try:
            processes = first_answer(self._nvml, names, self._handle)
        except self._nvml.NVMLError_InsufficientSize:  # more processes came during the query
            return None
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error
        return None if processes is None else frozenset(process.pid for process in processes)

    def power_limit_range_w(self) -> tuple[float, float] | None:
        """See ``LimitableDevice.power_limit_range_w``; check: ``nvidia-smi -q -d POWER``."""
        self._slow = None  # a caller is about to set a limit: read it anew
        limits_mw = self._ask(self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return None if limits_mw is None else (limits_mw[0] / 1000, limits_mw[1] / 1000)

    def power_limit_w(self) -> float | None:
        """See ``LimitableDevice.power_limit_w``; check: ``nvidia-smi -q -d POWER``."""
        return self._ask_milli(self._nvml.nvmlDeviceGetPowerManagementLimit)

    def set_power_limit_w(self, watts: float) -> None:
        """See ``LimitableDevice.set_power_limit_w``: through NVML, else through a ``zeusd``."""
        check_power_limit(self._name, watts, self.power_limit_range_w())
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(watts * 1000))
        except self._nvml.NVMLError_NoPermission:
            self._set_through_zeusd(watts)
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error
        finally:
            self._limits_set += 1

    def close(self) -> None:
        """See ``Device.close``."""
        if self._open:
            self._open = False
            # After a driver restart NVML is closed already.
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _set_through_zeusd(self, watts: float) -> None:
        remedy = "run zeusrun as root or with CAP_SYS_ADMIN, or start zeusd"
        if self._zeusd is None:
            raise LimitRefusedError(
                f"this user may not set the power limit of {self._name}: {remedy}"
            )
        try:
            count = self._call(self._nvml.nvmlDeviceGetCount)
            pci = self._call(read_pci_address, self._nvml, self._handle)
            self._zeusd.set_power_limit_w(self.nvml_index, watts, count, pci)
        except LimitRefusedError as error:
            raise LimitRefusedError(
                f"this user may not set the power limit of {self._name}, and {error}: {remedy} "
                "so that it serves this user and these GPUs"
            ) from error
        limit_w = self.power_limit_w()
        if limit_w is None or round(limit_w * 1000) != round(watts * 1000):
            raise DeviceError(
                f"{self._zeusd} reports that it set {self._name} to {watts:g} W, but its limit is "
                f"{limit_w} W; does the daemon number GPUs differently (`nvidia-smi`)?"
            )

    def _read_slow(self) -> _SlowReading:
        """Return the last slow reading, or a new one when it is old or a limit was set since."""
        now_s = self._clock()
        # The monitor's thread reads while the main thread sets limits. A value read before a limit
        # was set is not reused after it.
        limits_set = self._limits_set
        slow = self._slow
        if slow is None or now_s >= slow.until_s or slow.limits_set != limits_set:
            slow = self._slow = _SlowReading(
                power_limit_w=_unless_failing(self.power_limit_w),
                health=read_health(self._nvml, self._handle),
                until_s=now_s + _SLOW_PERIOD_S,
                limits_set=limits_set,
            )
        return slow

    def _energy_j(self) -> float | None:
        return self._ask_milli(self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def _power_w(self) -> float | None:
        power_w: float | None = self._call(self._sensor.read_w)
        return power_w

    def _max_power_w(self) -> float | None:
        return self._ask_milli(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit)

    def _ask_milli(self, query: Callable[[Any], Any]) -> float | None:
        value = self._ask(query)
        return None if value is None else value / 1000  # NVML uses mW and mJ

    def _ask(self, query: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - pynvml is untyped
        return self._call(unless_unsupported, self._nvml, query, self._handle)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as _ask
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error

    def _device_error(self, error: Any) -> DeviceError:  # noqa: ANN401 - as _ask
        why = str(error)
        if isinstance(error, self._nvml.NVMLError_Uninitialized):
            why += " (its driver was restarted)"
        if isinstance(error, self._nvml.NVMLError_GpuIsLost):
            index = self.nvml_index
            why += f" (GPU {index}: `nvidia-smi --gpu-reset -i {index}` or a reboot brings it back)"
        return DeviceError(f"{self._name}: NVML says {why}; see `nvidia-smi` and `dmesg`")

    @property
    def _name(self) -> str:
        return f"{self.model} ({self.uuid})"


def gpus_of_job(environment: Mapping[str, str], count: int | None) -> list[Device]:
    """Open the GPUs that a job with this environment will use.

    Args:
        environment: The job's; read for ``CUDA_VISIBLE_DEVICES``, ``CUDA_DEVICE_ORDER`` and the
            address of a ``zeusd`` (see ``find_zeusd``).
        count: How many of the visible ones it uses, the first in CUDA's order; ``None`` is all.

    Returns:
        Devices in CUDA's order, fewer than ``count`` if there are fewer; none without a library, a
        driver or a GPU. A MIG instance is metered as its whole GPU, because NVML has no power for
        instances; its model is the instance's, and its ``caveat`` says so.

    Raises:
        VisibleGpusError: If ``CUDA_VISIBLE_DEVICES`` is not usable on a machine with GPUs.
        DeviceError: If NVML does not answer, or a GPU that the job may use.
        ValueError: If ``count`` is negative.
    """
    if count is not None and count < 0:
        raise ValueError(f"a job cannot use {count} GPUs")
    entries: tuple[int | str, ...] | None = None
    unusable: VisibleGpusError | None = None
    try:
        entries = parse_visible(environment.get("CUDA_VISIBLE_DEVICES"))
    except VisibleGpusError as error:
        unusable = error
    if count == 0 or entries == ():
        return []
    with _listed() as (gpus, silent):
        if not gpus and not silent:
            return []
        if unusable is not None:
            raise unusable
        if silent and (entries is None or not all(isinstance(e, str) for e in entries)):
            # CUDA may or may not count the silent GPU, so indices are ambiguous.
            others = "until then, list the others by UUID in CUDA_VISIBLE_DEVICES (`nvidia-smi -L`)"
            raise DeviceError(f"{silent[0]}; {others}")
        if silent and entries is not None:
            entries = entries[:count]  # a later one may be the silent one
        pci_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        try:
            visible = resolve_visible(entries, gpus, pci_order=pci_order, count=count)
        except VisibleGpusError as error:
            if silent:
                raise DeviceError(f"{error}. It may be this one: {silent[0]}") from error
            raise
        return _open_all(visible, find_zeusd(environment))


def gpu_by_uuid(uuid: str, environment: Mapping[str, str]) -> NvmlGpu:
    """Open a whole GPU by its UUID, even if the environment hides it.

    Args:
        uuid: UUID of the GPU.
        environment: Contains the address of a ``zeusd``.

    Raises:
        DeviceError: If it is absent or does not answer.
    """
    with _listed() as (gpus, silent):
        for gpu in gpus:
            if gpu.uuid == uuid:
                return NvmlGpu(VisibleGpu(gpu.nvml_index, gpu.model), find_zeusd(environment))
        if silent:
            raise DeviceError(f"{uuid} is not found. It may be this one: {silent[0]}")
    raise DeviceError(f"{uuid} is not in this machine; `nvidia-smi -L` lists the GPUs")


def gpus_of_machine() -> list[Device | DeviceError]:
    """Open every GPU that this process may use, even hidden ones.

    Returns:
        In NVML's order, whole GPUs, with or without MIG instances; an error for each that cannot
        be opened.

    Raises:
        DeviceError: If NVML does not answer.
    """
    opened: list[Device | DeviceError] = []
    with _listed() as (gpus, silent):
        for gpu in gpus:
            try:
                opened.append(NvmlGpu(VisibleGpu(gpu.nvml_index, gpu.model)))
            except DeviceError as error:
                opened.append(error)
        return [*opened, *silent]


def _unless_failing(ask: Callable[[], _Answer | None]) -> _Answer | None:
    """Return an optional value; a lost GPU raises its error at the next reading."""
    try:
        return ask()
    except DeviceError:
        return None


@contextlib.contextmanager
def _listed() -> Iterator[tuple[list[GpuIdentity], list[DeviceError]]]:
    """Open NVML, list the GPUs and those that do not answer, and close NVML.

    Raises:
        DeviceError: If NVML does not answer.
    """
    import pynvml  # noqa: PLC0415 - as in NvmlGpu

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        yield [], []
        return
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start: {error}; does `nvidia-smi` work? CUDA_VISIBLE_DEVICES= trains "
            "without GPUs"
        ) from error
    try:
        gpus, errors = identify_gpus(pynvml)
        silent = [_silent_gpu(pynvml, index, error) for index, error in errors.items()]
        yield gpus, silent
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML cannot list the GPUs: {error}; see `nvidia-smi -L`") from error
    finally:
        # Each open device keeps NVML open by itself. After a driver restart NVML is closed already.
        with contextlib.suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def _silent_gpu(nvml: Any, nvml_index: int, error: Exception) -> DeviceError:  # noqa: ANN401 - untyped module
    advice = "see `nvidia-smi` and `dmesg`"
    if isinstance(error, nvml.NVMLError_GpuIsLost):
        reset = f"`nvidia-smi --gpu-reset -i {nvml_index}`"
        advice = f"`dmesg` says why; reset it by {reset}, or reboot"
    return DeviceError(f"GPU {nvml_index} does not answer: NVML says {error}. {advice}")


def _open_all(visible: list[VisibleGpu], zeusd: Zeusd | None) -> list[Device]:
    devices: list[Device] = []
    try:
        for gpu in visible:
            devices.append(NvmlGpu(gpu, zeusd))  # noqa: PERF401 - see except
    except DeviceError:
        for device in devices:
            device.close()
        raise
    return devices
