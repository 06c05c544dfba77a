"""The sections ``price`` and ``carbon`` of a job file: what a kilowatt-hour costs, and when."""

from __future__ import annotations

import csv
import io
import os
import re
from typing import TYPE_CHECKING, Annotated, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, ValidationInfo, field_validator, model_validator

from zeusrun.errors import JobFileError
from zeusrun.jobfile.section import Section
from zeusrun.jobfile.validators import check_one
from zeusrun.jobfile.values import read_by, user_path
from zeusrun.jobfile.yaml_reader import read_text
from zeusrun.tariff import Tariff, from_points, parse_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import tzinfo
    from pathlib import Path

    from typing_extensions import Self

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"\s*(\w+)\s*(?:-\s*(\w+)\s*)?")
_MAX_PER_KWH = 1e9  # also in the smallest currency; larger numbers could overflow a sum
_MAX_G_PER_KWH = 1e5  # lignite has about 1,100
_YEAR_2200 = 7_258_118_400  # a time beyond it is a slip, and one near year 9999 cannot be shown
_MAX_BYTES = 16 << 20  # a year of quarters of an hour has 1 MB


class WeekRow(Section):
    """A row of a weekly table."""

    days: str | None = Field(None, description="Weekdays, such as mon-fri or sat,sun; null: all.")
    hours: str | None = Field(
        None,
        description="Hours of the day, such as 7-22 (from 7:00 to 22:00) or 22-6; null: all.",
    )

    @field_validator("days", "hours")
    @classmethod
    def _check(cls, text: str | None, key: ValidationInfo) -> str | None:
        (read_days if key.field_name == "days" else read_hours)(text)
        return text


class PriceRow(WeekRow):
    """A row of a weekly table of prices."""

    per_kwh: float = Field(
        ge=-_MAX_PER_KWH, le=_MAX_PER_KWH, description="Price of a kilowatt-hour."
    )


class CarbonRow(WeekRow):
    """A row of a weekly table of carbon intensities."""

    g_per_kwh: float = Field(
        ge=0, le=_MAX_G_PER_KWH, description="Grams of CO2 equivalent in a kilowatt-hour."
    )


def _zone(tz: str | None) -> tzinfo | None:
    try:
        return None if tz is None else ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(f"must be a time zone such as Europe/Berlin, not {tz!r}") from None


class _TariffSection(Section):
    """A rate: one number, a weekly table, or a file of times and rates."""

    rate_key: ClassVar[str]
    bounds: ClassVar[tuple[float, float]]
    table: tuple[WeekRow, ...] = ()
    csv: str | None = Field(
        None,
        min_length=1,
        description="A CSV file, relative to the job file: a time and the rate from then on.",
    )
    tz: Annotated[str | None, read_by(_zone)] = Field(
        None,
        description="Time zone of the table, and of times without an offset in the file; null: "
        "the machine's own.",
    )

    @model_validator(mode="after")
    def _check_rates(self) -> Self:
        rate, table = self._rate(self), self.table or None
        check_one({self.rate_key: rate, "table": table, "csv": self.csv})
        self._week()
        return self

    def csv_path(self, folder: Path) -> Path | None:
        """Return the absolute path of the CSV file; ``folder`` is that of the job file."""
        if self.csv is None:
            return None
        return user_path(folder, self.csv)

    def build(self, folder: Path) -> Tariff:
        """Return the tariff; ``folder`` is that of the job file.

        Raises:
            JobFileError: If the CSV file cannot be read, or is no such table.
        """
        zone, path = _zone(self.tz), self.csv_path(folder)
        if path is not None:
            return load_tariff(path, zone, self.bounds)
        return Tariff(constant=self._rate(self), week=self._week(), zone=zone)

    def _week(self) -> Sequence[float | None]:
        """Return the rate of each hour of the table; ``ValueError`` if it has none."""
        week: list[float | None] = [None] * (7 * 24 if self.table else 0)
        for number, row in enumerate(self.table, 1):
            days, hours = read_days(row.days), read_hours(row.hours)
            places = [24 * day + hour for day in days for hour in hours]
            if None not in [week[place] for place in places]:
                raise ValueError(
                    f"has a table whose row {number} never counts, because the rows above it have "
                    "all of its hours; put the special hours first"
                )
            for place in places:
                week[place] = self._rate(row) if week[place] is None else week[place]
        if None in week:
            day, hour = divmod(week.index(None), 24)
            raise ValueError(
                f"has a table without a rate for {_DAYS[day]} {hour}-{hour + 1}; add a last row "
                "without days and hours, for all other hours"
            )
        return week

    def _rate(self, where: Section) -> float | None:
        rate: float | None = getattr(where, self.rate_key)
        return rate


def _check_currency(currency: str) -> str:
    if not currency.isprintable() or " " in currency:
        raise ValueError(f"must be a currency such as EUR, without spaces, not {currency!r}")
    return currency


class Price(_TariffSection):
    """What a kilowatt-hour costs."""

    summary: ClassVar[str] = "What a kilowatt-hour costs."
    rate_key = "per_kwh"
    bounds = (-_MAX_PER_KWH, _MAX_PER_KWH)
    currency: Annotated[str, AfterValidator(_check_currency)] = Field(
        min_length=1, max_length=8, description="Currency, such as EUR; only shown."
    )
    per_kwh: float | None = Field(
        None,
        ge=-_MAX_PER_KWH,
        le=_MAX_PER_KWH,
        description="Price of a kilowatt-hour at all times.",
    )
    table: tuple[PriceRow, ...] = Field(
        (), strict=False, description="Prices by weekday and hour; the first row that fits counts."
    )


class Carbon(_TariffSection):
    """How much CO2 a kilowatt-hour causes."""

    summary: ClassVar[str] = "How much CO2 a kilowatt-hour causes."
    rate_key = "g_per_kwh"
    bounds = (0.0, _MAX_G_PER_KWH)
    g_per_kwh: float | None = Field(
        None,
        ge=0,
        le=_MAX_G_PER_KWH,
        description="Grams of CO2 equivalent in a kilowatt-hour at all times.",
    )
    table: tuple[CarbonRow, ...] = Field(
        (), strict=False, description="Grams by weekday and hour; the first row that fits counts."
    )


def read_days(text: str | None) -> frozenset[int]:
    """Return the weekdays of ``mon-fri`` or ``sat,sun``; Monday is 0, ``None`` is all of them."""
    names = {day: number for number, day in enumerate(_DAYS)}
    return _expand(
        "mon-sun" if text is None else text, names, "weekdays such as mon-fri or sat,sun"
    )


def read_hours(text: str | None) -> frozenset[int]:
    """Return the hours of ``7-22`` (without 22) or ``22-6``; ``None`` is all of them."""
    names = {name: hour for hour in range(25) for name in (str(hour), f"{hour:02}")}
    return _expand("0-24" if text is None else text, names, "whole hours such as 7-22 or 22-6")


def _expand(text: str, names: Mapping[str, int], expected: str) -> frozenset[int]:
    """Return the numbers of ranges; one that ends before it begins wraps.

    Days may stand alone, and include the last one; hours do neither.
    """
    days, found = "mon" in names, set()
    for part in text.lower().split(","):
        match = _RANGE.fullmatch(part)
        ends = (match[1], match[2] or (match[1] if days else "")) if match else ("", "")
        if not set(ends) <= set(names) or (not days and ends[0] == ends[1]):
            raise ValueError(f"must be {expected}, not {text!r}")
        first, end, size = names[ends[0]], names[ends[1]] + days, 7 if days else 24
        found |= {each % size for each in range(first, end if end > first else end + size)}
    return frozenset(found)


def load_tariff(path: Path, zone: tzinfo | None, bounds: tuple[float, float]) -> Tariff:
    """Load a CSV file; a first row without a digit at its beginning is a heading.

    ``zone`` is that of times without an offset, ``bounds`` are the least and the largest rate.

    Raises:
        JobFileError: If it cannot be read, or a row has no time or no rate.
    """
    if os.path.exists(path) and not os.path.isfile(path):  # noqa: PTH110, PTH113 - never raise
        raise JobFileError(f"{path} is not a file; price.csv and carbon.csv must name a CSV file")
    text = read_text(path, _MAX_BYTES, "CSV file")
    if "\0" in text:  # UTF-16 without a byte order mark
        raise JobFileError(f"{path} is not UTF-8 text; save it as CSV in UTF-8")
    points: list[tuple[float, float]] = []
    try:
        for number, row in enumerate(csv.reader(io.StringIO(text, newline="")), 1):
            heading = number == 1 and not "".join(row[:1]).strip()[:1].isdigit()
            if not heading and any(cell.strip() for cell in row):
                points.append(_read_row(f"{path}:{number}", row, zone, bounds, points[-1:]))
    except csv.Error as error:
        raise JobFileError(f"{path} cannot be read: {error}") from error
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
    least, largest = bounds
    if not least <= rate <= largest:  # so is NaN
        raise JobFileError(f"{place}: the rate must be from {least:g} to {largest:g}, not {row[1]}")
    if before and t <= before[0][0]:
        raise JobFileError(
            f"{place}: each time must be later than the one above, not {shown!r}; where the clocks "
            "change, write times with an offset"
        )
    return t, rate
