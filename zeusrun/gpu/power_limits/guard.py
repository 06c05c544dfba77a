"""The guard: a small process that outlives the launcher and restores power limits."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError
from zeusrun.gpu.power_limits.original_limits import put_back, read_record
from zeusrun.gpu.registry import open_device

if TYPE_CHECKING:
    from zeusrun.energy.device import LimitableDevice

_FOR_THE_LAUNCHER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_TRY_FOR_S = 20.0  # if a GPU does not accept its limit at once
_RETRY_AFTER_S = 0.2


def main() -> None:
    """Wait for the launcher to end, then restore the limits that are still on record.

    The kernel closes the guard's standard input however the launcher ends, because only the
    launcher has its other end. The guard inherits the locks of the GPUs, so that no other process
    takes a changed limit for the original one.

    ``argv`` is the directory of the records and the UUID of each GPU.
    """
    directory, uuids = Path(sys.argv[1]), sys.argv[2:]
    for number in _FOR_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    devices = {uuid: open_device(uuid, os.environ) for uuid in uuids}
    with contextlib.suppress(BrokenPipeError):  # the launcher is already dead
        os.write(1, b"ready\n")
    os.close(1)
    while os.read(0, 4096):
        pass
    give_up_s = time.monotonic() + _TRY_FOR_S
    while uuids and time.monotonic() < give_up_s:
        uuids = [uuid for uuid in uuids if not _restored(directory, uuid, devices)]
        if uuids:
            time.sleep(_RETRY_AFTER_S)


def _restored(directory: Path, uuid: str, devices: dict[str, LimitableDevice]) -> bool:
    """Try to restore the limit of a GPU; return whether that is done, or nothing is on record."""
    try:
        record = read_record(directory, uuid)
    except DeviceError:  # unreadable: doctor and repair report it
        return True
    try:
        if record is not None:
            devices[uuid] = devices.get(uuid) or open_device(uuid, os.environ)
            put_back(directory, devices[uuid], record)
    except Exception:  # noqa: BLE001 - a plugin's device may raise any; the others are restored
        if uuid in devices:  # open it again the next time: its driver may have been restarted
            devices.pop(uuid).close()
        return False
    return True
