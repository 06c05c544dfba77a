"""Opens devices, whoever made them: those that a job trains on, or one by its uuid."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from zeusrun.energy.cpu import cpu_device
from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError, ZeusrunError
from zeusrun.gpu.nvml import gpu_by_uuid, gpus_of_job
from zeusrun.plugins import BUILT_IN, create_plugin, device_kinds, load_built_in

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.energy.device import Device

_GROUP: Final = "zeusrun.devices"


def job_devices(
    nproc_per_node: int | str, environment: Mapping[str, str], most: int | None = None
) -> tuple[list[Device], int]:
    """Return the devices to meter for a job, which the caller closes, and its number of ranks.

    One GPU for each of the ranks, or of the ``most`` that there may be later, as far as there are
    GPUs; without any, the CPU. A kind of device that
    zeusrun does not know is a plugin's. Raises ``DeviceError`` or ``UsageError`` if there is no
    such device.
    """
    if isinstance(nproc_per_node, str) and nproc_per_node not in {"gpu", "cpu", "auto"}:
        devices = _open_kind(nproc_per_node, environment)
        if not devices:
            raise DeviceError(
                f"launch.nproc_per_node is {nproc_per_node!r}, but no installed plugin finds such "
                "a device; set launch.nproc_per_node to 'auto', 'cpu', 'gpu' or a number"
            )
        return devices, len(devices)
    count = most or (nproc_per_node if isinstance(nproc_per_node, int) else None)
    gpus = [] if nproc_per_node == "cpu" else gpus_of_job(environment, count)
    world_size = resolve_world_size(nproc_per_node, len(gpus), len(os.sched_getaffinity(0)))
    return gpus or [cpu_device(environment)], world_size


def resolve_world_size(nproc_per_node: int | str, gpu_count: int, cpu_count: int) -> int:
    """Return the number of ranks for ``--nproc-per-node``; raises ``DeviceError`` without a GPU."""
    if isinstance(nproc_per_node, int):
        return nproc_per_node
    if nproc_per_node == "cpu":
        return cpu_count
    if nproc_per_node == "gpu" and gpu_count == 0:
        raise DeviceError(
            "launch.nproc_per_node is 'gpu', but no GPU is visible. Check 'nvidia-smi' and "
            "CUDA_VISIBLE_DEVICES, or set launch.nproc_per_node to 'auto', 'cpu' or a number."
        )
    return gpu_count or cpu_count


def open_device(uuid: str, environment: Mapping[str, str]) -> LimitableDevice:
    """Open a device that has a power limit, even a GPU that ``CUDA_VISIBLE_DEVICES`` hides.

    ``environment`` is that of the job, or of ``repair``: it may name a ``zeusd``, and the plugins
    get it. Plugins are asked only for a device that is not NVIDIA's.

    Raises:
        DeviceError: If nothing finds the device, or it does not answer.
    """
    try:
        return gpu_by_uuid(uuid, environment)
    except DeviceError as error:
        missing = error
    problems = [str(missing)]
    for name in device_kinds():
        try:
            wanted = _pick(_open_kind(name, environment) or [], uuid)
        except Exception as error:  # noqa: BLE001 - the plugin of another vendor may have the device
            is_told = isinstance(error, ZeusrunError)
            problems.append(str(error) if is_told else f"the plugin {name!r} failed: {error!r}")
            continue
        if wanted is not None:
            return wanted
        problems.append(f"the plugin {name!r} does not find it")
    raise DeviceError("; ".join(problems)) from missing


def _open_kind(name: str, environment: Mapping[str, str]) -> list[Device] | None:
    """Open the devices of a kind that the table or a plugin names; ``None`` if neither does."""
    if name in BUILT_IN[_GROUP]:
        found: list[Device] = load_built_in(_GROUP, name)(environment)
        return found
    devices: list[Device] | None = create_plugin(_GROUP, name, list, environment)
    return devices


def _pick(devices: list[Device], uuid: str) -> LimitableDevice | None:
    """Return the device with a uuid, and close the others."""
    wanted: LimitableDevice | None = None
    for device in devices:
        if wanted is None and device.uuid == uuid and isinstance(device, LimitableDevice):
            wanted = device
        else:
            device.close()
    return wanted
