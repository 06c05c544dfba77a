"""The devices of this machine that a job trains on, and how many ranks they carry."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zeusrun.energy.cpu import cpu_device
from zeusrun.errors import DeviceError
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.plugins import create_plugin

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.energy.device import Device


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
        devices = create_plugin("zeusrun.devices", nproc_per_node, list, environment)
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
