"""One NVIDIA GPU through NVML.

Names, units and return codes: NVML API Reference, "Device Queries", "Device Commands", "Field Value
Enums" and "Clocks Event Reasons". ``nvmlDeviceGetPowerUsage`` is a mean over a second on Ampere and
later except GA100. On a Grace Hopper it is the power of the whole module.
"""

from __future__ import annotations

import contextlib
import re
import time
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from zeusrun.energy.device import Health, Reading, check_power_limit, name_of
from zeusrun.errors import DeviceError, LimitRefusedError
from zeusrun.gpu.cuda_visible import GpuIdentity
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.energy.device import Device
    from zeusrun.gpu.cuda_visible import PciAddress, VisibleGpu
    from zeusrun.gpu.zeusd import Zeusd

Nvml: TypeAlias = Any  # the module pynvml, and what its functions take and return: it is untyped
_Answer = TypeVar("_Answer")

# Values that change slowly are read this often and reused in between: at 10 Hz on eight GPUs, the
# queries would cost too much.
_SLOW_PERIOD_S = 0.5
# The counter takes 3.4 ms of CPU time on an H200 (driver 580): at 10 Hz, eight such GPUs would take
# a quarter of a core. In between, its last value stands: it is a staircase anyway.
_SLOW_COUNTER_S = 0.001
_COUNTER_SHARE = 0.01
_MODULE_WITH_CPU = re.compile(r"\bG[HB]\d")  # GH200, GB200, …
_GPU_SCOPE = 0  # NVML_POWER_SCOPE_GPU
_THROTTLE_REASONS = (
    (0x1, "gpu_idle"),
    (0x2, "applications_clocks_setting"),
    (0x4, "sw_power_cap"),
    (0x8, "hw_slowdown"),
    (0x10, "sync_boost"),
    (0x20, "sw_thermal_slowdown"),
    (0x40, "hw_thermal_slowdown"),
    (0x80, "hw_power_brake_slowdown"),
    (0x100, "display_clock_setting"),
    (0x200, "board_limit"),
    (0x400, "reliability"),
)


class NvmlGpu:
    """One GPU. It keeps NVML open from its creation until ``close``."""

    is_gpu = True

    def __init__(
        self,
        nvml: Nvml,
        gpu: VisibleGpu,
        zeusd: Zeusd | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Open the GPU; ``zeusd`` sets limits that this process may not set."""
        self.nvml_index = gpu.nvml_index
        self.model = gpu.model
        self.uuid = f"GPU {gpu.nvml_index}"  # its name in errors, until NVML returns the UUID
        self._nvml = nvml
        self._zeusd = zeusd
        self._clock = clock
        self._slow: tuple[float | None, Health] | None = None  # power limit and health
        self._slow_until_s = 0.0
        self._counter_j: float | None = None
        self._counter_until_s = 0.0
        self._call(nvml.nvmlInit)
        self._open = True
        try:
            self._handle = self._call(nvml.nvmlDeviceGetHandleByIndex, gpu.nvml_index)
            self.uuid = self._call(nvml.nvmlDeviceGetUUID, self._handle)
        except DeviceError:
            self.close()
            raise
        range_w = _unless_failing(self.power_limit_range_w)
        default_limit = partial(self._ask_milli, nvml.nvmlDeviceGetPowerManagementDefaultLimit)
        self.max_power_w = range_w[1] if range_w else _unless_failing(default_limit)
        average = partial(self._ask_field, nvml.NVML_FI_DEV_POWER_AVERAGE)
        if not _MODULE_WITH_CPU.search(gpu.model):
            average = partial(unless_unsupported, nvml, nvml.nvmlDeviceGetPowerUsage, self._handle)
        self._power_queries = [partial(self._ask_field, nvml.NVML_FI_DEV_POWER_INSTANT), average]
        has_counter = _unless_failing(self._read_counter) is not None
        self.energy_source = EnergySource.COUNTER if has_counter else EnergySource.INTEGRATED
        self.caveat = (
            f"{self.model} is a part of {self.uuid}: power, energy and limit are those of the "
            "whole GPU, which its other MIG instances share"
            if gpu.is_mig
            else None
        )

    def read(self) -> Reading:
        """See ``Device.read``. Limit, health and a slow counter are up to half a second old.

        If one query fails, only its own value is unknown.
        """
        limit_w, health = self._read_slow()
        energy_j = power_w = failure = None
        try:
            energy_j = self._read_counter()
        except DeviceError as error:
            failure = error
        try:
            power_w = self._power_w()
        except DeviceError as error:
            failure = error
        if failure is not None and energy_j is None and power_w is None:
            raise failure
        return Reading(energy_j, power_w, limit_w, health)

    def compute_processes(self) -> frozenset[int] | None:
        """See ``Device.compute_processes``; on a GPU with MIG, those of all instances."""
        try:
            query = self._nvml.nvmlDeviceGetComputeRunningProcesses_v3
            processes = unless_unsupported(self._nvml, query, self._handle)
        except self._nvml.NVMLError_InsufficientSize:  # more processes came during the query
            return None
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error
        return None if processes is None else frozenset(process.pid for process in processes)

    def power_limit_range_w(self) -> tuple[float, float] | None:
        """See ``LimitableDevice.power_limit_range_w``; check: ``nvidia-smi -q -d POWER``."""
        limits_mw = self._ask(self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return None if limits_mw is None else (limits_mw[0] / 1000, limits_mw[1] / 1000)

    def power_limit_w(self) -> float | None:
        """See ``LimitableDevice.power_limit_w``; check: ``nvidia-smi -q -d POWER``."""
        return self._ask_milli(self._nvml.nvmlDeviceGetPowerManagementLimit)

    def set_power_limit_w(self, watts: float) -> None:
        """See ``LimitableDevice.set_power_limit_w``: through NVML, else through a ``zeusd``."""
        check_power_limit(name_of(self), watts, self.power_limit_range_w())
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(watts * 1000))
        except self._nvml.NVMLError_NoPermission:
            self._set_through_zeusd(watts)
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error
        finally:
            self._slow = None

    def close(self) -> None:
        """See ``Device.close``."""
        if self._open:
            self._open = False
            # After a driver restart NVML is closed already.
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _set_through_zeusd(self, watts: float) -> None:
        remedy = "run zeusrun as root or with CAP_SYS_ADMIN, or start zeusd"
        refused = f"this user may not set the power limit of {name_of(self)}"
        if self._zeusd is None:
            raise LimitRefusedError(f"{refused}: {remedy}")
        try:
            count = self._call(self._nvml.nvmlDeviceGetCount)
            pci = self._call(read_pci_address, self._nvml, self._handle)
            self._zeusd.set_power_limit_w(self.nvml_index, watts, count, pci)
        except LimitRefusedError as error:
            raise LimitRefusedError(
                f"{refused}, and {error}: {remedy} so that it serves this user and these GPUs"
            ) from error

    def _read_slow(self) -> tuple[float | None, Health]:
        now_s, slow = self._clock(), self._slow
        if slow is None or now_s >= self._slow_until_s:
            health = _read_health(self._nvml, self._handle)
            slow = self._slow = (_unless_failing(self.power_limit_w), health)
            self._slow_until_s = now_s + _SLOW_PERIOD_S
        return slow

    def _read_counter(self) -> float | None:
        """Return joules; asking a slow counter takes at most ``_COUNTER_SHARE`` of the time."""
        now_s = self._clock()
        if now_s >= self._counter_until_s:
            began_s = time.thread_time()
            self._counter_j = self._ask_milli(self._nvml.nvmlDeviceGetTotalEnergyConsumption)
            took_s = time.thread_time() - began_s
            if took_s > _SLOW_COUNTER_S:
                self._counter_until_s = now_s + min(_SLOW_PERIOD_S, took_s / _COUNTER_SHARE)
        return self._counter_j

    def _power_w(self) -> float | None:
        """Return watts now, or the mean of the last second; ``None`` if unknown.

        A source that is not supported (any more: the driver may change during a long run) is
        dropped for the next one. A source that fails or returns 0 is skipped for this reading: a
        GPU that is on draws power, and some drivers return 0 if a sensor is absent or asleep.
        """
        failure = None
        for query in tuple(self._power_queries):
            try:
                power_mw = query()
            except self._nvml.NVMLError as error:
                failure = error
                continue
            if power_mw:
                return float(power_mw) / 1000
            if power_mw is None:
                self._power_queries.remove(query)
        if failure is not None:
            raise self._device_error(failure)
        return None

    def _ask_field(self, field: int) -> int | None:
        nvml = self._nvml
        query = nvml.nvmlDeviceGetFieldValues
        values = unless_unsupported(nvml, query, self._handle, [(field, _GPU_SCOPE)])
        if values is None:
            return None
        code: int = values[0].nvmlReturn
        if code == nvml.NVML_SUCCESS:
            power_mw: int = values[0].value.uiVal
            return power_mw
        if code in (
            nvml.NVML_ERROR_NOT_SUPPORTED,
            nvml.NVML_ERROR_INVALID_ARGUMENT,  # a driver older than the field
            nvml.NVML_ERROR_NO_PERMISSION,
        ):
            return None
        raise nvml.NVMLError(code)

    def _ask_milli(self, query: Callable[[Any], Any]) -> float | None:
        value = self._ask(query)
        return None if value is None else value / 1000  # NVML uses mW and mJ

    def _ask(self, query: Callable[[Any], Any]) -> Nvml:
        return self._call(unless_unsupported, self._nvml, query, self._handle)

    def _call(self, function: Callable[..., Any], *arguments: Nvml) -> Nvml:
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error

    def _device_error(self, error: Exception) -> DeviceError:
        return build_device_error(self._nvml, name_of(self), self.nvml_index, error)


def build_device_error(nvml: Nvml, name: str, nvml_index: int, error: Exception) -> DeviceError:
    """Return the error for a GPU that NVML cannot query, with what the user can do."""
    why = str(error)
    if isinstance(error, nvml.NVMLError_Uninitialized):
        why += " (its driver was restarted)"
    if isinstance(error, nvml.NVMLError_GpuIsLost):
        reset = f"`nvidia-smi --gpu-reset -i {nvml_index}`"
        why += f" (GPU {nvml_index}: {reset} or a reboot brings it back)"
    return DeviceError(f"{name}: NVML says {why}; see `nvidia-smi` and `dmesg`")


def unless_unsupported(nvml: Nvml, query: Callable[..., Any], *arguments: Nvml) -> Nvml:
    """Run a query; return ``None`` if the GPU, the driver or the user's rights do not allow it."""
    try:
        return query(*arguments)
    except (
        nvml.NVMLError_NotSupported,
        nvml.NVMLError_FunctionNotFound,  # a driver older than the query
        nvml.NVMLError_NoPermission,
    ):
        return None


def read_pci_address(nvml: Nvml, handle: Nvml) -> PciAddress | None:
    """Return a GPU's PCI domain, bus and device; ``None`` if unknown."""
    pci = unless_unsupported(nvml, nvml.nvmlDeviceGetPciInfo, handle)
    return None if pci is None else (pci.domain, pci.bus, pci.device)


def _read_health(nvml: Nvml, handle: Nvml) -> Health:
    """Read the sensors except power. One that fails is ``None``, so that energy stays known."""

    def ask(name: str, *of: int) -> Nvml:
        try:
            return getattr(nvml, name)(handle, *of)
        except (nvml.NVMLError, AttributeError):  # another version of pynvml may lack a function
            return None

    utilization = ask("nvmlDeviceGetUtilizationRates")
    reasons = ask("nvmlDeviceGetCurrentClocksEventReasons")
    temperature_c = ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU)
    if temperature_c is None:  # newer versions of NVML drop that function
        temperature_c = ask("nvmlDeviceGetTemperatureV", nvml.NVML_TEMPERATURE_GPU)
    return Health(
        utilization=None if utilization is None else utilization.gpu / 100,
        temperature_c=temperature_c,
        sm_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
        memory_clock_mhz=ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
        throttle_reasons=None if reasons is None else _name_reasons(reasons),
    )


def _name_reasons(bits: int) -> tuple[str, ...]:
    names = tuple(name for bit, name in _THROTTLE_REASONS if bits & bit)
    rest = bits & ~sum(bit for bit, _ in _THROTTLE_REASONS)
    return (*names, f"unknown_{rest:#x}") if rest else names


def _unless_failing(ask: Callable[[], _Answer | None]) -> _Answer | None:
    """Return an optional value; a lost GPU raises its error at the next reading."""
    try:
        return ask()
    except DeviceError:
        return None


def list_gpus(nvml: Nvml) -> tuple[list[GpuIdentity], list[DeviceError]]:
    """List the GPUs that this process may use, in NVML's order, and why others do not answer."""
    identities: list[GpuIdentity] = []
    silent: list[DeviceError] = []
    for nvml_index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(nvml_index)
            identities.append(
                GpuIdentity(
                    nvml_index=nvml_index,
                    uuid=nvml.nvmlDeviceGetUUID(handle),
                    model=nvml.nvmlDeviceGetName(handle),
                    mig_models=_mig_models(nvml, handle),
                    pci=read_pci_address(nvml, handle),
                )
            )
        except nvml.NVMLError_NoPermission:
            continue  # not available in this container, so CUDA does not count it either
        except nvml.NVMLError_Uninitialized:
            raise
        except nvml.NVMLError as error:  # lost, or without power: the other GPUs still work
            name = f"GPU {nvml_index} does not answer"
            silent.append(build_device_error(nvml, name, nvml_index, error))
    return identities, silent


def _mig_models(nvml: Nvml, handle: Nvml) -> dict[str, str]:
    models = {}
    maximum = unless_unsupported(nvml, nvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for index in range(maximum or 0):  # a GPU without MIG has no instances
        try:
            instance = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (nvml.NVMLError_NotFound, nvml.NVMLError_InvalidArgument):
            continue  # unused
        models[nvml.nvmlDeviceGetUUID(instance)] = nvml.nvmlDeviceGetName(instance)
    return models


def open_all(nvml: Nvml, visible: Sequence[VisibleGpu], zeusd: Zeusd | None) -> list[Device]:
    """Open GPUs, all or none; raises ``DeviceError``."""
    with contextlib.ExitStack() as stack:
        devices: list[Device] = []
        for gpu in visible:
            device = NvmlGpu(nvml, gpu, zeusd)
            stack.callback(device.close)
            devices.append(device)
        stack.pop_all()  # only an error closes them here
        return devices
