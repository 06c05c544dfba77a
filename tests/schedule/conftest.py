"""A home with schedules, and one that runs every night at two."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.schedule.model import AT
from zeusrun.schedule.due import Cursor, Rules, Timetable
from zeusrun.schedule.store import Schedule, Schedules


@pytest.fixture
def schedules(tmp_path):
    return Schedules(tmp_path)


@pytest.fixture
def nightly(schedules, monkeypatch):
    monkeypatch.setattr("zeusrun.schedule.tick.read_clock", lambda: AT)

    def write(job="digits", **changes):
        schedule = Schedule(
            job,
            f"/jobs/{job}.yaml",
            Rules(Timetable("0 2 * * *", "UTC")),
            "forbid",
            "/python",
            {"A": "b", "C": "d"},
            Cursor(AT - 60),
        )
        with schedules.hold(job):
            return schedules.write(replace(schedule, **changes))

    return write
