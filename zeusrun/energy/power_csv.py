"""Writes the ``power.csv`` of a run: the readings of every device, for people and their plots."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import Health
from zeusrun.files.private import open_for_writing

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from typing import BinaryIO

COLUMNS = (
    "time_s,uuid,power_w,power_limit_w,energy_j,"
    "utilization,temperature_c,sm_clock_mhz,memory_clock_mhz,throttle_reasons"
)
# The file grows by about 100 bytes a row. With eight GPUs that is 30 MB in the first hour at 10 Hz,
# and 3 MB in each later hour at 1 Hz.
_DENSE_S = 3600.0


class PowerRow(NamedTuple):
    """One reading of one device, ``time_s`` after the run began; ``None`` is unknown."""

    time_s: float
    uuid: str
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    health: Health | None = None

    def to_line(self) -> str:
        """Return the line of the file, in the order of ``COLUMNS``."""
        *sensors, reasons = vars(self.health or Health()).values()
        cells = [
            f"{self.time_s:.3f}",
            self.uuid,
            *(_cell(each, ".3f") for each in (self.power_w, self.power_limit_w, self.energy_j)),
            *(_cell(each, "g") for each in sensors),
            "" if reasons is None else "+".join(reasons) or "none",  # NVML's own word
        ]
        return ",".join(cells) + "\n"


class PowerCsv:
    """Writer of ``power.csv``: every sample in the first hour, then the first one of each second.

    The joules are cumulative, so the samples that are left out lose no energy. Rows are flushed but
    not fsynced. After an error nothing more is written: metering matters more.
    """

    def __init__(self, path: Path | None) -> None:
        """Prepare; nothing is written yet, and never without a path."""
        self._path = path
        self._file: BinaryIO | None = None
        self._last_s = -1.0

    def write(self, rows: Sequence[PowerRow]) -> str | None:
        """Append one sample of all devices; return a warning if that failed, the first time."""
        if self._path is None or not rows:
            return None
        time_s = rows[0].time_s
        if time_s >= _DENSE_S and int(time_s) == int(self._last_s):
            return None
        self._last_s = time_s
        text = "".join([row.to_line() for row in rows])
        try:
            if self._file is None:
                descriptor = open_for_writing(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                self._file = os.fdopen(descriptor, "wb")
                text = f"{COLUMNS}\n{text}"
            self._file.write(text.encode("ascii", "replace"))
            self._file.flush()
        except OSError as error:
            path, self._path = self._path, None
            self.close()
            return f"{path} is incomplete ({error.strerror or error}); energy is still measured"
        return None

    def close(self) -> None:
        """Close the file. More than once is fine."""
        # Each write was flushed. After a failed write, close fails too; that is reported already.
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.close()


def _cell(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
