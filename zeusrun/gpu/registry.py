"""Opens a device by its uuid, whoever made it: a GPU of NVIDIA's, or what a plugin finds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from zeusrun.energy.device import LimitableDevice
from zeusrun.errors import DeviceError, ZeusrunError
from zeusrun.gpu.nvml import gpu_by_uuid
from zeusrun.plugins import create_plugin, plugin_names

if TYPE_CHECKING:
    from collections.abc import Mapping

_GROUP: Final = "zeusrun.devices"


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
    for name in plugin_names(_GROUP):
        try:
            devices = create_plugin(_GROUP, name, list, environment)
        except ZeusrunError as error:  # the plugin of another vendor may have the device
            problems.append(str(error))
            continue
        wanted = None
        for device in devices:
            if wanted is None and device.uuid == uuid and isinstance(device, LimitableDevice):
                wanted = device
            else:
                device.close()
        if wanted is not None:
            return wanted
        problems.append(f"the plugin {name!r} does not find it")
    raise DeviceError("; ".join(problems)) from missing
