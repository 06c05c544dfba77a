"""From a job file and what there was before to a schedule."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.factories import load_job
from tests.schedule.model import AT
from zeusrun.errors import JobFileError, UsageError
from zeusrun.schedule.build import build_schedule, capture, find_difference
from zeusrun.schedule.due import Cursor, PlannedStart, find_due


@pytest.fixture
def spec(tmp_path):
    def load(section=None):
        return load_job(tmp_path, name="digits", schedule=section and yaml.safe_load(section))

    return load


def build(spec, when=None, known=None, names=(), environment=None):
    environment = {"PATH": "/bin"} if environment is None else environment
    return build_schedule(spec, when, environment, names=names, known=known, now=AT)


def settings(schedule):
    rules = schedule.rules
    return (
        *(rules.timetable.expression, rules.timetable.tz, schedule.overlap, rules.catch_up),
        rules.deadline_s,
    )


def test_the_section_has_the_rules_and_the_command_line_wins_for_the_times(spec):
    section = spec('{cron: "@daily", overlap: queue, deadline: 14d, tz: UTC, catch_up: once}')
    rest = ("UTC", "queue", "once", 14 * 86400)
    assert settings(build(section)) == ("0 0 * * *", *rest)
    assert settings(build(section, "@hourly")) == ("0 * * * *", *rest)


def test_the_times_that_nothing_names_stay_and_the_rules_are_those_of_the_section(spec):
    first = build(spec("{tz: Europe/Paris, deadline: 2h}"), "@hourly")
    assert settings(first) == ("0 * * * *", "Europe/Paris", "forbid", "none", 7200)
    assert settings(build(spec(), known=first)) == ("0 * * * *", None, "forbid", "none", None)


@pytest.mark.parametrize(
    ("section", "said"),
    [
        (None, "has no schedule section; say when to run it"),
        ("{start_within: 6h}", r"has no 'schedule.cron'; say when to run it: zeusrun"),
        (
            '{cron: "@daily", start_within: 30h}',
            "start_within: 30h is longer than the 24h between two runs; choose less",
        ),
        (
            '{cron: "@hourly", start_within: 1h}',
            "start_within: 1h is as long as the 1h between two runs",
        ),
        (
            '{cron: "0 2,4 * * *", start_within: 3h}',
            "start_within: 3h is longer than the 2h between two runs",
        ),
        (
            '{cron: "@daily", start_within: 6h, deadline: 6h}',
            "start_within must be less than the deadline",
        ),
        ('{cron: "@daily", deadline: 0s}', "deadline must be more than 0"),
        ('{cron: "@daily", tz: Paris}', r"did you mean Europe/Paris\?"),
        ('{cron: "@daily", tz: europe/berlim}', r"did you mean Europe/Berlin\?"),
        ('{cron: "@daily", tz: xyzzy}', "use a name such as Europe/Paris"),
    ],
)
def test_what_cannot_be_used_is_told(spec, section, said):
    with pytest.raises(UsageError, match=said):
        build(spec(section))


def test_the_command_line_gives_the_cron_that_the_section_lacks(spec):
    built = build(spec("{start_within: 6h}"), "0 2 * * *")
    assert (built.rules.start_within_s, built.rules.timetable.expression) == (21600, "0 2 * * *")


def test_the_environment_is_that_of_now_with_what_was_asked_for_before(spec):
    first = build(spec(), "@daily", names=["MINE"], environment={"MINE": "1", "PATH": "/a"})
    assert first.environment == {"MINE": "1", "PATH": "/a"}
    second = build(spec(), known=first, environment={"PATH": "/b", "OTHER": "2"})
    assert second.environment == {"MINE": "1", "PATH": "/b"}
    third = build(spec(), known=second, environment={"MINE": "3"})
    assert third.environment == {"MINE": "3"}
    with pytest.raises(UsageError, match="--env GONE: this variable is not set"):
        build(spec(), "@daily", names=["GONE"])


def test_how_far_it_is_stays_unless_the_times_change_and_what_was_dropped_is_noted(spec):
    known = replace(build(spec(), "@daily"), cursor=Cursor(AT - 60, AT - 120))
    same = build(spec("{overlap: allow}"), known=known)
    assert (same.cursor, same.firings) == (known.cursor, ())
    other = build(spec(), "@hourly", known)
    assert other.cursor == Cursor(AT)
    (firing,) = other.firings
    assert (firing.occurrence, firing.result) == (AT - 120, "skipped")
    assert firing.why == "the schedule was changed"


def test_a_deferred_occurrence_is_decided_anew_by_the_rules_that_hold_now(spec):
    first = build(spec("{start_within: 6h}"), "@daily")
    planned = PlannedStart(AT + 7200, AT - 60, "0.19 EUR/kWh instead of 0.34")
    known = replace(first, cursor=Cursor(AT - 60, AT - 3600, planned=planned))
    for section in (None, "{start_within: 2h}", "{start_within: 6h, by: carbon}"):
        changed = build(spec(section), known=known)
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
