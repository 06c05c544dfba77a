"""A deferred start from tick to tick: on disk, decided anew, and never lost or late."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timezone

import pytest

from tests.factories import REACHED, begin, build_trial, write_job
from tests.schedule.model import AT, DAY_S
from tests.schedule.ticks import fire, tick
from zeusrun.commands.schedule import pause
from zeusrun.errors import UsageError
from zeusrun.history.registry import open_history
from zeusrun.jobfile.spec import load_spec
from zeusrun.schedule.deferral import check_outlook, decide_start
from zeusrun.schedule.due import ON_TIME_S, Cursor, PlannedStart, Rules, Timetable, find_due
from zeusrun.schedule.store import Occurrence, Schedules

HOUR_S = 3600.0
NIGHTLY = Timetable("0 2 * * *", "UTC")
RULES = Rules(NIGHTLY, start_within_s=6 * HOUR_S)


class Nights:
    """A schedule whose occurrences may be deferred, and the clock of its ticks."""

    def __init__(self, schedules, monkeypatch):
        self.schedules, self.now = schedules, AT
        self.start_at = AT + 3 * HOUR_S  # what every decision says
        self.ran, self.decided = [], []
        monkeypatch.setattr("zeusrun.schedule.tick.read_clock", lambda: self.now)
        monkeypatch.setattr("zeusrun.schedule.tick.time.sleep", self.sleep)

    def sleep(self, seconds):
        self.now += seconds

    def plan(self, _schedule, now):
        self.decided.append(now)
        return PlannedStart(max(now, self.start_at), now, "0.19 EUR/kWh instead of 0.34")

    def tick(self, now):
        """Do what cron does at a time, and what the processes do that it starts."""
        self.now = now
        for schedule, occurrence in tick(self.schedules, now).due:
            fire(self.schedules, schedule.job, occurrence, self.run, self.plan)

    def run(self, _schedule, begun):
        begun()
        self.ran.append(self.now)
        return 0

    def minutes(self, first, last, step_s=300):
        for minute in range(int(first), int(last), step_s):
            self.tick(minute + 1.5)

    @property
    def schedule(self):
        return self.schedules.read("digits")


@pytest.fixture
def nights(schedules, nightly, monkeypatch):
    nightly(rules=RULES)
    return Nights(schedules, monkeypatch)


def test_an_occurrence_is_decided_every_quarter_of_an_hour_and_starts_as_planned(nights):
    nights.minutes(AT, AT + HOUR_S, 60)
    assert [round(now - AT) for now in nights.decided] == [2, 902, 1802, 2702]
    assert nights.schedule.describe_start() == "at 05:00: 0.19 EUR/kWh instead of 0.34"
    assert nights.schedule.cursor.tries == 0
    planned = nights.schedule.planned_json()
    assert planned["start_at"] == nights.schedule.rules.timetable.local(nights.start_at).isoformat()
    assert planned["why"] == "0.19 EUR/kWh instead of 0.34"
    for other in ({"paused": True}, {"cursor": Cursor(AT, AT)}, {"cursor": Cursor(AT)}):
        none = replace(nights.schedule, **other)
        assert (none.planned_json(), none.describe_start()) == ({}, None)
    nights.minutes(AT + HOUR_S, AT + 2.9 * HOUR_S)
    nights.minutes(AT + 2.9 * HOUR_S, AT + 3.1 * HOUR_S, 60)
    assert nights.ran == [AT + 3 * HOUR_S]
    (firing,) = nights.schedule.firings
    assert (firing.result, firing.start) == ("ended", "at 05:00: 0.19 EUR/kWh instead of 0.34")
    assert nights.schedule.describe_start() is None
    assert nights.schedule.cursor.planned is None


def test_late_data_change_the_start(nights):
    nights.minutes(AT, AT + 1200)
    nights.start_at = AT
    nights.minutes(AT + 1200, AT + HOUR_S)
    assert nights.ran == [AT + 1801.5]


def test_it_starts_within_its_window_whatever_is_decided(nights):
    nights.start_at = RULES.latest_at(AT)
    nights.minutes(AT, AT + 7 * HOUR_S)
    assert nights.ran == [pytest.approx(AT + 6 * HOUR_S, abs=2)]


@pytest.mark.parametrize("back", [1, 3.5, 5.9])
def test_a_reboot_loses_no_deferred_occurrence(nights, back):
    nights.minutes(AT, AT + 600)
    nights.minutes(AT + back * HOUR_S, AT + 8 * HOUR_S)
    assert nights.ran == [pytest.approx(AT + max(3, back) * HOUR_S, abs=2)]


def test_a_machine_that_is_off_until_the_window_has_ended_misses_it_or_catches_up(nights, nightly):
    nights.minutes(AT, AT + 600)
    nights.tick(AT + 6 * HOUR_S + ON_TIME_S + 1)
    assert nights.ran == []
    (firing,) = nights.schedule.firings
    assert (firing.result, firing.why) == ("missed", "nothing ran that could start it")
    nightly(rules=replace(RULES, catch_up="once"))
    nights.tick(AT + 9 * HOUR_S)
    assert nights.ran == [AT + 9 * HOUR_S]


def test_what_dies_before_it_has_decided_is_started_by_the_next_tick(nights):
    def dies(*_):
        raise KeyboardInterrupt

    decide, nights.plan = nights.plan, dies
    with pytest.raises(KeyboardInterrupt):
        nights.tick(AT + 1)
    nights.plan = decide
    nights.minutes(AT + 300, AT + 4 * HOUR_S)
    assert nights.ran == [pytest.approx(AT + 3 * HOUR_S, abs=2)]


def test_what_dies_again_and_again_while_it_decides_lets_the_run_start(nights):
    def dies(*_):
        raise KeyboardInterrupt

    nights.plan = dies
    for minute in (0, 1):
        with pytest.raises(KeyboardInterrupt):
            nights.tick(AT + 60 * minute + 1)
    nights.tick(AT + 121)
    assert nights.ran == [AT + 121]
    assert nights.schedule.firings[-1].start == (
        "at 02:02: the processes that were to decide its start died"
    )


def test_a_clock_that_is_set_back_only_decides_anew(nights):
    nights.minutes(AT, AT + HOUR_S)
    nights.tick(AT + 300)
    assert nights.decided[-1] == AT + 300
    nights.minutes(AT - HOUR_S, AT + 4 * HOUR_S)
    assert nights.ran == [pytest.approx(AT + 3 * HOUR_S, abs=2)]


def test_a_clock_that_was_ahead_for_hours_loses_nothing_that_is_deferred(nights):
    nights.minutes(AT, AT + 600)
    nights.start_at = AT + 5.5 * HOUR_S
    nights.tick(AT + 5 * HOUR_S)
    nights.start_at = AT + 3 * HOUR_S
    nights.minutes(AT + 600, AT + 4 * HOUR_S)
    assert nights.ran == [pytest.approx(AT + 3 * HOUR_S, abs=2)]
    assert [each.result for each in nights.schedule.firings] == ["ended"]


def test_pause_skips_what_was_deferred_and_records_it(nights, monkeypatch):
    nights.minutes(AT, AT + 600)
    monkeypatch.setenv("ZEUSRUN_HOME", str(nights.schedules.directory.parent))
    monkeypatch.setattr("zeusrun.commands.schedule.read_clock", lambda: AT + 600)
    pause("digits")
    nights.minutes(AT + 600, AT + 7 * HOUR_S)
    assert nights.ran == []
    assert nights.schedule.describe_start() is None
    (firing,) = nights.schedule.firings
    assert (firing.occurrence, firing.result, firing.why) == (
        AT,
        "skipped",
        "the schedule was paused",
    )


def test_without_a_window_it_starts_at_once(schedules, nightly, monkeypatch):
    before = Occurrence(AT - DAY_S, "ended", "then", 0, start="at 03:00: it was cheaper")
    nightly(rules=replace(RULES, start_within_s=0.0), firings=(before,))
    nights = Nights(schedules, monkeypatch)
    nights.tick(AT + 1)
    assert (nights.ran, nights.decided) == ([AT + 1], [])
    assert [each.start for each in nights.schedule.firings] == [before.start, None]


def test_after_its_window_a_caught_up_run_says_that_it_has_ended(schedules, nightly, job):
    rules = replace(RULES, catch_up="once")
    schedule = nightly(job_file=str(job), rules=rules)
    planned = decide_start(schedule, DUE, DUE + 8 * HOUR_S, schedules.directory.parent, {})
    assert planned.describe(NIGHTLY, DUE) == "at 10:00: its window ended at 08:00"


def test_a_file_with_a_planned_start_is_read_as_it_was_written(nights):
    nights.tick(AT + 1)
    copy = Schedules(nights.schedules.directory.parent).read("digits")
    assert copy.cursor.planned == PlannedStart(nights.start_at, AT + 1, copy.cursor.planned.why)
    path = nights.schedules.path("digits")
    content = json.loads(path.read_text())
    for wrong in ({"start_at": 1}, [1], "soon", {"start_at": "x", "decided_at": 1, "why": "y"}):
        content["cursor"]["planned"] = wrong
        path.write_text(json.dumps(content))
        assert "is not a schedule of this zeusrun" in tick(nights.schedules, AT + 61).messages[0]
        for told in nights.schedules.directory.glob(".told-*"):
            told.unlink()


def test_a_window_ends_before_the_next_occurrence_also_when_clocks_change():
    berlin = Rules(Timetable("0 2 * * *", "Europe/Berlin"), start_within_s=23.9 * HOUR_S)
    for month, day in ((3, 28), (10, 25), (6, 1)):
        noon = datetime(2026, month, day, tzinfo=timezone.utc).timestamp() - 12 * HOUR_S
        due, following = Timetable("0 2 * * *", "Europe/Berlin").between(noon, noon + 3 * DAY_S, 9)[
            :2
        ]
        assert berlin.latest_at(due) == min(following - 60, due + 23.9 * HOUR_S)


def test_finish_by_is_the_next_such_time_also_when_clocks_change():
    def finish(day, text, hour=20, month=3):
        rules = Rules(Timetable("0 2 * * *", "Europe/Berlin"), finish_by=text)
        due = datetime(2026, month, day, hour, tzinfo=rules.timetable.zone()).timestamp()
        return f"{rules.timetable.local(rules.finish_at(due)):%d %H:%M %z}"

    assert finish(28, "07:30") == "29 07:30 +0200"
    assert finish(28, "2:30") == "29 03:00 +0200"  # 02:30 is skipped: the end of the jump
    assert finish(24, "02:30", month=10) == "25 02:30 +0200"  # it comes twice: the first
    assert finish(3, "20:00") == "04 20:00 +0100"


@pytest.mark.parametrize(
    ("begin", "nights"),
    [((3, 15), 30), pytest.param((1, 1), 365, marks=pytest.mark.long)],  # the first has a jump
)
def test_every_tick_starts_every_night_in_its_window(begin, nights):
    rules = Rules(Timetable("30 2 * * *", "Europe/Berlin"), start_within_s=4 * HOUR_S)
    first = datetime(2026, *begin, tzinfo=timezone.utc).timestamp()
    last = first + nights * 24 * HOUR_S
    cursor, starts = Cursor(first), []
    for due in rules.timetable.between(first, last, 1000):
        wanted = due + (due % 7) / 7 * 4 * HOUR_S
        for now in range(int(due) - 59, int(due + 5 * HOUR_S), 300):
            cursor, missed = find_due(rules, cursor, float(now))
            assert missed == {}
            if cursor.pending is None or cursor.begins_at(rules, now) >= now + 60:
                continue
            planned = PlannedStart(max(wanted, now), float(now), "")
            cursor = replace(cursor, planned=planned)
            if planned.start_at < now + 60:
                starts.append(planned.start_at - cursor.pending)
                cursor = Cursor(cursor.until)
    assert len(starts) == nights
    assert max(starts) <= 4 * HOUR_S + 300  # a tick every five minutes here
    assert min(starts) >= 0


RATES = "time,EUR\n2026-06-03T00:00Z,0.34\n2026-06-03T05:00Z,0.19\n2026-06-03T06:00Z,0.5\n"
DUE = datetime(2026, 6, 3, 2, tzinfo=timezone.utc).timestamp()


@pytest.fixture
def job(tmp_path):
    """Write a job with prices; it has run once, for half an hour."""
    (tmp_path / "prices.csv").write_text(RATES)
    price = {"csv": "prices.csv", "currency": "EUR"}
    path = write_job(tmp_path, name="digits", price=price)
    history = open_history(tmp_path, {})
    begin(history, build_trial(job="digits"))
    history.finish("digits-1-1", replace(REACHED, startup_s=60.0, time_s=1740.0))
    return path


def decide(schedules, nightly, job, **changes):
    schedule = nightly(job_file=str(job), rules=replace(RULES, **changes))
    return decide_start(schedule, DUE, DUE, schedules.directory.parent, {})


def test_prices_and_past_runs_are_read_for_a_decision(schedules, nightly, job):
    planned = decide(schedules, nightly, job)
    assert planned.start_at == DUE + 3 * HOUR_S
    assert planned.why == "0.19 EUR/kWh instead of 0.34"
    assert decide(schedules, nightly, job, by="carbon").why == "no carbon is known"


@pytest.mark.parametrize("late_s", [-30.0, 0.0, 90.0])
def test_a_job_file_that_is_gone_lets_it_start_now_and_never_before_it_is_due(
    schedules, nightly, late_s
):
    schedule = nightly(job_file="/nowhere.yaml", rules=RULES)
    planned = decide_start(schedule, DUE, DUE + late_s, schedules.directory.parent, {})
    assert (planned.start_at, planned.decided_at) == (DUE + max(0.0, late_s), DUE + late_s)


def test_what_cannot_be_read_lets_it_start_at_once(schedules, nightly, job, tmp_path):
    (tmp_path / "prices.csv").write_text("time,EUR\nyesterday,0.3\n,\n")
    planned = decide(schedules, nightly, job)
    assert planned.start_at == DUE
    assert "prices.csv" in planned.why
    job.unlink()
    assert "there is no such file" in decide(schedules, nightly, job).why


def test_a_window_needs_what_it_is_chosen_by(tmp_path):
    spec = load_spec(write_job(tmp_path, carbon={"g_per_kwh": 300}))
    with pytest.raises(
        UsageError,
        match=r"job.yaml: 'schedule.start_within' chooses starts by price, but no price is known; add a section price to this file, or change 'schedule.by'",
    ):
        check_outlook(spec, RULES)
    check_outlook(spec, replace(RULES, by="carbon"))
    rows = [{"hours": "7-22", "per_kwh": 0.3}, {"per_kwh": 0.2}]
    for rate, warned in (({"per_kwh": 0.3}, True), ({"table": rows}, False)):
        spec = load_spec(write_job(tmp_path, price={**rate, "currency": "EUR"}))
        assert [True for _ in check_outlook(spec, RULES)] == [True] * warned
