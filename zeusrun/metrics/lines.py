"""Reads files of one row a line: tables with a header (``csv``), and JSON objects (``jsonl``)."""

from __future__ import annotations

import codecs
import csv
import json
from typing import TYPE_CHECKING

from zeusrun.files.tail import LineTail
from zeusrun.metrics.newest_file import NewestFile
from zeusrun.metrics.rows import KnownRows, Rows, RowSource, number_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from typing import TypeAlias

    from zeusrun.metrics.rows import SourceContext

    Parse: TypeAlias = Callable[[bytes], tuple[int, Mapping[str, object]] | None]

_UTF_16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_MAX_CHUNKS = 8  # 2 MB at a time, so that supervision never waits long


class _Table:
    """Parses the lines of a table. The first is the header, which may come again."""

    def __init__(self) -> None:
        self._header: list[str] = []
        self._delimiter = ","

    def __call__(self, line: bytes) -> tuple[int, Mapping[str, str]] | None:
        text = line.decode("utf-8-sig", errors="replace")
        if not self._header:
            self._delimiter = max(",;\t", key=text.count)
        try:
            cells = next(csv.reader([text], delimiter=self._delimiter))
        except csv.Error as error:
            raise ValueError(f"is not a row of a table: {error}") from error
        cells = [cell.strip() for cell in cells]
        if not self._header or self._is_header(cells):
            self._header = cells
            return None
        if len(cells) != len(self._header):
            raise ValueError(f"has {len(cells)} cells, but the header has {len(self._header)}")
        row = {name: cell for name, cell in zip(self._header, cells, strict=True) if cell}
        return hash(frozenset(row.items())), row

    def _is_header(self, cells: list[str]) -> bool:
        names = set(self._header).intersection(filter(None, cells))
        return bool(names) and all(number_of(cell) is None for cell in cells)


def _parse_object(line: bytes) -> tuple[int, Mapping[str, object]]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError("is not JSON") from error
    if not isinstance(row, dict):
        raise ValueError("is not a JSON object")  # noqa: TRY004 - one error type for bad lines
    return hash(line), {name: value for name, value in row.items() if value is not None}


class LineFile(RowSource):
    """Reads the newest file of a trial, even if the trial rewrites or deletes it.

    ``create_parser`` returns a function that gets the lines of a file from its start. For each, it
    returns a row and a hash that identifies it; ``None`` for a header. It raises ``ValueError``.
    """

    def __init__(self, run: SourceContext, kind: str, create_parser: Callable[[], Parse]) -> None:
        super().__init__(Rows(run, kind, epoch="epoch"))
        self._files = NewestFile(run, self._rows)
        self._create_parser = create_parser
        self._path: Path | None = None
        self._encoding: str | None = None  # UTF-16, if the file begins with its mark

    def _collect(self, *, final: bool) -> bool:
        """Read the rest of the present file, then a newer one."""
        if self._path is not None:
            self._read_lines(final=final)
        path = self._files.find(final=final)
        if path is not None and path != self._path:
            self._follow(path)
            self._read_lines(final=final)
        return self._path is not None

    def _follow(self, path: Path) -> None:
        self._path = path
        self._tail = LineTail(path, rewritten=True)
        self._known = KnownRows()
        self._old_bytes, self._old_rows = self._files.old_bytes(path), 0
        self._restarts = 0

    def _restart(self) -> None:
        """Read the file from its start again; the rows that it had before are not new."""
        if self._restarts:
            self._old_bytes = 0
        self._restarts = self._tail.restarts
        self._parse = self._create_parser()
        self._known.position = self._offset = 0
        self._rows.restart()

    def _read_lines(self, *, final: bool) -> None:
        chunks = 0
        while chunks < _MAX_CHUNKS or final:
            lines = self._tail.read_lines(final=final)
            if self._tail.restarts != self._restarts:
                self._restart()
            if not lines:
                return
            chunks += 1
            for line in lines:
                self._take(line)

    def _take(self, line: bytes) -> None:
        began, self._offset = self._offset, self._offset + len(line) + 1
        if not began:
            self._encoding = _UTF_16.get(line[:2])
        line = _to_utf8(line, self._encoding).replace(b"\0", b"").strip(b"\r\n ")
        try:
            found = self._parse(line) if line else None
        except ValueError as error:
            self._rows.warn("line", f"a line of {self._path} {error}; such lines are ignored")
            return
        if found is None:
            return
        mark, row = found
        before = self._known.position < self._old_rows
        new = self._known.is_new(mark)
        if began < self._old_bytes:
            self._old_rows = self._known.position
        elif new or not before:
            self._old_rows = min(self._old_rows, self._known.position)
            self._rows.take(row, self._tail.modified_s or 0.0, emit=new)


def _to_utf8(line: bytes, encoding: str | None) -> bytes:
    """Return a line of a file that begins with a byte order mark of UTF-16 as UTF-8."""
    if encoding is None:
        return line
    # Lines are split at the byte of a line feed, whose zero byte is then in one of two lines.
    text = line.removeprefix(b"\0") if encoding == "utf-16-le" else line.removesuffix(b"\0")
    return text.decode(encoding, errors="replace").removeprefix("\ufeff").encode(errors="replace")


def open_source(run: SourceContext) -> LineFile:
    """Open the file that ``metrics.path`` names. Blank cells and ``null`` are no values."""
    if run.section.source == "csv":
        return LineFile(run, "column", _Table)
    return LineFile(run, "key", lambda: _parse_object)
