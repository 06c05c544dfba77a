"""What a kilowatt-hour costs, in money or in carbon, in the course of time. Pure."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from datetime import tzinfo

J_PER_KWH = 3.6e6
_QUARTER_S = 900  # every time zone changes its hour at a quarter of an hour in UTC


class Piece(NamedTuple):
    """A rate, and until when it holds, in Unix seconds; ``None`` is an unknown rate."""

    rate: float | None
    until: float


@dataclass(frozen=True)
class Tariff:
    """The rate for a kilowatt-hour: constant, by weekday and hour, or by a list of times.

    Attributes:
        constant: One rate for all time.
        week: A rate for each hour of a week, from Monday 0:00 on; shape ``(168,)``.
        zone: The time zone of the week; ``None``: the machine's own.
        times: Unix seconds from which ``rates`` hold, ascending; the last one is an end.
        rates: One fewer than ``times``.
    """

    constant: float | None = None
    week: Sequence[float | None] = ()
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
        if not self.week:
            return Piece(self.constant, math.inf)
        local = datetime.fromtimestamp(t, timezone.utc).astimezone(self.zone)
        rate = self.week[24 * local.weekday() + local.hour]
        return Piece(rate, (t // _QUARTER_S + 1) * _QUARTER_S)

    @property
    def is_flat(self) -> bool:
        """Whether one rate holds at all times."""
        return self.constant is not None or len(set(self.week)) == 1

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
    return None if rate is None or energy_j is None else energy_j / J_PER_KWH * pue * rate


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


def from_points(points: Sequence[tuple[float, float]]) -> Tariff:
    """Return the tariff of rates and the times from which on they hold, in Unix seconds.

    There is at least one, and the times increase. The last one holds as long as the one before; a
    single one for an hour.
    """
    times = [t for t, _ in points]
    last_s = times[-1] - times[-2] if len(times) > 1 else 3600.0
    return Tariff(times=(*times, times[-1] + last_s), rates=tuple(rate for _, rate in points))
