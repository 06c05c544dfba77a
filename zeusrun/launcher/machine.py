"""Which devices a job has on this machine, and how many ranks that makes."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zeusrun.gpu.cpu import cpu_device
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.launcher.command import resolve_world_size

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.gpu.device import Device


def job_devices(
    nproc_per_node: int | str, environment: Mapping[str, str]
) -> tuple[list[Device], int]:
    """Return what is metered for a job, and its number of ranks.

    One GPU a rank, as far as there are GPUs; without any, the CPU. The caller closes them.

    Raises:
        DeviceError: If ``gpu`` is asked for and there is none, or a visible GPU is absent.
        UsageError: If an environment variable that describes the machine is not usable.
    """
    count = nproc_per_node if isinstance(nproc_per_node, int) else None
    gpus = [] if nproc_per_node == "cpu" else gpus_of_job(environment, count)
    world_size = resolve_world_size(nproc_per_node, len(gpus), usable_cpu_count())
    return gpus or [cpu_device(environment)], world_size


def usable_cpu_count() -> int:
    """Return the cores that this process may use."""
    return len(os.sched_getaffinity(0))
