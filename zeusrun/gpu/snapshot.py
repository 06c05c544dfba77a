"""The state of this machine's GPUs, for ``zeusrun gpu``."""

from __future__ import annotations

import contextlib
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import psutil

from zeusrun.energy.device import Health, LimitableDevice
from zeusrun.energy.sharing import in_first_pid_namespace
from zeusrun.errors import DeviceError, VisibleGpusError
from zeusrun.gpu.cuda_visible import parse_visible
from zeusrun.gpu.nvml import gpus_of_job, gpus_of_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.energy.device import Device
    from zeusrun.trial import EnergySource


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


def read_gpus(
    environment: Mapping[str, str],
    held_by: Callable[[str], str | None],
    *,
    everything: bool = False,
) -> list[GpuStatus]:
    """Read the GPUs that a job in this environment sees, or ``everything``.

    ``held_by`` returns the run that holds the power limit of a UUID. ``DeviceError`` if NVML cannot
    list the GPUs, or a ``CUDA_VISIBLE_DEVICES`` that counts is not usable.
    """
    found: Sequence[Device | DeviceError] = []
    indices: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        try:
            visible = gpus_of_job(environment, None)
        except DeviceError as error:
            if isinstance(error, VisibleGpusError) and not everything:
                raise  # submit refuses the variable, too
            everything = True  # a GPU is lost, so CUDA's order of the others is unknown
        else:
            _close_all(stack, visible)
            found, indices = visible, _cuda_indices(visible, environment)
        if everything:
            found = gpus_of_machine()
            _close_all(stack, found)
        return [read_status(each, indices, held_by) for each in found]


def _close_all(stack: contextlib.ExitStack, found: Sequence[Device | DeviceError]) -> None:
    for each in found:
        if not isinstance(each, DeviceError):
            stack.callback(each.close)


def _cuda_indices(visible: Sequence[Device], environment: Mapping[str, str]) -> dict[str, int]:
    """Return CUDA's numbers by UUID; none if CUDA's order is unknown."""
    # Without a GPU the variable does not matter, and may be unusable.
    entries = parse_visible(environment.get("CUDA_VISIBLE_DEVICES")) if visible else ()
    by_index = any(isinstance(entry, int) for entry in entries or [0])
    ordered = environment.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
    if by_index and not ordered and len({device.model for device in visible}) > 1:
        return {}
    return {device.uuid: index for index, device in enumerate(visible)}


def read_status(
    device: Device | DeviceError, indices: Mapping[str, int], held_by: Callable[[str], str | None]
) -> GpuStatus:
    """Read a GPU now, or return why it could not be opened; ``indices`` are CUDA's, by UUID."""
    if isinstance(device, DeviceError):
        return GpuStatus(error=str(device))
    status = GpuStatus(
        cuda_index=indices.get(device.uuid),
        uuid=device.uuid,
        model=device.model,
        max_power_w=device.max_power_w,
    )
    try:
        reading = device.read()
        range_w = device.power_limit_range_w() if isinstance(device, LimitableDevice) else None
        pids = device.compute_processes()
    except DeviceError as error:
        return replace(status, error=str(error))
    return replace(
        status,
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
