"""The guard: a small process that outlives the launcher and restores power limits.

It waits for the end of its standard input, whose other end only the launcher has: the kernel closes
it however the launcher dies. Until then the launcher writes which limits zeusrun has set, one line
of JSON each time. A launcher that has restored them dismisses the guard. The guard inherits the
locks of the GPUs, so no other process takes a changed limit for the original one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import DeviceError
from zeusrun.gpu.nvml import gpu_by_uuid
from zeusrun.gpu.power_limits.original_limits import LimitRecord, has_record, read_record
from zeusrun.gpu.power_limits.restore import put_back

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.energy.device import LimitableDevice

READY, DISMISSED = b"ready\n", b"dismissed\n"
_FOR_THE_LAUNCHER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_PATIENCE_S = 20.0  # for a GPU that does not accept its limit at once
_AGAIN_S = 0.2
_REMEMBERED = 1 << 16  # bytes of the messages: only the last line counts


def main() -> None:
    """Wait, then restore; ``argv``: the directory of the records, and ``<uuid>=<watts>``."""
    directory = Path(sys.argv[1])
    pairs = [argument.split("=") for argument in sys.argv[2:]]
    original_w = {uuid: float(watts) for uuid, watts in pairs}
    for number in _FOR_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    devices: dict[str, LimitableDevice] = {
        uuid: gpu_by_uuid(uuid, os.environ) for uuid in original_w
    }
    with contextlib.suppress(BrokenPipeError):  # the launcher is already dead
        os.write(1, READY)
    os.close(1)
    messages = b""
    while more := os.read(0, 4096):
        messages = (messages + more)[-_REMEMBERED:]
    left = _left(directory, original_w, messages)
    give_up_s = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < give_up_s:
        left = [record for record in left if not _restored(directory, record, devices)]
        if left:
            time.sleep(_AGAIN_S)


def _left(directory: Path, original_w: Mapping[str, float], messages: bytes) -> list[LimitRecord]:
    """Return what to restore, by the messages of the launcher.

    The launcher's last message has precedence, because the records may be lost. Without a message
    the records count: the launcher writes them before it starts a guard. A launcher that dismissed
    the guard has left the records of GPUs that it could not restore.
    """
    lines = messages.splitlines(keepends=True)
    complete = [line for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
    if not complete:
        records = [_read(directory, uuid) for uuid in original_w]
        return [record for record in records if record is not None]
    return [
        LimitRecord(uuid, original_w[uuid], "the last trial", set_w=tuple(watts))
        for uuid, watts in json.loads(complete[-1]).items()
        if lines[-1] != DISMISSED or has_record(directory, uuid)
    ]


def _read(directory: Path, uuid: str) -> LimitRecord | None:
    try:
        return read_record(directory, uuid)
    except DeviceError:
        return None  # doctor and repair report it


def _restored(directory: Path, record: LimitRecord, devices: dict[str, LimitableDevice]) -> bool:
    """Try to restore the limit of a GPU; return whether its record is gone.

    A GPU that refuses it is opened again the next time: its driver may have been restarted.
    """
    uuid = record.uuid
    try:
        if uuid not in devices:
            devices[uuid] = gpu_by_uuid(uuid, os.environ)
        put_back(directory, devices[uuid], record)
    except DeviceError:
        if uuid in devices:
            devices.pop(uuid).close()
        return False
    return True


if __name__ == "__main__":
    main()
