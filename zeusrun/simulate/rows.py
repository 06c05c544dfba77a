"""Reads CSV files with known columns. An error names the file, the line and the column."""

from __future__ import annotations

import csv
import io
import lzma
import math
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

LARGEST, SMALLEST = 1e15, 1e-9  # of seconds, watts and shares: their sums are finite


class TraceRow(NamedTuple):
    """The cells of a row by column, and the line on which the row ends."""

    path: Path
    line: int
    cells: Mapping[str, str]

    def error(self, text: str) -> UsageError:
        """Return an error that begins with the file and the line."""
        return UsageError(f"{self.path}:{self.line}: {text}")

    def number(self, column: str, least: float = -LARGEST) -> float:
        """Read a number of at least ``least``; anything else raises ``UsageError``."""
        text = self.cells[column]
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= LARGEST:  # not a number compares as False
            raise self.error(f"{column} is {text!r}, not a number from {least:g} to {LARGEST:g}")
        return value

    def positive(self, column: str) -> float:
        """Read a number above 0; anything else raises ``UsageError``."""
        return self.number(column, SMALLEST)

    def whole(self, column: str) -> int:
        """Read a whole number above 0, such as ``64.0``; anything else raises ``UsageError``."""
        value = self.number(column, 1)
        if not value.is_integer():
            raise self.error(f"{column} is {self.cells[column]}, not a whole number")
        return int(value)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[TraceRow]:
    """Yield every row of a ``.csv`` or ``.csv.xz`` file that has at least these columns.

    Raises:
        UsageError: If the file cannot be read, is no CSV, lacks a column, or a row lacks a cell.
    """
    reader = csv.DictReader(io.StringIO(_read_text(path), newline=""), strict=True)
    try:
        header = [name.strip() for name in reader.fieldnames or ()]
        reader.fieldnames = header
        missing = [name for name in columns if name not in header]
        if missing:
            found = ", ".join(filter(None, header)) or "no header"
            raise UsageError(f"{path}:1: there is no column {missing[0]!r}; found {found}")
        for cells in reader:
            row = TraceRow(path, reader.line_num, cells)
            if any(cells[name] is None for name in columns):
                raise row.error(f"fewer cells than the {len(header)} of the header")
            yield row
    except csv.Error as error:
        where = f"{path}, after line {reader.line_num}"
        raise UsageError(f"{where}: not CSV: {error}; is a quote left open?") from error


def _read_text(path: Path) -> str:
    opener = lzma.open if path.suffix == ".xz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="") as file:
            return file.read()
    except (OSError, EOFError, UnicodeDecodeError, lzma.LZMAError) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"{path} cannot be read: {reason}") from error
