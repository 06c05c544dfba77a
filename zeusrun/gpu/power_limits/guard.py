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
from zeusrun.gpu.power_limits.original_limits import LimitRecord, put_back, read_record
from zeusrun.gpu.registry import open_device

if TYPE_CHECKING:
    from collections.abc import Mapping

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

    ``argv`` is the directory of the records and ``<uuid>=<original watts>`` for each GPU.
    """
    directory = Path(sys.argv[1])
    pairs = [argument.split("=") for argument in sys.argv[2:]]
    original_w = {uuid: float(watts) for uuid, watts in pairs}
    for number in _FOR_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    devices: dict[str, LimitableDevice] = {
        uuid: open_device(uuid, os.environ) for uuid in original_w
    }
    with contextlib.suppress(BrokenPipeError):  # the launcher is already dead
        os.write(1, b"ready\n")
    os.close(1)
    while os.read(0, 4096):
        pass
    left = _find_records(directory, original_w)
    give_up_s = time.monotonic() + _TRY_FOR_S
    while left and time.monotonic() < give_up_s:
        left = [record for record in left if not _restored(directory, record, devices)]
        if left:
            time.sleep(_RETRY_AFTER_S)


def _find_records(directory: Path, original_w: Mapping[str, float]) -> list[LimitRecord]:
    """Return what to restore: the records, or all GPUs if somebody has deleted the directory."""
    if not directory.is_dir():
        return [LimitRecord(uuid, watts, "the last trial") for uuid, watts in original_w.items()]
    records = []
    for uuid in original_w:
        with contextlib.suppress(DeviceError):  # unreadable: doctor and repair report it
            if (record := read_record(directory, uuid)) is not None:
                records.append(record)
    return records


def _restored(directory: Path, record: LimitRecord, devices: dict[str, LimitableDevice]) -> bool:
    """Try to restore the limit of a GPU; return whether that is done."""
    uuid = record.uuid
    try:
        if uuid not in devices:
            devices[uuid] = open_device(uuid, os.environ)
        put_back(directory, devices[uuid], record)
    except Exception:  # noqa: BLE001 - a plugin's device may raise any; the others are restored
        if uuid in devices:  # open it again the next time: its driver may have been restarted
            devices.pop(uuid).close()
        return False
    return True
