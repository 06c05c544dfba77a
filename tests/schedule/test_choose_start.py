"""Which start is chosen within a window: properties, and the sentences that say why."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timezone

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from zeusrun.schedule.deferral import Outlook, choose_start, plan_start
from zeusrun.schedule.due import LOOK_S, Rules, Timetable
from zeusrun.tariff import Tariff, from_points

HOUR_S = 3600.0
STEP_S = 1500  # of the starts that are tried by hand
SAME = 1e-3  # larger than the saving that is not worth a delay
TWO = datetime(2026, 6, 3, 2, tzinfo=timezone.utc).timestamp()
# In Berlin, the clocks change in the nights of 29 March and 25 October.
DATES = [(2026, 3, 29), (2026, 10, 25), (2026, 6, 3), (2026, 12, 31)]


def hourly(rates, start=TWO):
    return from_points([(start + hour * HOUR_S, rate) for hour, rate in enumerate(rates)])


def at(day, hour, minute=0, zone="UTC"):
    when = datetime(2026, 6, day, hour, minute, tzinfo=Timetable("* * * * *", zone).zone())
    return when.timestamp()


def rules(within_h=6, tz="UTC", **changes):
    timetable = Timetable(changes.pop("cron", "0 2 * * *"), tz)
    return Rules(timetable, start_within_s=within_h * HOUR_S, **changes)


def outlook(rates=(0.34, 0.30, 0.25, 0.19, 0.19, 0.40, 0.50, 0.50, 0.50), **changes):
    known = Outlook("price", hourly(rates), "EUR/kWh", (HOUR_S,))
    return replace(known, **changes)


def test_the_cheapest_hour_is_chosen_and_the_first_of_equal_ones():
    planned = plan_start(rules(), TWO, TWO + 5, outlook())
    assert planned.start_at == at(3, 5)
    assert planned.describe(rules().timetable, TWO) == "at 05:00: 0.19 EUR/kWh instead of 0.34"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"tariff": None}, "no price is known"),
        ({"tariff": None, "by": "carbon"}, "no carbon is known"),
        ({"durations_s": ()}, "no run has ended yet, so its duration is unknown"),
        ({"tariff": Tariff(0.3)}, "no start until 08:00 is cheaper than 0.3 EUR/kWh"),
        ({"tariff": hourly([1.0], TWO - HOUR_S)}, "no price is known from 02:00 to 09:00"),
    ],
)
def test_without_a_better_start_it_starts_at_once_and_says_why(changes, why):
    planned = plan_start(rules(), TWO, TWO + 5, outlook(**changes))
    assert (planned.start_at, planned.why) == (TWO + 5, why)
    assert planned.describe(rules().timetable, TWO) == f"at once: {why}"


def test_unknown_hours_are_not_chosen():
    known_later = hourly([0.3, 0.2, 0.25], TWO + 2 * HOUR_S)
    planned = plan_start(rules(), TWO, TWO, outlook(tariff=known_later))
    assert (planned.start_at, planned.why) == (TWO + 3 * HOUR_S, "0.2 EUR/kWh")


def test_it_starts_in_time_to_end_by_finish_by_and_at_once_if_that_cannot_be():
    falling = [9, 8, 7, 6, 5, 4, 3, 2, 1, 1, 1, 1]
    wanted = rules(finish_by="07:30")
    planned = plan_start(wanted, TWO, TWO, outlook(falling, durations_s=(2 * HOUR_S,)))
    assert planned.start_at == at(3, 5, 30)
    late = plan_start(wanted, TWO, TWO, outlook(falling, durations_s=(6 * HOUR_S,)))
    assert late.describe(wanted.timetable, TWO) == (
        "at once: it may take 6.0 h, too long to end by 07:30"
    )


def test_carbon_and_other_days_have_their_words():
    clean = outlook([340, 340.2, 1, 1, 1, 1, 1, 1, 1], by="carbon", unit="g/kWh")
    assert plan_start(rules(1, by="carbon"), TWO, TWO, clean).why == (
        "no start until 03:00 is cleaner than 340 g/kWh"
    )
    evening = rules(cron="0 22 * * *")
    due = at(3, 22)
    planned = plan_start(
        evening,
        due,
        due,
        outlook(
            [210.4, 210, 1500, 210, 9e4, 9e4, 1e4, 1e4],
            tariff=hourly([1000, 999, 900, 998, 1001, 1002, 1003, 1004], due),
        ),
    )
    assert planned.describe(evening.timetable, due) == "at Thu 00:00: 900 EUR/kWh instead of 1000"


def test_a_machine_that_was_off_does_not_start_at_the_rate_instead_of_the_same_rate():
    late = plan_start(rules(), TWO, at(3, 4), outlook([0.3] * 12))
    assert (late.start_at, late.why) == (
        at(3, 4),
        "no start until 08:00 is cheaper than 0.3 EUR/kWh",
    )


@st.composite
def nights(draw):
    """Draw a night with its rules, the time of a decision, and what is known."""
    date = draw(st.sampled_from(DATES))
    hour = draw(st.integers(0, 23))
    zone = "Europe/Berlin"
    cron = f"{draw(st.sampled_from([0, 30]))} {hour} * * *"
    timetable = Timetable(cron, zone)
    begin = datetime(*date, tzinfo=timetable.zone()).timestamp() - 12 * HOUR_S
    due = next(timetable.following(begin))
    finish = draw(st.none() | st.sampled_from(["02:30", "07:30", "00:00", "23:15"]))
    within_s = draw(st.integers(1, 23)) * HOUR_S
    wanted = Rules(timetable, start_within_s=within_s, finish_by=finish)
    rates = draw(
        st.lists(st.sampled_from([-0.1, 0.0, 0.1, 0.2, 0.2, 0.4]), min_size=60, max_size=60)
    )
    if draw(st.booleans()):
        tariff = Tariff(week=7 * rates[:24], zone=timetable.zone())
    else:
        tariff = hourly(rates[: draw(st.sampled_from([10, 30, 60]))], due // HOUR_S * HOUR_S)
    lasts_s = draw(st.lists(st.floats(60, 5 * HOUR_S), min_size=1, max_size=4))
    now = due + draw(st.floats(0, 1)) * within_s
    return wanted, due, now, Outlook("price", tariff, "EUR/kWh", tuple(lasts_s))


def expected_cost(known, start):
    """Return what a run costs by ``Tariff.mean``; ``None`` if it is unknown."""
    if known.tariff.mean(start, start + max(known.durations_s)) is None:
        return None
    parts = [(each, known.tariff.mean(start, start + each)) for each in known.durations_s]
    return sum(each * rate for each, rate in parts) / sum(known.durations_s)


@settings(max_examples=100)
@given(nights())
def test_a_start_is_in_its_window_keeps_finish_by_and_is_no_worse_than_any_other(night):
    wanted, due, now, known = night
    planned = plan_start(wanted, due, now, known)
    latest, finish = wanted.latest_at(due), wanted.finish_at(due)
    assert max(now, due) <= planned.start_at <= max(now, latest)
    assert latest <= due + wanted.start_within_s
    assert latest < next(wanted.timetable.following(due))
    if finish is not None and now + max(known.durations_s) <= finish:
        assert planned.start_at + max(known.durations_s) <= finish + 1e-3
    chosen, at_now = (expected_cost(known, start) for start in (planned.start_at, now))
    if planned.start_at > now:
        assert chosen is not None
        assert at_now is None or chosen < at_now
    last = latest if finish is None else min(latest, finish - max(known.durations_s))
    for other in range(int(now // STEP_S + 1) * STEP_S, int(last), STEP_S):
        cost = expected_cost(known, other)
        assert cost is None or (chosen is not None and chosen <= cost + SAME)


@settings(max_examples=2 * settings.default.max_examples)
@given(nights())
def test_deciding_again_and_again_starts_once_and_in_time(night):
    wanted, due, _, known = night
    now = due + 20.0
    first = planned = plan_start(wanted, due, now, known)
    while planned.start_at > now + 4 * LOOK_S:
        now += 4 * LOOK_S
        planned = plan_start(wanted, due, now, known)
    assert now <= planned.start_at <= max(wanted.latest_at(due), due + 20.0)
    costs = [expected_cost(known, each.start_at) for each in (first, planned)]
    assert None in costs or costs[1] <= costs[0] + SAME


def test_nothing_known_chooses_nothing():
    assert choose_start(Tariff(week=7 * [None, 1.0, *[None] * 22]), TWO, TWO + 60, [9e4]) is None
