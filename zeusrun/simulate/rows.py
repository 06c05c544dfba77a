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


class Place(NamedTuple):
    """A line of a file, for errors."""

    path: Path
    line: int

    def error(self, text: str) -> UsageError:
        """Return an error that begins with the place."""
        return UsageError(f"{self.path}:{self.line}: {text}")

    def number(self, column: str, text: str) -> float:
        """Read a finite number.

        Raises:
            UsageError: If it is none.
        """
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise self.error(f"{column} is {text!r}, not a number")
        return value

    def positive(self, column: str, text: str) -> float:
        """Read a number above 0.

        Raises:
            UsageError: If it is none.
        """
        value = self.number(column, text)
        if value <= 0:
            raise self.error(f"{column} is {text}, but must be above 0")
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
        UsageError: If the file cannot be read, lacks a column, or a row has too few cells.
    """
    reader = csv.reader(io.StringIO(_read_text(path), newline=""))
    header = [name.strip() for name in next(reader, [])]
    missing = [name for name in columns if name not in header]
    if missing:
        found = ", ".join(filter(None, header)) or "no header"
        raise Place(path, 1).error(f"there is no column {missing[0]!r}; found {found}")
    pick = itemgetter(*map(header.index, columns))
    for row in reader:
        if not row:
            continue
        place = Place(path, reader.line_num)
        try:
            yield place, pick(row)
        except IndexError:
            raise place.error(f"{len(row)} cells where the header has {len(header)}") from None


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
