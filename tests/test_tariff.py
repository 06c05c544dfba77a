"""What a kilowatt-hour costs in the course of time."""

from __future__ import annotations

import math
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.tariff import Tariff, amount, from_points, parse_time

BERLIN = ZoneInfo("Europe/Berlin")
NIGHTLY = [0.2] * 6 + [0.3] * 16 + [0.2] * 2
TABLE = Tariff(week=7 * NIGHTLY, zone=BERLIN)
HOUR_S = 3600.0


def berlin(text):
    return parse_time(text, BERLIN)


def test_a_constant_holds_at_all_times():
    assert Tariff(constant=0.31).mean(0.0, 1e9) == pytest.approx(0.31)


def test_a_table_goes_by_the_local_hour_and_weekday():
    assert [TABLE.at(berlin(f"2026-07-01T{hour:02d}:30")).rate for hour in (5, 6, 21, 22)] == [
        0.2, 0.3, 0.3, 0.2,
    ]  # fmt: skip
    weekend = Tariff(week=[0.3] * 5 * 24 + [0.1] * 2 * 24, zone=BERLIN)
    assert weekend.at(berlin("2026-11-20T23:59")).rate == 0.3  # a Friday
    assert weekend.at(berlin("2026-11-21T00:00")).rate == 0.1


@pytest.mark.parametrize(
    ("day", "hours"), [("2026-03-29", 7), ("2026-07-01", 8), ("2026-10-25", 9)]
)
def test_a_night_in_which_the_clock_changes_has_an_hour_less_or_more(day, hours):
    end = berlin(f"{day}T12:00")
    start = (datetime.fromisoformat(day) - timedelta(hours=2)).replace(tzinfo=BERLIN).timestamp()
    spent = TABLE.mean(start, end) * (end - start) / HOUR_S
    assert spent == pytest.approx(hours * 0.2 + 6 * 0.3)


def test_a_zone_that_is_a_quarter_of_an_hour_off_changes_its_rate_at_its_own_hour():
    nepal = Tariff(week=7 * NIGHTLY, zone=ZoneInfo("Asia/Kathmandu"))  # UTC+05:45
    change = parse_time("2026-01-01T06:00", ZoneInfo("Asia/Kathmandu"))
    assert nepal.mean(change - 900, change + 900) == pytest.approx(0.25)


def test_a_list_of_times_holds_from_each_time_to_the_next():
    hourly = from_points([(0.0, 0.1), (HOUR_S, -0.2), (2 * HOUR_S, 0.4)])
    assert hourly.mean(HOUR_S / 2, 1.5 * HOUR_S) == pytest.approx((0.1 - 0.2) / 2)
    assert hourly.at(HOUR_S) == (-0.2, 2 * HOUR_S)
    assert hourly.mean(2 * HOUR_S, 3 * HOUR_S) == pytest.approx(0.4)  # as long as the one before


def test_a_span_without_a_duration_has_the_rate_of_its_moment():
    assert from_points([(0.0, 0.1), (HOUR_S, 0.2)]).mean(HOUR_S, HOUR_S) == 0.2


def test_a_span_that_is_not_covered_has_no_mean():
    hourly = from_points([(0.0, 0.1), (HOUR_S, 0.2)])
    spans = [(-1.0, 10.0), (10.0, 2 * HOUR_S + 1), (3 * HOUR_S, 4 * HOUR_S)]
    assert [hourly.mean(*span) for span in spans] == [None, None, None]


@given(
    st.lists(st.integers(1, 10_000), min_size=3, max_size=12),
    st.lists(st.floats(-1, 1), min_size=12, max_size=12),
    st.lists(st.integers(0, 10_000), min_size=3, max_size=3, unique=True),
)
def test_the_mean_of_a_list_is_additive_and_lies_between_its_rates(steps, rates, ends):
    times = [sum(steps[:n]) for n in range(len(steps))]
    listed = from_points(list(zip(map(float, times), rates, strict=False)))
    a, b, c = (times[0] + (listed.times[-1] - times[0]) * end / 10_001 for end in sorted(ends))
    parts = listed.mean(a, b) * (b - a) + listed.mean(b, c) * (c - b)
    assert listed.mean(a, c) * (c - a) == pytest.approx(parts, abs=1e-6)
    assert min(listed.rates) - 1e-9 <= listed.mean(a, c) <= max(listed.rates) + 1e-9


@given(
    st.datetimes(datetime(2026, 3, 28), datetime(2026, 3, 31)),  # noqa: DTZ001 - in Berlin
    st.floats(0, 2 * 86400),
    st.floats(0, 1),
)
def test_the_mean_of_a_table_is_additive_also_where_the_clock_changes(start, length_s, share):
    began = start.replace(tzinfo=BERLIN).timestamp()
    ended, between = began + length_s, began + share * length_s
    parts = TABLE.mean(began, between) * (between - began)
    parts += TABLE.mean(between, ended) * (ended - between)
    assert TABLE.mean(began, ended) * length_s == pytest.approx(parts, abs=1e-5)


def test_an_amount_is_of_kilowatt_hours_of_the_whole_site():
    assert amount(Tariff(constant=0.31), 2 * 3.6e6, 1.2, 0.0, 1.0) == pytest.approx(0.744)
    assert amount(Tariff(constant=-0.1), 3.6e6, 1.0, 0.0, 1.0) == pytest.approx(-0.1)


def test_an_amount_is_unknown_without_a_tariff_an_energy_or_a_rate():
    known = Tariff(constant=0.31)
    assert amount(None, 1.0, 1.0, 0.0, 1.0) is None
    assert amount(known, None, 1.0, 0.0, 1.0) is None
    assert amount(from_points([(0.0, 0.1)]), 1.0, 1.0, 0.0, HOUR_S + 1) is None
    assert amount(known, 0.0, 1.0, 0.0, 1.0) == 0.0


def test_a_time_with_an_offset_needs_no_zone_and_one_without_has_that_of_the_file():
    assert parse_time("2026-03-01T00:00+01:00", None) == parse_time("2026-02-28 23:00Z", BERLIN)
    assert parse_time("2026-03-01T00:00", BERLIN) == parse_time("2026-03-01T00:00+01:00", None)
    assert parse_time("2026-10-25T02:30", BERLIN, fold=1) == berlin("2026-10-25T02:30") + HOUR_S


def test_a_single_rate_of_a_list_holds_for_an_hour():
    assert from_points([(0.0, 0.1)]).times == (0.0, HOUR_S)
    assert Tariff(constant=0.1).at(0.0).until == math.inf
