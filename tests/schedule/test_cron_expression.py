"""Cron expressions: what is read, when it comes, how it is told."""

from __future__ import annotations

import itertools
from datetime import datetime, timezone

import pytest

from tests.schedule.model import YEAR, occurrences
from zeusrun.errors import UsageError
from zeusrun.schedule.due import Timetable, build_timetable

HALF_AN_HOUR = "Australia/Lord_Howe"  # its clocks change by that much
ZONES = ("Europe/Paris", "America/New_York", HALF_AN_HOUR)
EXPRESSIONS = (
    "0 2 * * *",
    "30 2 * * *",
    "15,45 1-3 * * *",
    "0 */6 * * *",
    "*/30 * * * *",
    "*/20 2 * * *",
    "0 3 1,15 * 0",
    "30 0 * 3,10,11 1-5",
)


def is_exact(expression, zone):
    """Whether cronsim loses no occurrence: see docs/schedules.md."""
    return zone != HALF_AN_HOUR or not any(f.startswith("*") for f in expression.split()[:2])


@pytest.mark.long
@pytest.mark.parametrize("zone", ZONES)
def test_a_year_of_occurrences_is_what_looking_at_every_minute_finds(zone):
    check_a_year(zone)


@pytest.mark.long  # every minute of a year
def test_a_year_in_a_hard_zone_is_what_looking_at_every_minute_finds():
    check_a_year(HALF_AN_HOUR)


def check_a_year(zone):
    start, end = YEAR
    for expression in [each for each in EXPRESSIONS if is_exact(each, zone)]:
        expected = occurrences(expression, zone)
        found = itertools.takewhile(
            lambda moment: moment < end, Timetable(expression, zone).following(start - 60)
        )
        assert list(found) == expected, expression


@pytest.mark.parametrize(
    ("text", "expression", "words"),
    [
        ("0 2 * * *", "0 2 * * *", "at 02:00 every day"),
        ("  0  2 * *\t* ", "0 2 * * *", "at 02:00 every day"),
        ("@daily", "0 0 * * *", "at 00:00 every day"),
        ("@Weekly", "0 0 * * 0", "at 00:00 on Sunday"),
        ("0 */6 * * *", "0 */6 * * *", "at minute 0 past every sixth hour"),
        ("*/40 * * * *", "*/40 * * * *", "every 40th minute of every hour"),
        (
            "0 2 1,15 * MON",
            "0 2 1,15 * MON",
            "at 02:00 on the first and the 15th day of the month and also on Monday",
        ),
        ("30 3 * * mon-fri", "30 3 * * MON-FRI", "at 03:30 on Monday through Friday"),
        ("0 3 1 * *", "0 3 1 * *", "at 03:00 on the first day of every month"),
    ],
)
def test_it_is_read_and_told_in_words(text, expression, words):
    timetable = build_timetable(text)
    assert timetable.expression == expression
    assert timetable.describe() == words


def test_the_time_zone_is_told_where_one_was_given():
    assert (
        build_timetable("@daily", "Europe/Paris").describe() == "at 00:00 every day (Europe/Paris)"
    )


@pytest.mark.parametrize(
    ("text", "tz", "said"),
    [
        ("0 2 * *", None, "it has 4 fields, not 5"),
        ("0 2 * * * *", None, "it has 6 fields, not 5"),
        ("61 * * * *", None, "bad minute"),
        ("*/90 * * * *", None, "a step of 90 in the field of minutes, which has 60"),
        ("0 */36 * * *", None, "a step of 36 in the field of hours"),
        ("0 0 31 2 *", None, "bad day-of-month"),
        ("0 0 32 * *", None, "bad day-of-month"),
        ("0 0 * * 8", None, "bad day-of-week"),
        ("every night", None, "it has 2 fields"),
        ("@reboot", None, "zeusrun knows @hourly"),
        ("@every 7h", None, "@annually, and five fields"),
        ("@daily", "Mars/Olympus", "'Mars/Olympus' is not a time zone"),
        ("@daily", "../../etc/passwd", "is not a time zone"),
    ],
)
def test_what_cannot_be_read_is_told_in_a_sentence(text, tz, said):
    with pytest.raises(UsageError) as caught:
        build_timetable(text, tz)
    assert said in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_the_last_occurrences_of_a_long_time_are_found():
    start, end = YEAR
    minutely = Timetable("* * * * *", "UTC")
    assert minutely.between(end - 30 * 86_400, end, 3) == [end - 120, end - 60, end]
    assert Timetable("0 0 1 1 *", "UTC").between(start - 1, end, 3) == [start, end]
    assert minutely.between(start, start + 59, 3) == []
    assert minutely.between(start, start + 61, 1) == [start + 60]


def test_without_a_zone_the_machines_own_is_meant(monkeypatch):
    assert Timetable("0 2 * * *").zone() is not None
    monkeypatch.setattr("zeusrun.schedule.due._LOCAL_ZONE", PathThatIsNot())
    assert Timetable("0 2 * * *").zone() is timezone.utc


class PathThatIsNot:
    def open(self, _mode):
        raise FileNotFoundError


def test_the_newest_occurrences_are_found_however_long_ago_they_were():
    start = datetime(2026, 1, 1, tzinfo=timezone.utc).timestamp()
    january = Timetable("* * * 1 *", "UTC")
    found = january.between(start, start + 350 * 86400, 100)
    assert len(found) == 100
    assert found[-1] == datetime(2026, 1, 31, 23, 59, tzinfo=timezone.utc).timestamp()
    yearly = Timetable("0 0 1 1 *", "UTC")
    assert len(yearly.between(start - 60, start + 1000 * 86400, 100)) == 3
