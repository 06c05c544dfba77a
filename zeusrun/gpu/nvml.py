"""NVIDIA GPUs through NVML: the only importer of ``pynvml``.

Names, units and return codes: NVML API Reference, "Device Queries" and "Device Commands".
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from zeusrun.errors import DeviceError
from zeusrun.gpu.device import Reading, check_power_limit
from zeusrun.gpu.visible import GpuIdentity, parse_visible, resolve_visible
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.gpu.device import Device
    from zeusrun.gpu.visible import VisibleGpu


class NvmlGpu:
    """One GPU. It holds a reference to NVML from the moment it is made until it is closed."""

    is_gpu = True

    def __init__(self, nvml_index: int, model: str) -> None:
        """Open the GPU.

        Args:
            nvml_index: NVML's number for it, which need not be CUDA's.
            model: Product name of what the job sees of it.

        Raises:
            DeviceError: If it does not answer.
        """
        import pynvml  # noqa: PLC0415 - the library is looked for when a job asks for GPUs

        self.model = model
        self.uuid = f"GPU {nvml_index}"  # its name in errors, until it has told its own
        self._nvml: Any = pynvml
        self._call(pynvml.nvmlInit)
        self._open = True
        try:
            self._handle = self._call(pynvml.nvmlDeviceGetHandleByIndex, nvml_index)
            self.uuid = self._call(pynvml.nvmlDeviceGetUUID, self._handle)
            range_w = self.power_limit_range_w()
            self.max_power_w = range_w[1] if range_w else self._max_power_w()
            has_counter = self._energy_j() is not None
        except DeviceError:
            self.close()
            raise
        self.energy_source = EnergySource.COUNTER if has_counter else EnergySource.INTEGRATED

    def read(self) -> Reading:
        """See ``Device.read``. On Ampere and later, power is a mean over a second."""
        return Reading(
            energy_j=self._energy_j(),
            power_w=self._ask_milli(self._nvml.nvmlDeviceGetPowerUsage),
            power_limit_w=self._ask_milli(self._nvml.nvmlDeviceGetPowerManagementLimit),
        )

    def power_limit_range_w(self) -> tuple[float, float] | None:
        """See ``LimitableDevice.power_limit_range_w``; check: ``nvidia-smi -q -d POWER``."""
        limits_mw = self._ask(self._nvml.nvmlDeviceGetPowerManagementLimitConstraints)
        return None if limits_mw is None else (limits_mw[0] / 1000, limits_mw[1] / 1000)

    def set_power_limit_w(self, watts: float) -> None:
        """See ``LimitableDevice.set_power_limit_w``."""
        check_power_limit(f"{self.model} ({self.uuid})", watts, self.power_limit_range_w())
        try:
            self._nvml.nvmlDeviceSetPowerManagementLimit(self._handle, round(watts * 1000))
        except self._nvml.NVMLError_NoPermission:
            raise DeviceError(
                f"setting the power limit of {self.model} ({self.uuid}) needs root or "
                "CAP_SYS_ADMIN; run zeusrun with either, or use power_limit: {mode: observe}"
            ) from None
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error

    def close(self) -> None:
        """See ``Device.close``."""
        if self._open:
            self._open = False
            # NVML may have gone before us (driver restart): then there is nothing left to let go.
            with contextlib.suppress(self._nvml.NVMLError):
                self._nvml.nvmlShutdown()

    def _energy_j(self) -> float | None:
        return self._ask_milli(self._nvml.nvmlDeviceGetTotalEnergyConsumption)

    def _max_power_w(self) -> float | None:
        return self._ask_milli(self._nvml.nvmlDeviceGetPowerManagementDefaultLimit)

    def _ask_milli(self, query: Callable[[Any], Any]) -> float | None:
        value = self._ask(query)
        return None if value is None else value / 1000  # NVML speaks in mW and mJ

    def _ask(self, query: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - pynvml is untyped
        return self._call(_unless_unsupported, self._nvml, query, self._handle)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401 - as _ask
        try:
            return function(*arguments)
        except self._nvml.NVMLError as error:
            raise self._device_error(error) from error

    def _device_error(self, error: Exception) -> DeviceError:
        return DeviceError(
            f"{self.model} ({self.uuid}): NVML says {error}; see `nvidia-smi` and `dmesg`"
        )


def gpus_of_job(environment: Mapping[str, str], count: int | None) -> list[Device]:
    """Open the GPUs that a job with this environment will use.

    Args:
        environment: The job's; read for ``CUDA_VISIBLE_DEVICES`` and ``CUDA_DEVICE_ORDER``.
        count: How many of the visible ones it uses, the first ones in CUDA's order; ``None`` is
            all of them.

    Returns:
        Devices in CUDA's order, fewer than ``count`` if there are not as many; none without a
        library, a driver or a GPU. A MIG instance is metered as the whole GPU it is part of, since
        NVML has power for that alone; its model is the instance's.

    Raises:
        DeviceError: If ``CUDA_VISIBLE_DEVICES`` names something absent, or NVML does not answer.
        ValueError: If ``count`` is negative.
    """
    if count is not None and count < 0:
        raise ValueError(f"a job cannot use {count} GPUs")
    entries = parse_visible(environment.get("CUDA_VISIBLE_DEVICES"))
    if count == 0 or (entries is not None and not entries):
        return []
    import pynvml  # noqa: PLC0415 - as in NvmlGpu

    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return []
    except pynvml.NVMLError as error:
        raise DeviceError(
            f"NVML does not start: {error}; does `nvidia-smi` work? CUDA_VISIBLE_DEVICES= trains "
            "without GPUs"
        ) from error
    try:
        gpus = _identify_all(pynvml)
        if not gpus:
            return []
        pci_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        return _open_all(resolve_visible(entries, gpus, pci_order=pci_order, count=count))
    except pynvml.NVMLError as error:
        raise DeviceError(f"NVML cannot list the GPUs: {error}; see `nvidia-smi -L`") from error
    finally:
        pynvml.nvmlShutdown()  # each open device holds NVML by itself


def _open_all(visible: list[VisibleGpu]) -> list[Device]:
    devices: list[Device] = []
    try:
        for gpu in visible:
            devices.append(NvmlGpu(gpu.nvml_index, gpu.model))  # noqa: PERF401 - see except
    except DeviceError:
        for device in devices:
            device.close()
        raise
    return devices


def _identify_all(pynvml: Any) -> list[GpuIdentity]:  # noqa: ANN401 - untyped module
    identities = []
    for nvml_index in range(pynvml.nvmlDeviceGetCount()):
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(nvml_index)
        except pynvml.NVMLError_NoPermission:
            continue  # withheld from this container, so CUDA does not count it either
        identities.append(
            GpuIdentity(
                nvml_index=nvml_index,
                uuid=pynvml.nvmlDeviceGetUUID(handle),
                model=pynvml.nvmlDeviceGetName(handle),
                mig_models=_mig_models(pynvml, handle),
            )
        )
    return identities


def _mig_models(pynvml: Any, handle: Any) -> dict[str, str]:  # noqa: ANN401 - untyped module
    models = {}
    maximum = _unless_unsupported(pynvml, pynvml.nvmlDeviceGetMaxMigDeviceCount, handle)
    for index in range(maximum or 0):  # a GPU without MIG has no instances
        try:
            instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except (pynvml.NVMLError_NotFound, pynvml.NVMLError_InvalidArgument):
            continue  # a free place
        models[pynvml.nvmlDeviceGetUUID(instance)] = pynvml.nvmlDeviceGetName(instance)
    return models


def _unless_unsupported(pynvml: Any, query: Callable[[Any], Any], handle: Any) -> Any:  # noqa: ANN401 - untyped module
    try:
        return query(handle)
    except (
        pynvml.NVMLError_NotSupported,
        pynvml.NVMLError_FunctionNotFound,  # a driver older than the question
        pynvml.NVMLError_NoPermission,
    ):
        return None
