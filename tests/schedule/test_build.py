"""From a job file, flags and what there was before to a schedule."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml

from tests.factories import load_job
from tests.schedule.model import AT
from zeusrun.errors import UsageError
from zeusrun.schedule.build import build_schedule, capture
from zeusrun.schedule.due import Cursor, PlannedStart, find_due


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
        ({"cron": "@hourly", "jitter": "1h"}, "jitter: 1h is as long as the 1h between two runs"),
        (
            {"cron": "@daily", "jitter": "2h", "deadline": "1h"},
            "jitter must be less than the deadline",
        ),
        ({"cron": "@daily", "jitter": "5"}, "jitter must be a number with s, m, h or d"),
        ({"cron": "@daily", "finish_by": "07:30"}, "finish_by only goes with start_within"),
        ({"cron": "@daily", "by": "carbon"}, "by only goes with start_within, such as"),
        ({"cron": "@daily", "start_within": "6"}, "start_within must be a number with s, m, h"),
        (
            {"cron": "@daily", "start_within": "6h", "finish_by": "7.30"},
            "finish_by must be a time of day such as \"07:30\", not '7.30'",
        ),
        (
            {"cron": "@daily", "start_within": "30h"},
            "start_within: 30h is longer than the 24h between two runs; choose less",
        ),
        (
            {"cron": "@daily", "start_within": "6h", "deadline": "6h"},
            "start_within must be less than the deadline",
        ),
        (
            {"cron": "@daily", "start_within": "6h", "jitter": "6h"},
            "jitter must be less than start_within",
        ),
        ({"cron": "@daily", "tz": "Paris"}, r"did you mean Europe/Paris\?"),
        ({"cron": "@daily", "tz": "europe/berlim"}, r"did you mean Europe/Berlin\?"),
        ({"cron": "@daily", "tz": "xyzzy"}, "use a name such as Europe/Paris"),
    ],
)
def test_what_cannot_be_used_is_told(spec, given, said):
    with pytest.raises(UsageError, match=said):
        build(spec(), **given)


def test_the_command_line_gives_the_cron_that_the_section_lacks(spec):
    section = spec("{start_within: 6h}")
    built = build(section, cron="0 2 * * *")
    assert (built.rules.start_within_s, built.rules.timetable.expression) == (21600, "0 2 * * *")
    with pytest.raises(UsageError, match=r"has no 'schedule.cron'; say when to run it: zeusrun"):
        build(section)


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
    known = replace(first, cursor=Cursor(AT - 60, AT - 120))
    same = build(spec(), known, overlap="allow")
    assert (same.cursor, same.firings) == (known.cursor, ())
    other = build(spec(), known, cron="@hourly")
    assert other.cursor == Cursor(AT)
    (firing,) = other.firings
    assert (firing.occurrence, firing.result) == (AT - 120, "skipped")
    assert firing.why == "the schedule was changed"


def test_a_window_is_kept_changed_and_taken_back(spec):
    first = build(spec('{cron: "0 2 * * *", start_within: 6h, finish_by: "07:30"}'))
    assert (first.rules.start_within_s, first.rules.finish_by, first.rules.by) == (
        *(6 * 3600, "07:30", "price"),
    )
    again = build(spec(), first, by="carbon", finish_by="none")
    assert (again.rules.start_within_s, again.rules.finish_by) == (6 * 3600, None)
    assert again.rules.by == "carbon"
    none = build(spec(), again, start_within="none")
    assert (none.rules.start_within_s, none.rules.by, none.rules.may_defer) == (0, "price", False)


def test_a_deferred_occurrence_is_decided_anew_by_the_rules_that_hold_now(spec):
    first = build(spec(), cron="@daily", start_within="6h")
    planned = PlannedStart(AT + 7200, AT - 60, "0.19 EUR/kWh instead of 0.34")
    known = replace(first, cursor=Cursor(AT - 60, AT - 3600, planned=planned))
    for given in ({"start_within": "none"}, {"start_within": "2h"}, {"by": "now"}):
        changed = build(spec(), known, **given)
        assert changed.cursor.pending == AT - 3600
        found, missed = find_due(changed.rules, changed.cursor, AT + 30)
        assert missed == {}
        assert found.begins_at(changed.rules, AT + 30) <= AT


@pytest.mark.parametrize(
    "name",
    [
        "PATH",
        "CUDA_HOME",
        "LD_LIBRARY_PATH",
        "HF_HOME",
        "OMP_NUM_THREADS",
        "LC_ALL",
    ],
)
def test_what_libraries_need_is_kept(name):
    assert capture({name: "x"}, [], {}) == {name: "x"}


@pytest.mark.parametrize(
    "name",
    ["NVIDIA_API_KEY", "HF_TOKEN", "HF_API_TOKEN", "TORCH_HUB_TOKEN", "XDG_RUNTIME_DIR", "SSH_TTY"],
)
def test_secrets_and_what_is_of_a_login_are_kept_only_if_named(name):
    assert capture({name: "x"}, [], {}) == {}
    assert capture({name: "x"}, [name], {}) == {name: "x"}
