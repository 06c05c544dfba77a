"""What a kilowatt-hour costs, in money or in carbon, in the course of time. Pure."""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

_J_PER_KWH = 3.6e6
_QUARTER_S = 900  # every time zone changes its hour at a quarter of an hour in UTC


class Piece(NamedTuple):
    """A rate, and until when it holds, in Unix seconds; ``None`` is an unknown rate."""

    rate: float | None
    until: float


class Row(NamedTuple):
    """A row of a weekly table.

    Attributes:
        days: Weekdays, Monday is 0.
        hours: Hours of the day, 0 to 23.
        rate: For a kilowatt-hour.
    """

    days: frozenset[int]
    hours: frozenset[int]
    rate: float


@dataclass(frozen=True)
class Tariff:
    """The rate for a kilowatt-hour: constant, by weekday and hour, or by a list of times.

    Attributes:
        constant: One rate for all time.
        rows: A weekly table; the first row that fits an hour counts.
        zone: The time zone of the table; ``None``: the machine's own.
        times: Unix seconds from which ``rates`` hold, ascending; the last one is an end.
        rates: One fewer than ``times``.
    """

    constant: float | None = None
    rows: Sequence[Row] = ()
    zone: tzinfo | None = None
    times: Sequence[float] = ()
    rates: Sequence[float] = ()

    def at(self, t: float) -> Piece:
        """Return the rate at a time in Unix seconds."""
        if self.times:
            place = bisect_right(self.times, t)
            known = 0 < place < len(self.times)
            until = self.times[place] if place < len(self.times) else math.inf
            return Piece(self.rates[place - 1] if known else None, until)
        if not self.rows:
            return Piece(self.constant, math.inf)
        local = datetime.fromtimestamp(t, timezone.utc).astimezone(self.zone)
        day, hour = local.weekday(), local.hour
        rates = (row.rate for row in self.rows if day in row.days and hour in row.hours)
        return Piece(next(rates, None), (t // _QUARTER_S + 1) * _QUARTER_S)

    @property
    def is_flat(self) -> bool:
        """Whether one rate holds at all times."""
        return self.constant is not None or len({row.rate for row in self.rows}) == 1

    def describe_end(self, now: float) -> str | None:
        """Say since when a list of times has no rate, in local time; ``None`` if it still has."""
        if not self.times or now < self.times[-1]:
            return None
        return f"has no rate after {_local(self.times[-1])}"

    def mean(self, began: float, ended: float) -> float | None:
        """Return the mean rate over a span of time, in Unix seconds.

        ``None`` if a part of the span has no rate. Without a duration: the rate at ``began``.
        """
        total, t = 0.0, began
        while True:
            rate, until = self.at(t)
            if rate is None:
                return None
            if until >= ended:
                break
            total += rate * (until - t)
            t = until
        return (total + rate * (ended - t)) / (ended - began) if ended > began else rate

    def describe_gap(self, began: float, ended: float) -> str | None:
        """Say which part of a run has no rate, in local time; ``None`` if a list covers all of it.

        Only a list of times can have a gap: before its first time, or after its end.
        """
        if self.times and began < self.times[0]:
            since = f"before {_local(self.times[0])}"
            return f"has no rate {since}, and the run trained from {_local(began)} on"
        if self.times and (began >= self.times[-1] or ended > self.times[-1]):
            until = f"after {_local(self.times[-1])}"
            return f"has no rate {until}, and the run trained until {_local(ended)}"
        return None


@dataclass(frozen=True)
class Tariffs:
    """What zeusrun knows of the energy that a job takes.

    Attributes:
        price: In ``currency``; ``None``: unknown.
        currency: Such as EUR.
        carbon: In grams of CO2 equivalent; ``None``: unknown.
        pue: Power usage effectiveness: the energy of the whole site over that of the devices.
    """

    price: Tariff | None = None
    currency: str | None = None
    carbon: Tariff | None = None
    pue: float = 1.0


def amount(
    tariff: Tariff | None, energy_j: float | None, pue: float, began: float, ended: float
) -> float | None:
    """Return what energy costs that was taken evenly over a span of time, in Unix seconds.

    Returns:
        Money or grams; ``None`` if the energy, or the rate of a part of the span, is unknown.
    """
    rate = None if tariff is None else tariff.mean(began, ended)
    return None if rate is None or energy_j is None else energy_j / _J_PER_KWH * pue * rate


def parse_time(text: str, zone: tzinfo | None, *, fold: int = 0) -> float:
    """Return the Unix seconds of an RFC 3339 time; without an offset, it is of ``zone``.

    ``fold`` is 1 for the second of two equal times when the clock is put back.

    Raises:
        ValueError: If the text is no such time.
    """
    moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=zone, fold=fold)
    return moment.timestamp()


def _local(t: float) -> str:
    return datetime.fromtimestamp(t, timezone.utc).astimezone().isoformat(" ", "minutes")


def from_points(points: Sequence[tuple[float, float]]) -> Tariff:
    """Return the tariff of rates and the times from which on they hold, in Unix seconds.

    The last one holds as long as the one before; a single one for an hour.

    Raises:
        ValueError: If the times do not increase, or there are none.
    """
    times = [t for t, _ in points]
    if not times:
        raise ValueError("has no rates")
    if any(later <= earlier for earlier, later in itertools.pairwise(times)):
        raise ValueError("has times that do not increase")
    last_s = times[-1] - times[-2] if len(times) > 1 else timedelta(hours=1).total_seconds()
    return Tariff(times=(*times, times[-1] + last_s), rates=tuple(rate for _, rate in points))
