"""Reads CSV files whose columns are known, and says where something is wrong with them."""

from __future__ import annotations

import csv
import io
import lzma
import math
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path


LARGEST, SMALLEST = 1e15, 1e-9
"""No second, watt or share is outside of these; beyond, sums would leave what a float can hold."""


class Place(NamedTuple):
    """A line of a file, for errors."""

    path: Path
    line: int

    def error(self, text: str) -> UsageError:
        """Return an error that begins with the place."""
        return UsageError(f"{self.path}:{self.line}: {text}")

    def number(self, column: str, text: str) -> float:
        """Read a number.

        Raises:
            UsageError: If it is none, not finite, or beyond reason.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{column} is {text!r}, not a number")
        if abs(value) > LARGEST:
            raise self.error(f"{column} is {text}, beyond reason: at most {LARGEST:g}")
        return value

    def positive(self, column: str, text: str) -> float:
        """Read a number above 0.

        Raises:
            UsageError: If it is none.
        """
        value = self.number(column, text)
        if value <= 0:
            raise self.error(f"{column} is {text}, but must be above 0")
        if value < SMALLEST:
            raise self.error(f"{column} is {text}, beyond reason: at least {SMALLEST:g}")
        return value

    def whole(self, column: str, text: str) -> int:
        """Read a whole number above 0; ``64.0`` is one, too.

        Raises:
            UsageError: If it is none.
        """
        value = self.positive(column, text)
        if not value.is_integer():
            raise self.error(f"{column} is {text}, not a whole number")
        return int(value)


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[Place, Sequence[str]]]:
    """Yield every row of a CSV file: its place, and its cells in the order of ``columns``.

    Args:
        path: ``.csv``, or ``.csv.xz`` to be unpacked.
        columns: At least two names that the header must have; others are passed over.

    Raises:
        UsageError: If the file cannot be read, is no CSV, lacks a column, or a row has too few
            cells.
    """
    rows = _split(path)
    header = [name.strip() for name in next(rows, (Place(path, 1), []))[1]]
    missing = [name for name in columns if name not in header]
    if missing:
        found = ", ".join(filter(None, header)) or "no header"
        raise Place(path, 1).error(f"there is no column {missing[0]!r}; found {found}")
    pick = itemgetter(*map(header.index, columns))
    for place, row in rows:
        if not row:
            continue
        try:
            yield place, pick(row)
        except IndexError:
            raise place.error(f"{len(row)} cells where the header has {len(header)}") from None


def _split(path: Path) -> Iterator[tuple[Place, list[str]]]:
    """Yield every row with the line that it begins in."""
    reader = csv.reader(io.StringIO(_read_text(path), newline=""), strict=True)
    while True:
        place = Place(path, reader.line_num + 1)
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:  # an open quote swallows what follows: name where it began
            raise place.error(f"this row is no CSV: {error}; is a quote left open?") from error
        yield place, row


def _read_text(path: Path) -> str:
    try:
        if path.suffix == ".xz":
            with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
                return file.read()
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise UsageError(f"there is no file {path}") from None
    except (lzma.LZMAError, EOFError) as error:
        raise UsageError(f"{path} is not a whole .xz file: {error}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file: {error.reason}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror or error}") from error
