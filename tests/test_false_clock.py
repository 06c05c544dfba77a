"""Schedules while the clock jumps and the machine is off: real ticks and runs, a false clock."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from tests.runs import wait_for
from zeusrun.clock import unix_seconds
from zeusrun.schedule.due import PERIOD_S
from zeusrun.schedule.store import UNDERWAY, Schedules

PARIS = "Europe/Paris"


class Machine:
    """A machine whose clock a test sets, and whose cron is the test."""

    def __init__(self, zeusrun, library, **environment):
        self._zeusrun = zeusrun
        self._offset = zeusrun.folder / "clock"
        self._environment = {
            "LD_PRELOAD": str(library),
            "FAKE_CLOCK": str(self._offset),
            "PATH": str(zeusrun.folder / "nothing"),  # no crontab
            **environment,
        }

    def call(self, at, *arguments):
        seconds = unix_seconds(at) - time.time()
        self._offset.write_text(f"{seconds:+.3f}")
        done = self._zeusrun(*arguments, **self._environment)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def add(self, at, when, tz="UTC", price=None, **rules):
        section = {"cron": when, "tz": tz, **rules}
        job = self._zeusrun.job(schedule=section, **({"price": price} if price else {}))
        self.call(at, "schedule", "add", job, "--env=FAKE_CLOCK")

    def tick(self, *moments):
        """Do what cron does at these moments, and wait for the processes that a tick starts."""
        for at in moments:
            self.call(at, "schedule", "tick")
            what = f"all that the tick at {at} has started"
            wait_for(lambda at=at: self._is_settled(at), 120.0, what)

    def _is_settled(self, at):
        schedule = Schedules(self._zeusrun.home).read("job")
        pending, planned = schedule.cursor.pending, schedule.cursor.planned
        now = unix_seconds(at)  # to the second
        deferred = planned is not None and planned.decided_at >= now - 1
        deferred = deferred and planned.start_at >= planned.decided_at + PERIOD_S
        return (pending is None or deferred) and not any(
            each.result in UNDERWAY for each in schedule.firings
        )

    def deferred(self, at):
        (record,) = json.loads(self.call(at, "schedule", "list", "--json"))
        return record["deferred"] and record["deferred"]["start_at"]

    def ended(self, at):
        """Return when each occurrence was due and what came of it, and when each run began."""
        (record,) = json.loads(self.call(at, "schedule", "list", "--json"))
        runs = json.loads(self.call(at, "history", "--json"))
        assert {run["status"] for run in runs} <= {"REACHED"}
        firings = [(each["occurrence"][5:16], each["result"]) for each in record["firings"]]
        return firings, [run["started_at"][5:16] for run in runs]


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    if shutil.which("gcc") is None:
        pytest.skip("gcc is absent, so no false clock can be built")
    built = tmp_path_factory.mktemp("clock") / "clock.so"
    source = Path(__file__).parent / "fake_clock.c"
    command = ["gcc", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", built, source, "-lm"]
    subprocess.run(command, check=True)
    return built


@pytest.fixture
def machine(zeusrun, library):
    return Machine(zeusrun, library)


@pytest.mark.long
def test_after_days_off_the_newest_occurrence_runs_once_also_if_the_clock_jumps(machine):
    machine.add("2026-06-01T12:00:00Z", "0 2 * * *", catch_up="once")
    machine.tick("2026-06-04T09:00:10Z", "2026-06-04T08:00:10Z", "2026-06-05T09:00:10Z")
    assert machine.ended("2026-06-05T09:01:00Z") == (
        [
            ("06-02T02:00", "missed"),
            ("06-03T02:00", "missed"),
            ("06-04T02:00", "ended"),
            ("06-05T02:00", "ended"),
        ],
        ["06-04T09:00", "06-05T09:00"],
    )


@pytest.mark.long
def test_without_catch_up_what_was_missed_stays_missed_and_the_next_one_runs_on_time(machine):
    machine.add("2026-06-01T12:00:00Z", "0 2 * * *", catch_up="none")
    machine.tick("2026-06-03T09:00:10Z", "2026-06-03T08:00:10Z", "2026-06-04T02:00:10Z")
    machine.tick("2026-06-05T02:05:30Z")  # a day forward, and half a minute late
    assert machine.ended("2026-06-05T03:00:00Z") == (
        [
            ("06-02T02:00", "missed"),
            ("06-03T02:00", "missed"),
            ("06-04T02:00", "ended"),
            ("06-05T02:00", "missed"),
        ],
        ["06-04T02:00"],
    )


@pytest.mark.long
def test_an_occurrence_that_has_run_runs_no_second_time_after_the_clock_was_set_back(machine):
    machine.add("2026-06-01T12:00:00Z", "0 2 * * *", catch_up="once")
    machine.tick("2026-06-02T02:00:10Z")
    machine.tick("2026-06-02T01:30:10Z", "2026-06-02T02:00:10Z")  # an hour back
    machine.tick("2026-06-01T20:00:10Z", "2026-06-02T02:00:10Z")  # six hours back
    machine.tick("2026-06-03T02:00:10Z")
    firings, runs = machine.ended("2026-06-03T03:00:00Z")
    assert firings == [("06-02T02:00", "ended"), ("06-03T02:00", "ended")]
    assert runs == ["06-02T02:00", "06-03T02:00"]


@pytest.mark.long
@pytest.mark.parametrize(
    ("midnight", "begun"),
    [("2026-03-29T00:00:10+00:00", "03-29T01:00"), ("2026-10-25T00:00:10+00:00", "10-25T00:30")],
    ids=["spring", "autumn"],
)
def test_in_the_nights_in_which_the_clocks_change_a_job_at_half_past_two_runs_once(
    machine, midnight, begun
):
    begin = datetime.fromisoformat(midnight)
    machine.add((begin - timedelta(hours=12)).isoformat(), "30 2 * * *", PARIS)
    machine.tick(*((begin + timedelta(minutes=30 * n)).isoformat() for n in range(6)))
    firings, runs = machine.ended((begin + timedelta(hours=3)).isoformat())
    assert [result for _, result in firings] == ["ended"]
    assert runs == [begun]


@pytest.mark.long
@pytest.mark.parametrize(
    ("catch_up", "result", "runs"),
    [("none", "missed", []), ("once", "ended", ["06-03T09:00"])],
)
def test_a_deferred_start_whose_window_passes_while_the_machine_is_off_is_a_missed_occurrence(
    machine, zeusrun, catch_up, result, runs
):
    rates = ["time,price"] + [
        f"2026-06-{day:02}T{hour:02}:00:00Z,{0.1 if hour < 5 else 0.4}"
        for day in range(1, 5)
        for hour in range(24)
    ]
    (zeusrun.folder / "prices.csv").write_text("\n".join(rates))
    machine.add(
        "2026-06-01T12:00:00Z",
        "0 20 * * *",
        start_within="6h",
        catch_up=catch_up,
        price={"csv": "prices.csv", "currency": "EUR"},
    )
    machine.tick("2026-06-01T20:00:10Z")  # at once: nothing is known of its duration
    machine.tick("2026-06-02T20:00:10Z")
    start_at = wait_for(lambda: machine.deferred("2026-06-02T20:01:00Z"), what="a deferral")
    assert start_at.startswith("2026-06-03T00:")
    machine.tick("2026-06-03T09:00:10Z")
    assert machine.ended("2026-06-03T10:00:00Z") == (
        [("06-01T20:00", "ended"), ("06-02T20:00", result)],
        ["06-01T20:00", *runs],
    )
