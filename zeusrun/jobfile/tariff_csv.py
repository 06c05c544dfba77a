"""Reads the CSV file of a tariff: a time, and the rate from then on."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from zeusrun.errors import JobFileError
from zeusrun.tariff import Tariff, from_points, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo
    from pathlib import Path

_YEAR_2200 = 7_258_118_400  # a time beyond it is a slip, and one near year 9999 cannot be shown
_NO_TEXT = "{} is not UTF-8 text; save it as CSV in UTF-8"
_MOST_BYTES = 16 << 20  # a year of quarters of an hour has 1 MB


def load_tariff(path: Path, zone: tzinfo | None, bounds: tuple[float, float]) -> Tariff:
    """Load a CSV file; a first row without a digit at its beginning is a heading.

    ``zone`` is that of times without an offset, ``bounds`` are the least and the largest rate.

    Raises:
        JobFileError: If it cannot be read, or a row has no time or no rate.
    """
    try:
        if not path.is_file() and path.exists():
            raise JobFileError(f"{path} is not a file; price.csv and carbon.csv name a CSV file")
        if path.stat().st_size > _MOST_BYTES:
            raise JobFileError(f"{path} is larger than {_MOST_BYTES >> 20} MiB; is it a tariff?")
        text = path.read_bytes().decode("utf-8-sig")
        if "\0" in text:
            raise JobFileError(_NO_TEXT.format(path))
        rows = [*csv.reader(io.StringIO(text, newline=""))]
    except UnicodeDecodeError as error:
        raise JobFileError(_NO_TEXT.format(path)) from error
    except (OSError, ValueError, csv.Error) as error:  # ValueError: a NUL in the name
        reason = getattr(error, "strerror", None) or error
        raise JobFileError(f"{path} cannot be read: {reason}") from error
    points: list[tuple[float, float]] = []
    for number, row in enumerate(rows, 1):
        heading = number == 1 and not "".join(row[:1]).strip()[:1].isdigit()
        if not heading and any(cell.strip() for cell in row):
            points.append(_read_row(f"{path}:{number}", row, zone, bounds, points[-1:]))
    if not points:
        raise JobFileError(f"{path} has no rates; write rows such as 2026-03-01T00:00+01:00,0.31")
    return from_points(points)


def _read_row(
    place: str,
    row: Sequence[str],
    zone: tzinfo | None,
    bounds: tuple[float, float],
    before: Sequence[tuple[float, float]],
) -> tuple[float, float]:
    """Return the time, in Unix seconds, and the rate of a row; ``before`` is the row above."""
    shown = ",".join(row)[:80]
    try:
        t, rate = parse_time(row[0], zone), float(row[1])
        if before and t <= before[0][0]:  # in a night of autumn the clock shows an hour twice
            t = parse_time(row[0], zone, fold=1)
        if not 0 <= t < _YEAR_2200:
            raise ValueError("not a time from 1970 to 2200")  # noqa: TRY301 - one error for all
    except (ValueError, IndexError, OverflowError):
        raise JobFileError(
            f"{place}: expected a time and a rate, such as 2026-03-01T00:00+01:00,0.31, "
            f"not {shown!r}"
        ) from None
    least, most = bounds
    if not least <= rate <= most:  # so is NaN
        raise JobFileError(f"{place}: the rate must be from {least:g} to {most:g}, not {row[1]}")
    if before and t <= before[0][0]:
        raise JobFileError(
            f"{place}: each time must be later than the one above, not {shown!r}; where the clocks "
            "change, write times with an offset"
        )
    return t, rate
