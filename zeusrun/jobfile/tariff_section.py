"""The sections ``price`` and ``carbon`` of a job file: what a kilowatt-hour costs, and when."""

from __future__ import annotations

import csv
import re
from abc import abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, available_timezones

from pydantic import Field, ValidationInfo, field_validator

from zeusrun.errors import JobFileError
from zeusrun.jobfile.sections import Section
from zeusrun.tariff import Row, Tariff, from_points, parse_time

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_RANGE = re.compile(r"\s*(\w+)\s*(?:-\s*(\w+)\s*)?")
_MOST_BYTES = 64 << 20  # a year of quarters of an hour has 2 MB


class WeekRow(Section):
    """A row of a weekly table."""

    days: str | None = Field(None, description="Weekdays, such as mon-fri or sat,sun; null: all.")
    hours: str | None = Field(
        None,
        description="Hours of the day, such as 7-22 (from 7:00 to 22:00) or 22-6; null: all.",
    )

    @field_validator("days")
    @classmethod
    def _check_days(cls, days: str | None) -> str | None:
        read_days(days)
        return days

    @field_validator("hours")
    @classmethod
    def _check_hours(cls, hours: str | None) -> str | None:
        read_hours(hours)
        return hours


class PriceRow(WeekRow):
    """A row of a weekly table of prices."""

    per_kwh: float = Field(description="Price of a kilowatt-hour.")


class CarbonRow(WeekRow):
    """A row of a weekly table of carbon intensities."""

    g_per_kwh: float = Field(ge=0, description="Grams of CO2 equivalent in a kilowatt-hour.")


class _TariffSection(Section):
    """A rate: one number, a weekly table, or a file of times and rates."""

    csv: str | None = Field(
        None,
        min_length=1,
        description="A CSV file, relative to the job file: a time and the rate from then on.",
    )
    tz: str | None = Field(
        None,
        description="Time zone of the table, and of times without an offset in the file; null: "
        "the machine's own.",
    )

    @field_validator("tz")
    @classmethod
    def _check_tz(cls, tz: str | None) -> str | None:
        if tz is not None and tz not in available_timezones():
            raise ValueError(f"must be a time zone such as Europe/Berlin, not {tz!r}")
        return tz

    @property
    def zone(self) -> tzinfo | None:
        """The time zone; ``None`` for the machine's own."""
        return None if self.tz is None else ZoneInfo(self.tz)

    def build(self, folder: Path) -> Tariff:
        """Return the tariff; ``folder`` is that of the job file.

        Raises:
            JobFileError: If the file cannot be read, or is no such table.
        """
        if self.csv is not None:
            return load_tariff(folder / Path(self.csv).expanduser(), self.zone)
        rows = [Row(read_days(row.days), read_hours(row.hours), rate) for row, rate in self._rows()]
        return Tariff(constant=self._constant(), rows=tuple(rows), zone=self.zone)

    @abstractmethod
    def _rows(self) -> list[tuple[WeekRow, float]]:
        """Return the rows of the weekly table with their rates."""

    @abstractmethod
    def _constant(self) -> float | None:
        """Return the rate at all times."""


def _check_one(value: object, info: ValidationInfo, rate_key: str) -> None:
    """Raise ``ValueError`` unless one of the three ways to name a rate is used."""
    ways = {rate_key: info.data.get(rate_key), "table": value or None, "csv": info.data.get("csv")}
    used = [name for name, way in ways.items() if way is not None]
    if len(used) != 1:
        listed = " and ".join(used) or "none"
        raise ValueError(f"or {rate_key} or csv: exactly one must say the rate, not {listed}")


class Price(_TariffSection):
    """What a kilowatt-hour costs."""

    currency: str = Field(
        min_length=1, max_length=8, description="Currency, such as EUR; only shown."
    )
    per_kwh: float | None = Field(None, description="Price of a kilowatt-hour at all times.")
    table: tuple[PriceRow, ...] = Field(
        (), strict=False, description="Prices by weekday and hour; the first row that fits counts."
    )

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: tuple[PriceRow, ...], info: ValidationInfo) -> object:
        _check_one(table, info, "per_kwh")
        return table

    def _rows(self) -> list[tuple[WeekRow, float]]:
        return [(row, row.per_kwh) for row in self.table]

    def _constant(self) -> float | None:
        return self.per_kwh


class Carbon(_TariffSection):
    """How much CO2 a kilowatt-hour causes."""

    g_per_kwh: float | None = Field(
        None, ge=0, description="Grams of CO2 equivalent in a kilowatt-hour at all times."
    )
    table: tuple[CarbonRow, ...] = Field(
        (), strict=False, description="Grams by weekday and hour; the first row that fits counts."
    )

    @field_validator("table")
    @classmethod
    def _check_table(cls, table: tuple[CarbonRow, ...], info: ValidationInfo) -> object:
        _check_one(table, info, "g_per_kwh")
        return table

    def _rows(self) -> list[tuple[WeekRow, float]]:
        return [(row, row.g_per_kwh) for row in self.table]

    def _constant(self) -> float | None:
        return self.g_per_kwh


def read_days(text: str | None) -> frozenset[int]:
    """Return the weekdays of ``mon-fri`` or ``sat,sun``; Monday is 0, ``None`` is all of them."""
    if text is None:
        return frozenset(range(7))
    names = [(first.lower(), last.lower()) for first, last in _ranges(text)]
    if not all(name in _DAYS for pair in names for name in pair):
        raise ValueError(f"must be weekdays such as mon-fri or sat,sun, not {text!r}")
    return _expand([(_DAYS.index(first), _DAYS.index(last) + 1) for first, last in names], 7)


def read_hours(text: str | None) -> frozenset[int]:
    """Return the hours of ``7-22`` (without 22) or ``22-6``; ``None`` is all of them."""
    if text is None:
        return frozenset(range(24))
    pairs = _ranges(text)
    ends = [end for pair in pairs for end in pair]
    if not all(end.isdecimal() and int(end) <= 24 for end in ends) or "-" not in text:
        raise ValueError(f"must be hours such as 7-22 or 22-6, not {text!r}")
    return _expand([(int(first), int(last)) for first, last in pairs], 24)


def _ranges(text: str) -> list[tuple[str, str]]:
    matches = [_RANGE.fullmatch(part) for part in text.split(",")]
    return [("", "") if match is None else (match[1], match[2] or match[1]) for match in matches]


def _expand(pairs: Sequence[tuple[int, int]], size: int) -> frozenset[int]:
    """Return the numbers of ranges without their ends; one that ends before it begins wraps."""
    found: set[int] = set()
    for first, end in pairs:
        found |= {each % size for each in range(first, end if end > first else end + size)}
    return frozenset(found)


def load_tariff(path: Path, zone: tzinfo | None) -> Tariff:
    """Load a CSV file of a time and the rate from then on; a first row of names is passed over.

    Raises:
        JobFileError: If it cannot be read, or a row has no time and rate.
    """
    points: list[tuple[float, float]] = []
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise JobFileError(f"{path} has more than {_MOST_BYTES >> 20} MiB; is it a tariff?")
        with path.open(newline="", encoding="utf-8-sig") as file:
            for number, row in enumerate(csv.reader(file), 1):
                try:
                    points.append((parse_time(row[0], zone), float(row[1])))
                except (ValueError, IndexError, OverflowError):
                    if not row or number == 1:
                        continue
                    raise JobFileError(
                        f"{path}:{number}: expected a time and a rate, such as "
                        f"2026-03-01T00:00+01:00,0.31, not {','.join(row)[:80]!r}"
                    ) from None
        return from_points(points)
    except (OSError, UnicodeDecodeError) as error:
        raise JobFileError(f"{path} cannot be read: {error}") from error
    except (ValueError, csv.Error) as error:
        raise JobFileError(f"{path} {error}") from error
