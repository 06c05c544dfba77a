"""The facts about this machine that heartbeats of its runs send to a server."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

from zeusrun import __version__
from zeusrun.clock import read_clock
from zeusrun.energy.device import Health
from zeusrun.errors import DeviceError, ZeusrunError
from zeusrun.gpu.nvml import gpus_of_machine

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zeusrun.gpu.nvml_gpu import NvmlGpu

_REPORTED = ("job", "words", "next", "paused", "last_run")  # fields of a schedule


def describe_machine(home: Path) -> dict[str, Any]:
    """Return the GPUs and the schedules of this machine, as far as they can be read."""
    from zeusrun.launcher.power.control import held_by  # noqa: PLC0415 - few submits have a server
    from zeusrun.schedule.store import Schedules  # noqa: PLC0415 - as above

    facts: dict[str, Any] = {"version": __version__, "gpus": [], "schedules": []}
    with contextlib.suppress(ZeusrunError):
        facts["gpus"] = read_gpus(functools.partial(held_by, home))
    schedules = Schedules(home)
    if schedules.directory.is_dir():
        from zeusrun.view.schedule import schedule_json  # noqa: PLC0415 - few have a schedule

        for job in schedules.jobs():
            with contextlib.suppress(ZeusrunError):  # `zeusrun schedule list` shows the error
                record = schedule_json(schedules.read(job), read_clock())
                facts["schedules"].append({name: record[name] for name in _REPORTED})
    return facts


def read_gpus(held_by: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Read all GPUs of this machine as plain JSON values, without unknown values.

    ``nvml_index`` is the number that nvidia-smi shows, and ``error`` says why a GPU cannot be read.
    The function ``held_by`` returns the run that holds the power limit of a UUID. See ``Reading``
    and ``Health`` for the sensors. Raises ``DeviceError`` if NVML cannot list the GPUs.
    """
    with contextlib.ExitStack() as stack:
        read = [read_gpu(each, held_by) for each in open_gpus(stack)]
    return [{name: value for name, value in each.items() if value is not None} for each in read]


def open_gpus(stack: contextlib.ExitStack) -> list[NvmlGpu | DeviceError]:
    """Open all GPUs of this machine until ``stack`` closes them; see ``gpus_of_machine``."""
    found = gpus_of_machine()
    for each in found:
        if not isinstance(each, DeviceError):
            stack.callback(each.close)
    return found


def read_gpu(device: NvmlGpu | DeviceError, held_by: Callable[[str], str | None]) -> dict[str, Any]:
    """Read a GPU now; return its error if it cannot be opened or read."""
    if isinstance(device, DeviceError):
        return {"error": str(device)}
    known = {"nvml_index": device.nvml_index, "uuid": device.uuid, "model": device.model}
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
