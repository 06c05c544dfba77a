"""What a history stores, and how a trial is found by what people call it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import PREEMPTED, REACHED, begin, build_trial
from tests.history.memory import MemoryHistory
from zeusrun.errors import UsageError
from zeusrun.history.rules import (
    check_numbers,
    encode_trial,
    find_trial,
    has_expired,
    is_offline,
    is_same,
    is_superseded,
    makes_stale,
    offline_job,
    offline_name,
)
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus


@pytest.fixture
def history():
    history = MemoryHistory()
    for trial in (build_trial(1), build_trial(1, job="other"), build_trial(2)):
        begin(history, trial)
    return history


def test_a_trial_is_found_by_its_id_its_number_or_as_the_last_one_of_its_job(history):
    assert find_trial(history, "job-1-1") == build_trial(1)
    assert find_trial(history, "2-1") == find_trial(history, "job") == build_trial(2)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("1-1", "'1-1' is the number of 2 runs; a run is called JOB-RUN"),
        ("7-1", "'7-1' is the number of no runs; a run is called JOB-RUN"),
        ("job-7-1", "job has no run 7-1; `zeusrun history job` lists its runs"),
        ("jobs-7-1", "there is no job jobs, so no run called 'jobs-7-1'; "),
        ("jobs", "there is no run and no job called 'jobs'; "),
    ],
)
def test_a_name_that_no_trial_has_is_told_with_what_to_do(history, name, told):
    with pytest.raises(UsageError) as error:
        find_trial(history, name)
    assert str(error.value).startswith(told)


RUNS, ENDED = build_trial(), build_trial().finish(REACHED)
CUT = build_trial().finish(PREEMPTED)
GOES_ON = CUT.resume("2026-01-02T00:00:00Z")


@pytest.mark.parametrize(
    ("trial", "known", "stale"),
    [
        (RUNS, None, True),
        (ENDED, RUNS, False),
        (CUT, RUNS, True),
        (GOES_ON, CUT, True),
        (replace(ENDED, forgotten=True), ENDED, True),
        (ENDED, ENDED, False),
    ],
)
def test_what_the_next_choice_relies_on_makes_earlier_choices_stale(trial, known, stale):
    assert makes_stale(trial, known) is stale


@pytest.mark.parametrize(
    ("known", "trial", "superseded"),
    [
        (None, RUNS, True),
        (RUNS, RUNS, False),
        (RUNS, ENDED, True),
        (ENDED, RUNS, False),
        (CUT, GOES_ON, True),
        (GOES_ON, CUT, False),
        (GOES_ON, replace(ENDED, preemptions=1), True),
        (GOES_ON, ENDED, False),  # of the part before
        (CUT, replace(CUT, reason="another"), False),
        (ENDED, replace(ENDED, preemptions=1), False),
    ],
)
def test_a_later_state_of_a_trial_takes_the_place_of_an_earlier_one(known, trial, superseded):
    assert is_superseded(known, trial) is superseded


def test_a_trial_is_the_same_if_uuid_and_job_are():
    assert is_same(RUNS, replace(ENDED, trial="job-7-1"))
    assert not is_same(RUNS, replace(RUNS, uuid="0" * 32))
    assert not is_same(RUNS, replace(RUNS, job="other"))


def test_a_trial_that_began_offline_has_the_job_in_its_name():
    name = offline_name("job", RUNS.uuid)
    assert (name, offline_job(name)) == (f"job-offline-{RUNS.uuid[:8]}", "job")
    assert offline_job("job-1-1") is None
    assert is_offline(replace(RUNS, trial=name))
    assert not is_offline(RUNS)


@pytest.mark.parametrize(
    ("status", "code", "expired"),
    [
        (TrialStatus.LOST, ReasonCode.LEASE_EXPIRED, True),
        (TrialStatus.LOST, ReasonCode.LAUNCHER_DIED, False),
        (TrialStatus.CANCELLED, ReasonCode.LEASE_EXPIRED, False),
    ],
)
def test_a_trial_without_a_heartbeat_is_lost_for_that_alone(status, code, expired):
    assert has_expired(replace(RUNS, status=status, reason_code=code)) is expired


@pytest.mark.parametrize(
    ("changes", "job", "told"),
    [
        ({}, "job", None),
        ({}, "other", "is of job 'job', not of 'other'"),
        ({"uuid": "5"}, "job", "has the uuid '5': 32 hex digits expected"),
        ({"recurrence": 2}, "job", "'job-1-1' is number 2-1 of 'job'"),
        ({"attempt": 2}, "job", "'job-1-1' is number 1-2 of 'job'"),
        ({"trial": "job-0-1", "recurrence": 0}, "job", "counted from 1"),
    ],
)
def test_a_trial_has_the_numbers_of_its_id(changes, job, told):
    trial = replace(RUNS, **changes)
    if told is None:
        check_numbers(trial, job)
        return
    with pytest.raises(ValueError, match=told):
        check_numbers(trial, job)


def test_a_trial_that_would_not_read_back_equal_is_not_stored():
    assert encode_trial(RUNS)["trial"] == "job-1-1"
    for damage in ({"target": float("nan")}, {"target": float("inf")}, {"why": 7}):
        with pytest.raises(ValueError, match=r"trial job-1-1 cannot be stored: "):
            encode_trial(replace(RUNS, **damage))
