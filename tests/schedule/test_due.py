"""What is due at a tick, over a year of good and bad days, against a plain model."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from tests.schedule.model import YEAR, occurrences
from tests.schedule.test_cron_expression import ZONES, is_exact
from zeusrun.launcher.queue.admission import decide_overlap
from zeusrun.schedule.due import ON_TIME_S, Cursor, PlannedStart, Rules, Timetable, find_due

HOUR_S = 3600.0
NOON = YEAR[0] + 12 * HOUR_S


def rules(expression="0 2 * * *", **changes):
    return Rules(Timetable(expression, changes.pop("tz", "UTC")), **changes)


def test_an_occurrence_is_due_at_the_first_tick_after_it_and_once():
    cursor = Cursor(NOON)
    at = NOON + 14 * HOUR_S
    assert find_due(rules(), cursor, at - 1)[0].pending is None
    found, _ = find_due(rules(), cursor, at + 3)
    assert found.pending == at
    begun = replace(found, pending=None)
    assert find_due(rules(), begun, at + 63)[0].pending is None


def test_an_occurrence_that_was_not_begun_stays_due():
    at = NOON + 14 * HOUR_S
    found, _ = find_due(rules(), Cursor(NOON), at)
    assert find_due(rules(), found, at + 200)[0].pending == at
    later, missed = find_due(rules(), found, at + 600)
    assert (later.pending, missed) == (None, {at: "nothing ran that could start it"})
    once = rules(catch_up="once")
    assert find_due(once, found, at + 600)[0].pending == at


@pytest.mark.parametrize(("catch_up", "started"), [("none", None), ("once", NOON + 62 * HOUR_S)])
def test_after_three_nights_off_the_newest_is_caught_up_or_none(catch_up, started):
    at = NOON + 62 * HOUR_S
    found, missed = find_due(rules(catch_up=catch_up), Cursor(NOON), at + 5 * HOUR_S)
    assert found.pending == started
    nights = [at - 48 * HOUR_S, at - 24 * HOUR_S, at]
    assert list(missed) == (nights[:2] if started else nights)
    assert set(missed.values()) == {"nothing ran that could start it"}


def test_what_is_later_than_its_deadline_is_missed():
    at = NOON + 14 * HOUR_S
    late = rules(catch_up="once", deadline_s=2 * HOUR_S)
    for cursor in (Cursor(NOON), find_due(late, Cursor(NOON), at)[0]):
        found, missed = find_due(late, cursor, at + 3 * HOUR_S)
        assert found.pending is None
        assert missed == {at: "it could not start within 7200 s"}


def test_what_is_pending_when_the_next_one_is_due_is_missed():
    at = NOON + 14 * HOUR_S
    hourly = rules("0 * * * *", catch_up="once")
    found, missed = find_due(hourly, Cursor(at, at), at + HOUR_S)
    assert found.pending == at + HOUR_S
    assert missed == {at: "the next one was due before it could start"}


def test_a_clock_that_goes_back_a_little_repeats_nothing():
    at = NOON + 14 * HOUR_S
    cursor = replace(find_due(rules(), Cursor(NOON), at + 60)[0], pending=None)
    for now in (at - HOUR_S, at - 60, at, at + 60):
        again, _ = find_due(rules(), cursor, now)
        assert again.pending is None
        assert again.until == at + 60


def test_a_clock_that_was_far_ahead_does_not_stop_anything_for_as_long():
    ahead, _ = find_due(rules(), Cursor(NOON), NOON + 365 * 24 * HOUR_S)
    back, _ = find_due(rules(), replace(ahead, pending=None), NOON + 60)
    assert back == Cursor(NOON + 60)
    at = NOON + 14 * HOUR_S
    assert find_due(rules(), back, at)[0].pending == at


def test_a_clock_that_says_a_year_before_2025_decides_nothing():
    before, _ = find_due(rules(), Cursor(NOON), NOON + 60)
    behind = before
    for now in (1000.0, 1060.0, 1120.0):
        behind, _ = find_due(rules(catch_up="once"), behind, now)
        assert (behind.until, behind.pending) == (NOON + 60, None)
    assert find_due(rules(catch_up="once"), behind, NOON + 120) == (Cursor(NOON + 120), {})


def test_the_first_occurrence_after_a_clock_was_put_right_is_on_time():
    cursor = Cursor(NOON + 365 * 24 * HOUR_S)
    at = NOON + 14 * HOUR_S
    for now in range(int(at) - 30, int(at) + 300, 60):
        cursor, _ = find_due(rules(), cursor, float(now))
    assert cursor.pending == at


def test_what_is_started_again_and_again_and_never_begins_is_missed():
    at = NOON + 14 * HOUR_S
    once = rules(catch_up="once")
    cursor, _ = find_due(once, Cursor(NOON), at)
    assert find_due(once, replace(cursor, tries=4), at + 240)[0].pending == at
    found, missed = find_due(once, replace(cursor, tries=5), at + 300)
    assert found.pending is None
    assert "was started for it 5 times and never began" in missed[at]
    assert find_due(once, found, at + 360)[1] == {}


@pytest.mark.parametrize(
    ("tries", "why"),
    [
        (0, "nothing ran that could start it"),
        (2, "a process was started for it 2 times and never began; its log may say why"),
    ],
)
def test_what_becomes_too_late_while_its_processes_do_not_begin_says_so(tries, why):
    at = NOON + 14 * HOUR_S
    cursor = Cursor(at, at, tries)
    assert find_due(rules(), cursor, at + ON_TIME_S) == (Cursor(at + ON_TIME_S, at, tries), {})
    later = at + ON_TIME_S + 1
    assert find_due(rules(), cursor, later) == (Cursor(later), {at: why})


@pytest.mark.parametrize(
    ("start_h", "told"),
    [(2.0, "at once: w"), (2.01, "at once: w"), (5.5, "at 05:30: w"), (25.0, "at Sat 01:00: w")],
)
def test_a_planned_start_is_told_with_its_day_if_that_is_another_one(start_h, told):
    midnight = NOON + 12 * HOUR_S
    planned = PlannedStart(midnight + start_h * HOUR_S, midnight, "w")
    assert planned.describe(Timetable("0 2 * * *", "UTC"), midnight + 2 * HOUR_S) == told


def ticks_of_a_year(moments, seed):
    """Return when ticks come: every minute around occurrences, but for days when nothing runs."""
    rng = random.Random(seed)
    start, end = YEAR
    off = []
    moment = start
    while moment < end:
        moment += rng.uniform(2, 20) * 24 * HOUR_S
        off.append((moment, moment + rng.choice([0.02, 0.2, 3, 9, 30, 80]) * HOUR_S))
    looked_at = {
        float(near)
        for occurrence in moments
        for near in range(int(occurrence) - 120, int(occurrence) + 480, 60)
    }
    looked_at |= {end_of + rng.uniform(0, 60) for _, end_of in off}
    return sorted(
        moment
        for moment in looked_at
        if start < moment < end and not any(a <= moment < b for a, b in off)
    )


GRID = [
    (zone, catch_up, seed, expression)
    for zone in ZONES
    for catch_up in ("none", "once")
    for seed, expression in enumerate(["30 2 * * *", "0 */6 * * *", "15,45 1-3 * * 1-5"])
    if is_exact(expression, zone)
]


@pytest.mark.long
@pytest.mark.parametrize("case", GRID, ids=str)
def test_a_year_runs_exactly_as_often_as_the_policies_say(case):
    check_a_year(*case)


def test_a_year_in_a_hard_zone_runs_exactly_as_often_as_the_policies_say():
    check_a_year("Australia/Lord_Howe", "once", 0, "30 2 * * *")


def check_a_year(zone, catch_up, seed, expression):
    found, expected = start_all(expression, zone, catch_up, seed)
    assert found == expected
    started = [moment for moment, _ in found]
    lasts = random.Random(seed + 1)
    lengths = {moment: lasts.choice([0.1, 0.6, 7.0, 30.0]) * HOUR_S for moment in started}
    for overlap in ("forbid", "allow", "replace", "queue"):
        assert run_all(started, lengths, overlap) == expected_runs(started, lengths, overlap)


def start_all(expression, zone, catch_up, seed):
    """Return the occurrences that ticks start, each with its tick; and what they should be."""
    schedule = rules(expression, tz=zone, catch_up=catch_up)
    all_ = [moment for moment in occurrences(expression, zone) if moment > YEAR[0]]
    ticks = ticks_of_a_year(all_, seed)
    cursor, found = Cursor(YEAR[0]), []
    for now in ticks:
        cursor, _ = find_due(schedule, cursor, now)
        if cursor.pending is not None:
            found.append((cursor.pending, now))
            cursor = replace(cursor, pending=None)
    return found, expected_starts(all_, ticks, catch_up)


def expected_starts(moments, ticks, catch_up):
    """The same by hand: each occurrence belongs to the first tick at or after it."""
    found = []
    queue = iter(moments)
    waiting = next(queue, None)
    for now in ticks:
        seen = []
        while waiting is not None and waiting <= now:
            seen.append(waiting)
            waiting = next(queue, None)
        usable = [each for each in seen if catch_up == "once" or now - each <= ON_TIME_S]
        if usable:
            found.append((usable[-1], now))
    return found


def run_all(starts, lengths, overlap):
    """Return the (begin, end) of the runs that zeusrun's decisions make of these starts."""
    runs, waiting = [], None  # a run is [begin, end]; one may wait

    def settle(now):
        nonlocal waiting
        while waiting is not None:
            free = max((end for begin, end in runs if begin <= waiting), default=waiting)
            free = max(free, waiting)
            if free > now:
                return
            runs.append([free, free + lengths[waiting]])
            waiting = None

    for now in starts:
        settle(now)
        states = ["running"] * sum(begin <= now < end for begin, end in runs)
        states += ["waiting"] if waiting is not None else []
        turn = decide_overlap(overlap, states)
        if turn == "skip":
            continue
        if turn == "wait" and overlap == "replace":
            for run in runs:
                run[1] = min(run[1], now)
            turn = "begin"
        if turn == "begin":
            runs.append([now, now + lengths[now]])
        else:
            waiting = now
    settle(float("inf"))
    return runs


def expected_runs(starts, lengths, overlap):
    """The same by hand, a policy at a time."""
    if overlap == "allow":
        return [[start, start + lengths[start]] for start in starts]
    if overlap == "replace":
        following = itertools.chain(starts[1:], [float("inf")])
        return [
            [start, min(start + lengths[start], then)]
            for start, then in zip(starts, following, strict=True)
        ]
    runs = []
    for start in starts:
        if overlap == "forbid":
            if not runs or runs[-1][1] <= start:
                runs.append([start, start + lengths[start]])
        elif not runs or runs[-1][0] <= start:  # queue: nobody waits yet
            begin = max([start] + [end for _, end in runs[-1:]])
            runs.append([begin, begin + lengths[start]])
    return runs
