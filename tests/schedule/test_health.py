"""Whether anybody looks after the schedules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.factories import load_job
from tests.schedule.model import AT
from zeusrun.errors import JobFileError
from zeusrun.schedule import health
from zeusrun.schedule.crontab import marker
from zeusrun.schedule.health import find_difference, find_neglect
from zeusrun.schedule.tick import tick


@pytest.fixture
def crontab(monkeypatch, schedules):
    """Say what the crontab holds, and which processes there are."""

    def use(text=None, names=("cron",)):
        entry = marker(schedules.directory.parent) if text is None else text
        monkeypatch.setattr(health, "read_crontab", lambda: entry)
        found = [type("P", (), {"info": {"name": name}}) for name in names]
        monkeypatch.setattr(health.psutil, "process_iter", lambda _what: found)

    return use


def beat(schedules, at):
    tick(schedules, AT)
    os.utime(schedules.heartbeat, (at, at))


def test_a_tick_that_came_lately_is_enough(schedules, nightly, crontab):
    crontab(b"", ())
    nightly()
    beat(schedules, AT)
    assert find_neglect(schedules, AT + 100) is None


@pytest.mark.parametrize(
    ("world", "said"),
    [
        (
            (b"", ["cron"]),
            "the crontab has no entry of zeusrun; `zeusrun schedule add JOB.yaml` adds it",
        ),
        ((None, ["bash"]), "no cron daemon runs here; start it"),
        ((None, ["cron"]), "though cron runs; see the log of cron"),
    ],
)
def test_why_nothing_is_started_is_told(schedules, nightly, crontab, world, said):
    crontab(*world)
    nightly()
    beat(schedules, AT)
    what, advice = find_neglect(schedules, AT + 1000)
    assert what.startswith("nothing")
    assert said in f"{what}; {advice}"
    assert "since 20" in what
    assert advice


def test_cron_gets_its_minute(schedules, nightly, crontab):
    crontab()
    nightly()
    assert find_neglect(schedules, AT) is None


def test_a_changed_section_or_name_of_the_job_file_is_named(tmp_path, nightly):
    def change(**keys):
        load_job(tmp_path, **keys)

    change(name="digits")
    schedule = nightly(job_file=str(tmp_path / "digits.yaml"))
    assert find_difference(schedule) is None
    change(name="digits", schedule={"cron": "0 3 * * *"})
    assert "has changed since; to apply that: zeusrun schedule add" in find_difference(schedule)
    schedule = nightly(job_file=schedule.job_file, section={"cron": "0 3 * * *"})
    assert find_difference(schedule) is None
    spaced = Path(schedule.job_file).rename(tmp_path / "my digits.yaml")
    text = find_difference(nightly(job_file=str(spaced)))
    assert text.endswith(f"zeusrun schedule add '{spaced}'")  # it can be pasted into a shell
    spaced.rename(schedule.job_file)
    job = Path(schedule.job_file)
    job.write_text(job.read_text().replace("name: digits", "name: other"))
    with pytest.raises(JobFileError, match="describes other now; run `zeusrun schedule remove"):
        find_difference(schedule)
    job.unlink()
    with pytest.raises(JobFileError, match="there is no such file; if you moved it"):
        find_difference(schedule)
