"""From a job file, flags and what there was before to a schedule."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.factories import load_job
from tests.schedule.model import AT
from zeusrun.errors import UsageError
from zeusrun.jobfile.spec import load_spec
from zeusrun.schedule.build import build_schedule, find_difference, note_dropped
from zeusrun.schedule.due import Cursor


@pytest.fixture
def spec(tmp_path):
    def load(section=None):
        return load_job(tmp_path, name="digits", schedule=section and yaml.safe_load(section))

    return load


def build(spec, known=None, names=(), environment=None, **given):
    environment = {"PATH": "/bin"} if environment is None else environment
    return build_schedule(spec, given, environment, names=names, known=known, now=AT)


def settings(schedule):
    rules = schedule.rules
    return (
        *(rules.timetable.expression, rules.timetable.tz, schedule.overlap, rules.catch_up),
        *(rules.jitter_s, rules.deadline_s),
    )


def test_flags_win_over_the_file_and_the_file_over_what_was(spec):
    first = build(spec(), cron="@daily", overlap="queue", jitter="5m", deadline="14d", tz="UTC")
    assert settings(first) == ("0 0 * * *", "UTC", "queue", "none", 300, 14 * 86400)
    again = build(spec(), first, catch_up="once")
    assert settings(again) == ("0 0 * * *", "UTC", "queue", "once", 300, 14 * 86400)
    section = spec('{cron: "0 3 * * *", jitter: 1h30m}')
    assert settings(build(section, again)) == (
        *("0 3 * * *", "UTC", "queue", "once"),
        *(5400, 14 * 86400),
    )
    assert settings(build(section, again, cron="@hourly", jitter="10s"))[0] == "0 * * * *"


def test_a_default_of_the_section_is_nothing_that_it_says(spec):
    section = spec('{cron: "@daily"}')
    first = build(section, overlap="allow", catch_up="once")
    assert settings(build(section, first, jitter="5m"))[2:5] == ("allow", "once", 300)


def test_null_in_the_file_takes_back_what_was(spec):
    first = build(spec(), cron="@daily", tz="Europe/Paris", deadline="2h")
    again = build(spec('{cron: "@daily", tz: null, deadline: null}'), first)
    assert settings(again) == ("0 0 * * *", None, "forbid", "none", 0, None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "has no schedule section; say when to run it"),
        ({"cron": "@hourly", "jitter": "1h"}, "as long as the time between two runs"),
        (
            {"cron": "@daily", "jitter": "2h", "deadline": "1h"},
            "jitter must be less than the deadline",
        ),
        ({"cron": "@daily", "jitter": "5"}, "jitter must be a number with s, m, h or d"),
        ({"cron": "@daily", "tz": "Paris"}, r"did you mean Europe/Paris\?"),
        ({"cron": "@daily", "tz": "europe/berlim"}, r"did you mean Europe/Berlin\?"),
        ({"cron": "@daily", "tz": "xyzzy"}, "use a name of the IANA database"),
    ],
)
def test_what_cannot_be_used_is_told(spec, given, said):
    with pytest.raises(UsageError, match=said):
        build(spec(), **given)


def test_the_environment_is_that_of_now_with_what_was_asked_for_before(spec):
    first = build(spec(), cron="@daily", names=["MINE"], environment={"MINE": "1", "PATH": "/a"})
    assert first.environment == {"MINE": "1", "PATH": "/a"}
    second = build(spec(), first, environment={"PATH": "/b", "OTHER": "2"})
    assert second.environment == {"MINE": "1", "PATH": "/b"}
    third = build(spec(), second, environment={"MINE": "3"})
    assert third.environment == {"MINE": "3"}
    with pytest.raises(UsageError, match="--env GONE: this variable is not set"):
        build(spec(), names=["GONE"], cron="@daily")


def test_how_far_it_is_stays_unless_the_times_change_and_what_was_dropped_is_noted(spec):
    first = build(spec(), cron="@daily")
    known = first.__class__(**{**vars(first), "cursor": Cursor(AT - 60, AT - 120)})
    same = build(spec(), known, overlap="allow")
    assert same.cursor == known.cursor
    assert note_dropped(known, same, "now").firings == ()
    other = build(spec(), known, cron="@hourly")
    assert other.cursor == Cursor(AT)
    (firing,) = note_dropped(known, other, "now").firings
    assert (firing.occurrence, firing.result) == (AT - 120, "skipped")
    assert firing.why == "the schedule was changed"


def test_a_file_that_says_otherwise_is_told(spec):
    schedule = build(spec(), cron="0 2 * * *")
    assert find_difference(schedule, spec(), AT) is None
    assert find_difference(schedule, spec('{cron: "0 2 * * *"}'), AT) is None
    told = find_difference(schedule, spec('{cron: "0 3 * * *"}'), AT)
    assert "digits.yaml says every day at 03:00; to apply that: zeusrun schedule add" in told
    told = find_difference(schedule, spec('{cron: "0 2 * * *", overlap: queue, jitter: 1m}'), AT)
    assert "digits.yaml says overlap queue, jitter 60 s; " in told
    section = spec('{cron: "0 3 * * *"}')
    overridden = build(section, cron="0 2 * * *")  # on purpose
    assert find_difference(overridden, section, AT) is None
    assert "digits.yaml: 'soon' is no cron" in find_difference(schedule, spec("{cron: soon}"), AT)
    job = Path(schedule.job_file)
    job.write_text(job.read_text().replace("name: digits", "name: other"))
    assert "describes other now" in find_difference(
        schedule, load_spec(Path(schedule.job_file)), AT
    )
