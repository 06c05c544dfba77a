"""TensorBoard's event files, read as they grow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from zeusrun.files.private import open_for_reading
from zeusrun.metrics.event_file import read_records, read_scalars
from zeusrun.metrics.newest_file import NewestFile
from zeusrun.metrics.rows import Rows, RowSource, StepRows

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.metrics.rows import SourceContext

_MAX_CHUNKS = 2  # 2 MB at a time, so that supervision never waits long


class EventFile(RowSource):
    """Reads the newest event file of a trial. What a writer does not flush comes late."""

    def __init__(self, run: SourceContext) -> None:
        super().__init__(Rows(run, "tag"))
        self._steps = StepRows(self._rows, run.section.epoch)
        names = "*tfevents*"
        self._files = NewestFile(run, self._rows, names=names, inside=(f"**/{names}",))
        self._path: Path | None = None
        self._identity: tuple[int, int] | None = None
        self._offset = self._old_bytes = 0
        self._damaged = False

    def _collect(self, *, final: bool) -> bool:
        if self._path is not None:
            self._read_file(self._path, final=final)
        path = self._files.find(final=final)
        if path is not None and path != self._path:
            self._path, self._identity = path, None
            self._old_bytes = self._files.old_bytes(path)
            self._read_file(path, final=final)
        self._steps.end(final=final)
        return self._path is not None

    def _read_file(self, path: Path, *, final: bool) -> None:
        try:
            descriptor = open_for_reading(path)
        except FileNotFoundError:
            return
        try:
            status = os.fstat(descriptor)
            identity = (status.st_dev, status.st_ino)
            if identity != self._identity or status.st_size < self._offset:
                if self._identity is not None:  # it is another file now
                    self._old_bytes = 0
                self._identity, self._offset, self._damaged = identity, 0, False
                self._rows.restart()
            chunks = 0
            while not self._damaged and (chunks < _MAX_CHUNKS or final):
                chunks += 1
                before = self._offset
                records, self._offset = read_records(descriptor, before)
                for end, record in records:
                    if end > self._old_bytes:
                        self._take(record)
                if self._offset == before:
                    break
        except ValueError as error:
            self._damaged = True
            self._rows.warn("file", f"{path} {error}; the rest of it is not read")
        finally:
            os.close(descriptor)

    def _take(self, record: bytes) -> None:
        for scalar in read_scalars(record):
            value = "no number" if scalar.value is None else scalar.value
            self._steps.take(scalar.tag, value, scalar.step, scalar.wall_time_s)


open_source = EventFile
