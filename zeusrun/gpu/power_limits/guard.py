"""The guard: a small process that outlives the launcher and puts power limits back.

It waits for the end of its standard input, whose other end only the launcher has: the kernel
closes it however the launcher dies. Until then the launcher tells it, a line of JSON each time,
which limits are zeusrun's; one that has put them back dismisses it. It inherits the locks of the
GPUs, so nobody takes a changed limit for the one to go back to before it is done.
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
_PATIENCE_S = 20.0  # with a GPU that does not take its limit at once
_AGAIN_S = 0.2
_REMEMBERED = 1 << 16  # bytes of what it was told: only the last line counts


def main() -> None:
    """Watch, then restore; ``argv``: the directory of the records, and ``<uuid>=<watts>``."""
    directory = Path(sys.argv[1])
    pairs = [argument.split("=") for argument in sys.argv[2:]]
    original_w = {uuid: float(watts) for uuid, watts in pairs}
    for number in _FOR_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    devices: dict[str, LimitableDevice] = {
        uuid: gpu_by_uuid(uuid, os.environ) for uuid in original_w
    }
    with contextlib.suppress(BrokenPipeError):  # the launcher is dead already
        os.write(1, READY)
    os.close(1)
    said = b""
    while more := os.read(0, 4096):
        said = (said + more)[-_REMEMBERED:]
    left = _left(directory, original_w, said)
    give_up_s = time.monotonic() + _PATIENCE_S
    while left and time.monotonic() < give_up_s:
        left = [record for record in left if not _restored(directory, record, devices)]
        if left:
            time.sleep(_AGAIN_S)


def _left(directory: Path, original_w: Mapping[str, float], said: bytes) -> list[LimitRecord]:
    """Return what is to be put back, by what the launcher said.

    A launcher that died may have lost its records first, so what it said last counts more. Without
    a word from it they count: it writes them before it starts a guard. One that is done has left
    those of GPUs that it could not restore.
    """
    lines = said.splitlines(keepends=True)
    told = [line for line in lines if line.startswith(b"{") and line.endswith(b"\n")]
    if not told:
        records = [_read(directory, uuid) for uuid in original_w]
        return [record for record in records if record is not None]
    return [
        LimitRecord(uuid, original_w[uuid], "the last trial", set_w=tuple(watts))
        for uuid, watts in json.loads(told[-1]).items()
        if lines[-1] != DISMISSED or has_record(directory, uuid)
    ]


def _read(directory: Path, uuid: str) -> LimitRecord | None:
    try:
        return read_record(directory, uuid)
    except DeviceError:
        return None  # doctor and repair name it


def _restored(directory: Path, record: LimitRecord, devices: dict[str, LimitableDevice]) -> bool:
    """Try to restore the limit of a GPU; return whether its record is gone.

    A GPU that does not take it is opened anew the next time: its driver may have been restarted.
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
