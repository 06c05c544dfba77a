"""The guard: a small process that outlives the launcher and puts power limits back.

It waits for the end of its standard input, whose other end only the launcher has: the kernel
closes it however the launcher dies. It inherits the locks of the GPUs, so nobody takes a changed
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
from zeusrun.gpu.limit_record import read_record
from zeusrun.gpu.nvml import gpus_of_job
from zeusrun.gpu.power_limit import restore_limit

if TYPE_CHECKING:
    from collections.abc import Mapping

READY = b"ready\n"
_PATIENCE_S = 20.0  # with a GPU that does not take its limit at once
_AGAIN_S = 0.2


def main() -> None:
    """Watch, then restore; ``argv`` holds the directory of the records and the GPUs' UUIDs."""
    directory, uuids = Path(sys.argv[1]), sys.argv[2:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they are meant for the launcher
    devices = {uuid: open_gpu(uuid, os.environ) for uuid in uuids}
    with contextlib.suppress(BrokenPipeError):  # the launcher is dead already
        os.write(1, READY)
    os.close(1)
    while os.read(0, 64):
        pass
    give_up_s = time.monotonic() + _PATIENCE_S
    while uuids and time.monotonic() < give_up_s:
        uuids = [uuid for uuid in uuids if not _restored(directory, uuid, devices)]
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


def _restored(directory: Path, uuid: str, devices: dict[str, LimitableDevice]) -> bool:
    """Try to restore the limit of a GPU, and return whether there is nothing left to do.

    A GPU that does not take it is opened anew the next time: its driver may have been restarted.
    """
    try:
        if uuid not in devices:
            devices[uuid] = open_gpu(uuid, os.environ)
        restore_limit(directory, devices[uuid])
    except DeviceError:
        if uuid in devices:
            devices.pop(uuid).close()
    try:
        return read_record(directory, uuid) is None
    except DeviceError:
        return True  # a record that nobody can read is for a person to look at


if __name__ == "__main__":
    main()
