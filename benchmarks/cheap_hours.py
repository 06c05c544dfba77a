"""What it saves to start a job when power is cheap or clean, over a year of hourly rates.

``python benchmarks/cheap_hours.py [--seeds 20] [--price FILE.csv] [--carbon FILE.csv]``

The decisions are those of ``zeusrun.schedule``: each occurrence is planned by the 95th percentile
of the runs before it, and planned again every quarter of an hour. Without files, the rates are
made up: two peaks a day, a valley at noon that is deeper in summer, cheaper weekends, dearer
winters, and noise that lasts for days. They resemble a day-ahead market and are not one.
Runs take 2 hours, log-normal with sigma 0.25.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections import defaultdict
from datetime import datetime
from pathlib import Path
from zoneinfo import ZoneInfo

from zeusrun.analysis.usual import NEWEST_RECURRENCES
from zeusrun.jobfile.tariff_section import load_tariff
from zeusrun.schedule.deferral import Outlook, plan_start
from zeusrun.schedule.due import LOOK_S, Rules, build_timetable
from zeusrun.tariff import Tariff, from_points

HOUR_S = 3600.0
ZONE = ZoneInfo("Europe/Berlin")
BOUNDS = (-1e6, 1e6)  # of a rate
WINDOWS_H = (2, 4, 6, 12)
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


def run_year(
    rules: Rules, tariff: Tariff, span: tuple[float, float], lasts_h: list[float]
) -> tuple[float, list[tuple[float, float]]]:
    """Start every occurrence of a span as zeusrun would; the runs last as given, in order.

    Returns:
        The rate times the hours of all runs; and when each was due, and when it started.
    """
    durations = [each * HOUR_S for each in lasts_h[:20]]  # runs before the span
    paid, starts = 0.0, []
    occurrences = rules.timetable.between(*span, 10_000)
    for due, hours in zip(occurrences, lasts_h[20:], strict=False):
        outlook = Outlook(rules.by, tariff, "", durations[-NEWEST_RECURRENCES:])
        now = due + TICK_S
        while (planned := plan_start(rules, due, now, outlook)).start_at > now + LOOK_S:
            now += LOOK_S
        rate = tariff.mean(planned.start_at, planned.start_at + hours * HOUR_S)
        if rate is None:
            raise SystemExit("the rates have a gap, or do not cover the year")
        paid += rate * hours
        starts.append((due, planned.start_at))
        durations.append(hours * HOUR_S)
    return paid, starts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--year", type=int, default=2026)
    parser.add_argument("--price", type=Path, help="CSV of a time and the price from then on")
    parser.add_argument("--carbon", type=Path, help="the same in g/kWh")
    args = parser.parse_args()
    span = tuple(
        datetime(year, 1, 1, tzinfo=ZONE).timestamp() for year in (args.year, args.year + 1)
    )
    for cron in ("0 2 * * *", "0 19 * * *"):
        timetable = build_timetable(cron, ZONE.key)
        print(f"\ndue {timetable.describe()}")
        print(f"{'window':>6}  {'money saved':24}carbon saved")
        saved, late = defaultdict(list), 0
        for seed in range(args.seeds):
            rng = random.Random(seed)  # noqa: S311 - no secret
            price, carbon = make_up(span[0], 366 * 24 + 72, ZONE, rng)
            price = load_tariff(args.price, ZONE, BOUNDS) if args.price else price
            carbon = load_tariff(args.carbon, ZONE, BOUNDS) if args.carbon else carbon
            lasts_h = [2.0 * math.exp(rng.gauss(0, 0.25)) for _ in range(400)]
            for by, tariff in (("price", price), ("carbon", carbon)):
                at_once, _ = run_year(Rules(timetable), tariff, span, lasts_h)
                for window in WINDOWS_H:
                    rules = Rules(timetable, start_within_s=window * HOUR_S, by=by)
                    paid, starts = run_year(rules, tariff, span, lasts_h)
                    saved[window, by].append(1 - paid / at_once)
                    late += sum(start - due > window * HOUR_S for due, start in starts)
        for window in WINDOWS_H:
            money, grams = (spread(saved[window, by]) for by in ("price", "carbon"))
            print(f"{window:4} h  {money:24}{grams:24}")
        print(f"occurrences that started late: {late}")


def spread(shares: list[float]) -> str:
    middle = statistics.median(shares)
    return f"{middle:6.1%} ({min(shares):.1%} to {max(shares):.1%})"


if __name__ == "__main__":
    main()
