"""The ``power.csv`` of a run: every reading of every device, for people and their plots.

A long run's file stays bounded. When it is full, older samples are thinned, evenly over time and
every device alike; the latest stay whole. Its energy is cumulative, so no joule is lost.
"""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.device import Health
from zeusrun.files.private import open_for_writing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO

COLUMNS = (
    "time_s,uuid,power_w,power_limit_w,energy_j,"
    "utilization,temperature_c,sm_clock_mhz,memory_clock_mhz,throttle_reasons"
)
# Half an hour of eight GPUs at 10 Hz. While it is thinned there is a second file, of at most three
# quarters of this, and sampling waits: 0.15 s (0.09 to 0.40) every 12 minutes or more, as measured
# by benchmarks/power_csv.py.
MAX_BYTES = 16 << 20
# As much as this is kept whole, unless it is more than a quarter of the file.
_WHOLE_MS = 120_000
_PERIOD_MS = 100
_NOTHING_KNOWN = Health()


class Row(NamedTuple):
    """One reading of one device; ``None`` is unknown.

    Attributes:
        time_s: Seconds since the run began, not negative.
        uuid: The device.
        power_w: Its draw.
        power_limit_w: The limit that is set.
        energy_j: Joules that only grow and start anywhere.
        health: How it fares beside that.
    """

    time_s: float
    uuid: str
    power_w: float | None
    power_limit_w: float | None
    energy_j: float | None
    health: Health | None = None


class PowerCsv:
    """Writer of ``power.csv``. It gives up at the first error: metering matters more.

    A row is in the kernel's hands as soon as it is written, but not fsynced. Whoever reads the file
    while it is thinned goes on reading the one that they opened.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        """Create or truncate the file.

        Args:
            path: Where.
            max_bytes: How large it may grow before it is thinned.

        Raises:
            OSError: If it cannot be created or written.
        """
        self._path = path
        self._max_bytes = max_bytes
        self._bytes = self._rows = 0
        self._last_s = 0.0
        self._uuids: set[str] = set()
        self._file = _create(path)
        self._is_regular = path.is_file()  # a pipe keeps nothing, so there is nothing to thin
        self._write(f"{COLUMNS}\n")

    def write(self, rows: Sequence[Row]) -> None:
        """Append rows, none earlier than those before; unknown is an empty cell.

        Raises:
            OSError: If the disk is full, say. The file is closed then.
        """
        if not rows:
            return
        self._rows += len(rows)
        self._last_s = rows[-1].time_s
        self._uuids.update([row.uuid for row in rows])
        self._write("".join([_line(row) for row in rows]))
        if self._bytes > self._max_bytes and self._is_regular:
            self._thin()

    def close(self) -> None:
        """Close the file. More than once is fine."""
        # Every line was flushed when it was written; what is left after a failed write fails again
        # here, and that failure is reported already.
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, text: str) -> None:
        encoded = text.encode("ascii", "replace")
        try:
            self._file.write(encoded)
            self._file.flush()
        except OSError:
            self.close()
            raise
        self._bytes += len(encoded)

    def _thin(self) -> None:
        """Put a thinned copy in the file's place and go on writing there."""
        thinned = self._path.with_name(f"{self._path.name}.thinned")
        try:
            with self._path.open("rb") as full:
                header, first = full.readline(), full.readline()
                full.seek(self._bytes * 3 // 4)
                full.readline()  # it begins in the midst of a line
                recent = full.readline()
                last_ms = round(self._last_s * 1000)
                whole_ms = max(_time_ms(recent or first), last_ms - _WHOLE_MS)
                width_ms = _choose_width_ms(
                    last_ms - _time_ms(first), self._rows / len(self._uuids) / 2
                )
                self._file.close()
                self._file = _create(thinned)
                full.seek(len(header))
                self._file.write(header)
                self._rows = 0
                for line in _thinned(full, width_ms, whole_ms):
                    self._file.write(line)
                    self._rows += 1
            self._file.flush()
            self._bytes = self._file.tell()
            thinned.replace(self._path)
        except OSError:
            self.close()
            with contextlib.suppress(OSError):
                thinned.unlink()
            raise


def _create(path: Path) -> BinaryIO:
    descriptor = open_for_writing(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    return open(descriptor, "wb")  # noqa: PTH123 - a descriptor


def _choose_width_ms(span_ms: int, max_samples: float) -> int:
    """Return how far apart samples shall be, so that a device has at most so many.

    Always the same width times a power of two: what was thinned before lies on the same grid, so
    that it stays evenly spread when it is thinned again.
    """
    width_ms = _PERIOD_MS
    while span_ms > width_ms * max_samples:
        width_ms *= 2
    return width_ms


def _thinned(lines: Iterable[bytes], width_ms: int, whole_ms: int) -> Iterator[bytes]:
    """Yield each device's first row in every ``width_ms``, and all rows from ``whole_ms`` on."""
    kept: dict[bytes, int] = {}
    for line in lines:
        time, uuid, _ = line.split(b",", 2)
        time_ms = int(time.replace(b".", b""))
        place = time_ms // width_ms
        if time_ms >= whole_ms or kept.get(uuid) != place:
            kept[uuid] = place
            yield line


def _time_ms(line: bytes) -> int:
    return int(line.partition(b",")[0].replace(b".", b""))


def _line(row: Row) -> str:
    time_s, uuid, power_w, power_limit_w, energy_j, health = row
    return (
        f"{time_s:.3f},{uuid},{_three(power_w)},{_three(power_limit_w)},{_three(energy_j)},"
        f"{_fare(health or _NOTHING_KNOWN)}\n"
    )


def _fare(health: Health) -> str:
    numbers = (
        health.utilization,
        health.temperature_c,
        health.sm_clock_mhz,
        health.memory_clock_mhz,
    )
    reasons = health.throttle_reasons
    told = "" if reasons is None else "+".join(reasons) or "none"  # NVML's own word
    return ",".join(["" if number is None else f"{number:g}" for number in numbers]) + f",{told}"


def _three(value: float | None) -> str:
    return "" if value is None else f"{value:.3f}"
