"""The guard: a small process that outlives the launcher and puts power limits back.

It waits for the end of its standard input, whose other end only the launcher has: the kernel
closes it however the launcher dies. A launcher that has put the limits back says so before. It
inherits the locks of the GPUs, so nobody takes a changed
limit for the one to go back to before it is done.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError
from zeusrun.gpu.device import LimitableDevice
from zeusrun.gpu.limit_record import has_record
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.gpu.power_limit import put_back

if TYPE_CHECKING:
    from collections.abc import Mapping

READY, DISMISSED = b"ready\n", b"dismissed\n"
_PATIENCE_S = 20.0  # with a GPU that does not take its limit at once
_AGAIN_S = 0.2


def main() -> None:
    """Watch, then restore; ``argv``: the directory of the records, and ``<uuid>=<watts>``."""
    directory = Path(sys.argv[1])
    pairs = [argument.split("=") for argument in sys.argv[2:]]
    found_w = {uuid: float(watts) for uuid, watts in pairs}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the launcher
    devices = {uuid: open_gpu(uuid, os.environ) for uuid in found_w}
    with contextlib.suppress(BrokenPipeError):  # the launcher is dead already
        os.write(1, READY)
    os.close(1)
    said = b""
    while more := os.read(0, 64):
        said += more
    # A launcher that died may have lost its records first; one that is done has left those of GPUs
    # that it could not restore.
    uuids = [uuid for uuid in found_w if said != DISMISSED or has_record(directory, uuid)]
    give_up_s = time.monotonic() + _PATIENCE_S
    while uuids and time.monotonic() < give_up_s:
        uuids = [u for u in uuids if not _restored(directory, u, found_w[u], devices)]
        if uuids:
            time.sleep(_AGAIN_S)


def open_gpu(uuid: str, environment: Mapping[str, str]) -> LimitableDevice:
    """Open a GPU by its UUID, whatever the environment makes visible.

    Args:
        uuid: Of the GPU.
        environment: Read for ``ZEUSD_SOCK_PATH``.

    Raises:
        DeviceError: If it is absent.
    """
    for device in gpus_of_job({**environment, "CUDA_VISIBLE_DEVICES": uuid}, 1):
        if isinstance(device, LimitableDevice):
            return device
    raise DeviceError(f"{uuid} is not here; `nvidia-smi -L` lists the GPUs")


def _restored(
    directory: Path, uuid: str, found_w: float, devices: dict[str, LimitableDevice]
) -> bool:
    """Try to restore the limit of a GPU; return whether it and its record are as they were.

    A GPU that does not take it is opened anew the next time: its driver may have been restarted.
    """
    try:
        if uuid not in devices:
            devices[uuid] = open_gpu(uuid, os.environ)
        put_back(directory, devices[uuid], found_w)
    except DeviceError:
        if uuid in devices:
            devices.pop(uuid).close()
        return False
    return True


if __name__ == "__main__":
    main()
