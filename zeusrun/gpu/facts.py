"""The state of this machine's GPUs now, as a machine reports it to a server."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from zeusrun.energy.device import Health
from zeusrun.errors import DeviceError
from zeusrun.gpu.cuda_visible import parse_visible
from zeusrun.gpu.nvml import gpus_of_job, gpus_of_machine

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.energy.device import Device


def read_gpus(
    environment: Mapping[str, str], held_by: Callable[[str], str | None]
) -> list[dict[str, Any]]:
    """Read all GPUs of this machine, as plain JSON values; what is unknown is left out.

    ``cuda_index`` is CUDA's number in this environment, ``held_by`` the run that holds the power
    limit of a UUID, ``error`` why a GPU does not answer. For the sensors see ``Reading`` and
    ``Health``. ``DeviceError`` if NVML cannot list the GPUs.
    """
    indices: dict[str, int] = {}
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(DeviceError):  # one is lost: CUDA's order of the others is unknown
            visible = gpus_of_job(environment, None)
            _close_all(stack, visible)
            indices = _cuda_indices(visible, environment)
        found = gpus_of_machine()
        _close_all(stack, found)
        read = [read_gpu(each, indices, held_by) for each in found]
    return [{name: value for name, value in each.items() if value is not None} for each in read]


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


def read_gpu(
    device: Device | DeviceError, indices: Mapping[str, int], held_by: Callable[[str], str | None]
) -> dict[str, Any]:
    """Read a GPU now, or say why it could not be opened; ``indices`` are CUDA's, by UUID."""
    if isinstance(device, DeviceError):
        return {"error": str(device)}
    known = {
        "cuda_index": indices.get(device.uuid),
        "uuid": device.uuid,
        "model": device.model,
    }
    try:
        reading = device.read()
    except DeviceError as error:
        return {**known, "error": str(error)}
    health = reading.health or Health()
    return {
        **known,
        "power_w": reading.power_w,
        "power_limit_w": reading.power_limit_w,
        "energy_source": device.energy_source.value,
        "utilization": health.utilization,
        "temperature_c": health.temperature_c,
        "throttle_reasons": health.throttle_reasons,
        "held_by": held_by(device.uuid),
    }
