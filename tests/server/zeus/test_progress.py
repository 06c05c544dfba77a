"""A training between two reports."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import build_trial
from tests.server.zeus.conftest import build_settings
from zeusrun.bandit.registry import create_policy
from zeusrun.history.rules import encode_trial
from zeusrun.server.zeus.job import pose_problem
from zeusrun.server.zeus.messages import Report
from zeusrun.server.zeus.progress import LEASE_S, Training, first_lease_s
from zeusrun.trial import Bound, CurvePoint, TrialStatus

NOW = "2025-06-01T12:00:09.000+00:00"


def build_training(bound=None, **values):
    trial = build_trial(max_power_w=300.0, target=0.9, max_epochs=10, metric="metric", **values)
    return Training(trial, bound, LEASE_S)


def build_report(epoch, metric, time=None, energy=None):
    time = epoch * 10.0 if time is None else time
    return Report(
        job_id="job",
        batch_size=32,
        trial_number=1,
        time=time,
        energy=time * 200 if energy is None else energy,
        metric=metric,
        current_epoch=epoch,
    )


def judge(training, report):
    problem = pose_problem(build_settings(batch_sizes=[32, 64]), 1)
    return training.judge(problem, create_policy("auto"), report, NOW)


def test_it_reads_back_as_it_was_stored():
    training = build_training(Bound(2e4, (((1, 0.5), (3, 0.9)), ()), 7.5))
    training = training.with_report(build_report(1, float("nan"))).with_report(build_report(2, 0.4))
    live = json.loads(json.dumps(training.to_json(NOW), allow_nan=False))
    assert Training.from_json(build_trial(), live) == training


def test_without_what_is_stored_while_it_runs_it_goes_on_unbounded():
    assert Training.from_json(build_trial(), None) == Training(build_trial(), None, LEASE_S)


def test_reports_after_its_lease_had_expired_count():
    training = build_training(Bound(2e4)).with_report(build_report(1, 0.2))
    live = json.loads(json.dumps(training.to_json(NOW)))
    later = training.with_report(build_report(2, 0.4))
    assert Training.from_json(later.trial, live) == later


def test_a_later_report_of_the_same_epoch_replaces_the_earlier_one():
    training = build_training().with_report(build_report(1, 0.4))
    assert training.with_report(build_report(1, 0.5, time=12.0)).trial.curve == (
        CurvePoint(1, 12.0, 2400.0, 0.5),
    )
    assert training.with_report(build_report(1, 0.5, time=8.0)) is training


def test_energy_that_is_not_counted_yet_is_unknown():
    trial = build_training().with_report(build_report(1, 0.4, energy=0.0)).trial
    assert (trial.energy_j, trial.energy_source, trial.cost_j) == (None, None, None)


@pytest.mark.parametrize(
    ("epoch", "metric", "status"),
    [
        (1, 0.9, TrialStatus.REACHED),
        (1, float("inf"), None),
        (10, 0.95, TrialStatus.REACHED),
        (10, 0.5, TrialStatus.MISSED),
        (10, float("nan"), TrialStatus.MISSED),
        (9, 0.5, TrialStatus.STOPPED),
        (1, 0.5, None),
    ],
)
def test_target_last_epoch_and_bound_end_it(epoch, metric, status):
    report = build_report(epoch, metric)
    outcome = judge(build_training(Bound(2e4)).with_report(report), report)
    assert (outcome and outcome.status) == status


def test_a_process_that_ends_before_the_first_report_died():
    outcome = build_training().end(NOW)
    assert (outcome.status, outcome.cause is None) == (TrialStatus.FAILED, False)


def test_one_that_ends_later_was_cut_short_and_keeps_its_epochs():
    outcome = build_training().with_report(build_report(2, 0.4)).end(NOW)
    assert (outcome.status, outcome.epochs, outcome.time_s) == (TrialStatus.CANCELLED, 2, 20.0)
    assert outcome.reason == "its process ended after 2 of 10 epochs"


def test_long_epochs_prolong_the_lease():
    slow = build_training().with_report(build_report(1, 0.4, time=7200.0))
    assert slow.lease_s == 3 * 7200
    assert slow.with_report(build_report(2, 0.4, time=7201.0)).lease_s == 3 * 7200
    assert first_lease_s([slow.trial]) == 3 * 7200
    assert first_lease_s([build_trial()]) == first_lease_s([]) == LEASE_S


numbers = st.floats(0, 1e300)


@settings(max_examples=50)
@given(
    st.lists(st.tuples(st.integers(0, 2**53), st.floats(), numbers, numbers), max_size=6),
    st.none() | st.floats(0, 1e300).map(Bound),
)
def test_whatever_is_reported_can_be_stored(reports, bound):
    training = build_training(bound)
    for values in reports:
        report = build_report(*values)
        training = training.with_report(report)
        live = json.dumps(training.to_json(NOW), allow_nan=False)
        assert Training.from_json(build_trial(), json.loads(live)) == training
        outcome = judge(training, report) or training.end(NOW)
        encode_trial(training.trial.finish(outcome))
