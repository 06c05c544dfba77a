"""What cron should do, found by trying every minute: slow, plain, and no code of zeusrun's."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta, timezone
from zoneinfo import ZoneInfo

AT = 1_780_000_020.0 // 86400 * 86400 + 2 * 3600  # 02:00 UTC of some day
DAY_S = 86400.0
YEAR = (
    datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp(),
    datetime(2027, 1, 1, tzinfo=timezone.utc).timestamp(),
)


@functools.cache
def minutes_of_the_year(zone):
    """Return each minute in Unix seconds, and as the clocks of a zone have it."""
    times = range(int(YEAR[0]), int(YEAR[1]), 60)
    return [(moment, datetime.fromtimestamp(moment, ZoneInfo(zone))) for moment in times]


def numbers(field, first, last):
    found = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        if span == "*":
            low, high = first, last
        elif "-" in span:
            low, high = map(int, span.split("-"))
        else:
            low = int(span)
            high = last if step else low
        found.update(range(low, high + 1, int(step or 1)))
    return found


class Model:
    """An expression in a zone, read by hand."""

    def __init__(self, expression, zone):
        minute, hour, day, month, weekday = expression.split()
        self.zone = zone
        self.minutes, self.hours = numbers(minute, 0, 59), numbers(hour, 0, 23)
        self.days, self.months = numbers(day, 1, 31), numbers(month, 1, 12)
        self.weekdays = {number % 7 for number in numbers(weekday, 0, 7)}
        self.either = not day.startswith("*") and not weekday.startswith("*")
        self.fixed = not minute.startswith("*") and not hour.startswith("*")

    def matches(self, local):
        day, weekday = local.day in self.days, local.isoweekday() % 7 in self.weekdays
        right_day = (day or weekday) if self.either else (day and weekday)
        return (
            local.minute in self.minutes
            and local.hour in self.hours
            and local.month in self.months
            and right_day
        )

    def occurrences(self):
        """Return all moments of the year, in Unix seconds, by looking at every minute."""
        found = set()
        before = None
        for moment, local in minutes_of_the_year(self.zone):
            if self.matches(local) and not (self.fixed and local.fold):
                found.add(float(moment))
            if self.fixed and before is not None and local.utcoffset() != before.utcoffset():
                # What the clock has jumped over comes at the end of the jump.
                skipped = before.replace(tzinfo=None) + timedelta(minutes=1)
                while skipped < local.replace(tzinfo=None):
                    if self.matches(skipped):
                        found.add(float(moment))
                    skipped += timedelta(minutes=1)
            before = local
        return sorted(found)


@functools.cache
def occurrences(expression, zone):
    return Model(expression, zone).occurrences()
