"""What it saves to start a job when power is cheap or clean, over a year of hourly rates.

``python benchmarks/cheap_hours.py [--seeds 20] [--price FILE.csv] [--carbon FILE.csv]``

The decisions are those of ``zeusrun.schedule``: each occurrence is planned by the 95th percentile
of the runs before it, and planned again every quarter of an hour. Without files, the rates are
made up: two peaks a day, a valley at noon that is deeper in summer, cheaper weekends, dearer
winters, and noise that lasts for days. They resemble a day-ahead market and are not one.
Durations are log-normal around ``--hours``.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from zeusrun.analysis.durations import NEWEST
from zeusrun.jobfile.tariff_section import load_tariff
from zeusrun.schedule.cron_expression import build_timetable
from zeusrun.schedule.due import LOOK_S, Rules
from zeusrun.schedule.start_time import Outlook, plan_start
from zeusrun.tariff import Tariff, from_points

HOUR_S = 3600.0
WINDOWS_H = (0, 2, 4, 6, 12)
TICK_S = 20.0  # the tick that sees an occurrence comes so much later


def make_up(start: float, hours: int, zone: ZoneInfo, rng: random.Random) -> tuple[Tariff, Tariff]:
    """Return made-up prices in EUR/kWh and carbon in g/kWh, for each hour."""
    prices, grams = [], []
    wind = noise = 0.0
    for hour in range(hours):
        t = start + hour * HOUR_S
        local = datetime.fromtimestamp(t, zone)
        summer = 0.5 - 0.5 * math.cos(2 * math.pi * (local.timetuple().tm_yday - 10) / 365)
        peaks = bump(local.hour, 8, 2.0) + 1.3 * bump(local.hour, 19, 2.5)
        night = bump(local.hour, 3, 3.0)
        sun = (0.4 + 0.6 * summer) * bump(local.hour, 13, 2.5)
        weekend = local.weekday() >= 5
        wind += -wind / 40 + rng.gauss(0, math.sqrt(2 / 40))  # lasts for about two days
        noise += -noise / 3 + rng.gauss(0, math.sqrt(2 / 3))
        load = peaks - 0.7 * night - 1.5 * sun - 0.5 * weekend + 0.4 * (1 - summer)
        prices.append((t, 0.10 + 0.035 * load - 0.025 * wind + 0.006 * noise))
        grams.append((t, max(40.0, 360 + 70 * load - 90 * wind + 10 * noise)))
    return from_points(prices), from_points(grams)


def bump(hour: int, at: float, width: float) -> float:
    away = min(abs(hour - at), 24 - abs(hour - at))
    return math.exp(-0.5 * (away / width) ** 2)


@dataclass
class Year:
    """What a year of occurrences came to."""

    paid: float  # the rate times the hours of each run
    starts: list[tuple[float, float]]  # when due, and when started

    def waits_h(self) -> list[float]:
        """Return by how much each was deferred, in hours."""
        return [(started - due) / HOUR_S for due, started in self.starts]


def run_year(rules: Rules, tariff: Tariff, span: tuple[float, float], lasts_h: list[float]) -> Year:
    """Start every occurrence of a span as zeusrun would; the runs last as given, in order."""
    durations = [each * HOUR_S for each in lasts_h[:20]]  # runs before the span
    paid, starts = 0.0, []
    occurrences = rules.timetable.between(*span, most=10_000)
    for due, hours in zip(occurrences, lasts_h[20:], strict=False):
        outlook = Outlook(rules.by, tariff, "", durations[-NEWEST:])
        now = due + TICK_S
        while (planned := plan_start(rules, due, now, outlook)).start_at > now + LOOK_S:
            now += LOOK_S
        started = planned.start_at
        rate = tariff.mean(started, started + hours * HOUR_S)
        if rate is None:
            raise SystemExit("the rates have a gap, or do not cover the year")
        paid += rate * hours
        starts.append((due, started))
        durations.append(hours * HOUR_S)
    return Year(paid, starts)


def spread(shares: list[float]) -> str:
    middle = statistics.median(shares)
    return f"{middle:6.1%} ({min(shares):.1%} to {max(shares):.1%})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--year", type=int, default=2026)
    parser.add_argument("--tz", default="Europe/Berlin")
    parser.add_argument("--cron", nargs="*", default=["0 2 * * *", "0 19 * * *"])
    parser.add_argument("--hours", type=float, default=2.0, help="median of a run")
    parser.add_argument("--spread", type=float, default=0.25, help="sigma of its logarithm")
    parser.add_argument("--price", type=Path, help="CSV of a time and the price from then on")
    parser.add_argument("--carbon", type=Path, help="the same in g/kWh")
    args = parser.parse_args()
    zone = ZoneInfo(args.tz)
    first, last = (datetime(args.year + add, 1, 1, tzinfo=zone).timestamp() for add in (0, 1))
    print(
        f"{args.year}, {args.tz}, {args.seeds} seeds, runs of {args.hours:g} h "
        f"(sigma {args.spread:g}), rates {'of files' if args.price else 'made up'}"
    )
    for expression in args.cron:
        timetable = build_timetable(expression, args.tz)
        print(f"\ndue {timetable.describe()}")
        print(
            f"{'window':>6}  {'money saved':24}{'carbon saved':24}{'deferred by':>11}  {'late':>4}"
        )
        shares: dict[tuple[int, str], list[float]] = {}
        waits: dict[int, list[float]] = {}
        nights: list[str] = []
        late = dict.fromkeys(WINDOWS_H, 0)
        for seed in range(args.seeds):
            rng = random.Random(seed)  # noqa: S311 - no secret
            price, carbon = make_up(first, round((last - first) / HOUR_S) + 72, zone, rng)
            price = load_tariff(args.price, zone) if args.price else price
            carbon = load_tariff(args.carbon, zone) if args.carbon else carbon
            lasts_h = [args.hours * math.exp(rng.gauss(0, args.spread)) for _ in range(9000)]
            for by, tariff in (("price", price), ("carbon", carbon)):
                at_once = None
                for window in WINDOWS_H:
                    rules = Rules(timetable, start_within_s=window * HOUR_S, by=by)
                    year = run_year(rules, tariff, (first, last), lasts_h)
                    at_once = at_once or year
                    shares.setdefault((window, by), []).append(1 - year.paid / at_once.paid)
                    waits.setdefault(window, []).extend(year.waits_h() if by == "price" else [])
                    # An occurrence without a window starts at the tick.
                    limit_s = max(window * HOUR_S, TICK_S)
                    late[window] += sum(b - a > limit_s for a, b in year.starts)
                    if seed == 0 and by == "price" and window == 6:
                        nights = changed_nights(year, zone)
        for window in WINDOWS_H:
            money, grams = (spread(shares[window, by]) for by in ("price", "carbon"))
            waited = statistics.median(waits[window])
            print(f"{window:4} h  {money:24}{grams:24}{waited:9.1f} h  {late[window]:4}")
        print("\n".join(nights))


def changed_nights(year: Year, zone: ZoneInfo) -> list[str]:
    """Return what happened, with a window of 6 h, in the nights in which the clocks change."""
    lines = []
    for due, started in year.starts:
        before, after = (datetime.fromtimestamp(due + h * HOUR_S, zone) for h in (-6, 6))
        if before.utcoffset() != after.utcoffset():
            at, then = (datetime.fromtimestamp(t, zone) for t in (due, started))
            waited = (started - due) / HOUR_S
            lines.append(
                f"{at:%Y-%m-%d}: due {at:%H:%M %z}, started {then:%H:%M %z}, {waited:.1f} h"
            )
    return lines


if __name__ == "__main__":
    main()
