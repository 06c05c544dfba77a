"""The state of this machine's GPUs, for ``zeusrun gpu``."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil

from zeusrun.energy.device import Health, LimitableDevice
from zeusrun.energy.sharing import in_first_pid_namespace
from zeusrun.errors import DeviceError, VisibleGpusError
from zeusrun.gpu.cuda_visible import parse_visible
from zeusrun.gpu.nvml import gpus_of_job, gpus_of_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from zeusrun.energy.device import Device
    from zeusrun.trial import EnergySource

_VISIBLE = "CUDA_VISIBLE_DEVICES"


@dataclass(frozen=True)
class GpuProcess:
    """A process that computes on a GPU, perhaps in another pid namespace; then without a name."""

    pid: int
    name: str | None


@dataclass(frozen=True, kw_only=True)
class GpuStatus:
    """One GPU now. ``None`` is unknown. For the sensors see ``Reading`` and ``Health``.

    Attributes:
        cuda_index: CUDA's number for it in this environment; ``None`` if CUDA does not see it, or
            CUDA's order is unknown.
        held_by: The run of zeusrun that holds its power limit; ``None`` for none.
        error: Why it does not answer; ``None`` if it does.
    """

    cuda_index: int | None = None
    uuid: str | None = None
    model: str | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    power_limit_range_w: tuple[float, float] | None = None
    max_power_w: float | None = None
    energy_source: EnergySource | None = None
    energy_j: float | None = None
    utilization: float | None = None
    temperature_c: float | None = None
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    throttle_reasons: tuple[str, ...] | None = None
    processes: tuple[GpuProcess, ...] | None = None
    caveat: str | None = None
    held_by: str | None = None
    error: str | None = None

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, in the order of the fields."""
        source = self.energy_source
        return {**asdict(self), "energy_source": source and source.value}


class OpenGpu(NamedTuple):
    """An open GPU, or the error why it could not be opened; ``cuda_index`` as in ``GpuStatus``."""

    cuda_index: int | None
    device: Device | None
    error: str | None = None

    def close(self) -> None:
        """Close the GPU. More than once is fine."""
        if self.device is not None:
            self.device.close()


def open_gpus(environment: Mapping[str, str], *, everything: bool = False) -> list[OpenGpu]:
    """Open the GPUs that a job in this environment sees, or ``everything``; the caller closes them.

    ``DeviceError`` if NVML cannot list the GPUs, or a ``CUDA_VISIBLE_DEVICES`` that counts is not
    usable.
    """
    if not everything:
        return _open_visible(environment)
    indices = {}
    with contextlib.suppress(DeviceError):  # an unusable variable hides nothing here
        for gpu in _open_visible(environment):
            if gpu.device is not None:
                indices[gpu.device.uuid] = gpu.cuda_index
            gpu.close()
    return _open_machine(indices)


def _open_machine(indices: Mapping[str, int | None]) -> list[OpenGpu]:
    return [
        OpenGpu(None, None, str(each))
        if isinstance(each, DeviceError)
        else OpenGpu(indices.get(each.uuid), each)
        for each in gpus_of_machine()
    ]


def _open_visible(environment: Mapping[str, str]) -> list[OpenGpu]:
    try:
        devices = gpus_of_job(environment, None)
        # Parse it afterwards: without a GPU the variable does not matter.
        entries = parse_visible(environment.get(_VISIBLE)) if devices else ()
    except VisibleGpusError:  # submit refuses the variable, too
        raise
    except DeviceError:
        # A GPU is lost, so CUDA's order of the others is unknown.
        return _open_machine({})
    by_index = any(isinstance(entry, int) for entry in entries or [0])
    in_pci_order = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    unknown_order = by_index and not in_pci_order and len({device.model for device in devices}) > 1
    return [OpenGpu(None if unknown_order else i, device) for i, device in enumerate(devices)]


def read_status(gpu: OpenGpu, held_by: Callable[[str], str | None]) -> GpuStatus:
    """Read a GPU now; ``held_by`` returns the run that holds the power limit of a UUID."""
    device = gpu.device
    if device is None:
        return GpuStatus(cuda_index=gpu.cuda_index, error=gpu.error)
    identity: dict[str, Any] = {
        "cuda_index": gpu.cuda_index,
        "uuid": device.uuid,
        "model": device.model,
        "max_power_w": device.max_power_w,
    }
    try:
        reading = device.read()
        range_w = device.power_limit_range_w() if isinstance(device, LimitableDevice) else None
        pids = device.compute_processes()
    except DeviceError as error:
        return GpuStatus(**identity, error=str(error))
    return GpuStatus(
        **identity,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        power_limit_range_w=range_w,
        energy_source=device.energy_source,
        energy_j=reading.energy_j,
        **vars(reading.health or Health()),
        processes=None if pids is None else tuple(map(_process, sorted(pids))),
        caveat=device.caveat,
        held_by=held_by(device.uuid),
    )


def _process(pid: int) -> GpuProcess:
    name = None
    if in_first_pid_namespace():  # elsewhere the number may be another process's
        with contextlib.suppress(psutil.Error):
            name = psutil.Process(pid).name()
    return GpuProcess(pid, name)
