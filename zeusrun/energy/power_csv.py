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

COLUMNS = (
    "time_s,uuid,power_w,power_limit_w,energy_j,"
    "utilization,temperature_c,sm_clock_mhz,memory_clock_mhz,throttle_reasons"
)
# The file grows by about 100 bytes a row. With eight GPUs that is 30 MB in the first hour at 10 Hz,
# and 3 MB in each later hour at 1 Hz.
_DENSE_S = 3600.0
_NOTHING_KNOWN = Health()


class Row(NamedTuple):
    """One reading of one device; ``None`` is unknown.

    Attributes:
        time_s: Seconds since the run began, not negative.
        uuid: The device.
        power_w: Power draw in watts.
        power_limit_w: Power limit in force.
        energy_j: Cumulative joules with an arbitrary origin.
        health: Utilisation, temperature, clocks and throttle reasons.
    """

    time_s: float
    uuid: str
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    health: Health | None = None


class PowerCsv:
    """Writer of ``power.csv``: every sample in the first hour, then the first one of each second.

    The joules are cumulative, so the samples that are left out lose no energy. Rows are flushed but
    not fsynced. After an error the file is closed: metering matters more.
    """

    def __init__(self, path: Path) -> None:
        """Create or truncate the file.

        Raises:
            OSError: If it cannot be created or written.
        """
        descriptor = open_for_writing(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        self._file = open(descriptor, "wb")  # noqa: PTH123, SIM115 - a descriptor, closed by close()
        self._last_s = -1.0
        self._write(f"{COLUMNS}\n")

    def write(self, rows: Sequence[Row]) -> None:
        """Append one sample of all devices, not earlier than the sample before.

        Raises:
            OSError: If the disk is full, for example. The file is closed then.
        """
        if not rows:
            return
        time_s = rows[0].time_s
        if time_s >= _DENSE_S and int(time_s) == int(self._last_s):
            return
        self._last_s = time_s
        self._write("".join([_line(row) for row in rows]))

    def close(self) -> None:
        """Close the file. More than once is fine."""
        # Each write was flushed. After a failed write, close fails too; that is reported already.
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, text: str) -> None:
        try:
            self._file.write(text.encode("ascii", "replace"))
            self._file.flush()
        except OSError:
            self.close()
            raise


def _line(row: Row) -> str:
    time_s, uuid, power_w, power_limit_w, energy_j, health = row
    return (
        f"{time_s:.3f},{uuid},{_three(power_w)},{_three(power_limit_w)},{_three(energy_j)},"
        f"{_health_cells(health or _NOTHING_KNOWN)}\n"
    )


def _health_cells(health: Health) -> str:
    numbers = (
        health.utilization,
        health.temperature_c,
        health.sm_clock_mhz,
        health.memory_clock_mhz,
    )
    reasons = health.throttle_reasons
    throttling = "" if reasons is None else "+".join(reasons) or "none"  # NVML's own word
    return (
        ",".join(["" if number is None else f"{number:g}" for number in numbers]) + f",{throttling}"
    )


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
