"""The ``power.csv`` of a run: every reading of every device, for people and their plots."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

COLUMNS = "time_s,uuid,power_w,power_limit_w,energy_j"

Row = tuple[float, str, float | None, float | None, float | None]


class PowerCsv:
    """Writer of ``power.csv``. It gives up at the first error: metering matters more.

    A row is in the kernel's hands as soon as it is written, but not fsynced.
    """

    def __init__(self, path: Path) -> None:
        """Create or truncate the file.

        Raises:
            OSError: If it cannot be created or written.
        """
        self._file = path.open("w", encoding="ascii", errors="replace", buffering=1)
        self._write(COLUMNS + "\n")

    def write(self, rows: Iterable[Row]) -> None:
        """Append rows in the order of ``COLUMNS``; unknown is an empty cell.

        Raises:
            OSError: If the disk is full, say. The file is closed then.
        """
        lines = [
            f"{time_s:.3f},{uuid}," + ",".join("" if v is None else f"{v:.3f}" for v in values)
            for time_s, uuid, *values in rows
        ]
        if lines:
            self._write("\n".join(lines) + "\n")

    def close(self) -> None:
        """Close the file. More than once is fine."""
        # Every line was flushed when it was written; what is left after a failed write fails again
        # here, and that failure is reported already.
        with contextlib.suppress(OSError):
            self._file.close()

    def _write(self, text: str) -> None:
        try:
            self._file.write(text)
        except OSError:
            self.close()
            raise
