"""Zeus jobs as problems of our policies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import build_trial
from tests.server.zeus.conftest import build_settings
from zeusrun.bandit.auto.evidence import PROVEN
from zeusrun.bandit.registry import create_policy
from zeusrun.history.rules import encode_trial
from zeusrun.job_name import is_job_name
from zeusrun.server.zeus.job import (
    LEASE_S,
    ReportedTraining,
    begin_trial,
    choose,
    find_dead,
    first_lease_s,
    job_names,
    pose_problem,
    run_directory,
)
from zeusrun.server.zeus.messages import Report
from zeusrun.trial import Bound, CurvePoint, TrialStatus

REACHED, STOPPED = TrialStatus.REACHED, TrialStatus.STOPPED
FAILED, LOST = TrialStatus.FAILED, TrialStatus.LOST


def build_trials(*ended, gpu_model="Fake A100"):
    return [
        build_trial(
            number,
            status=status,
            global_batch_size=size,
            gpu_model=gpu_model,
            gpu_count=1,
            world_size=1,
        )
        for number, (size, status) in enumerate(ended, 1)
    ]


class TestNames:
    def test_an_id_that_a_job_can_have_is_its_name(self):
        assert next(job_names("mnist-2")) == "mnist-2"

    def test_other_ids_keep_their_beginning(self):
        name = next(job_names("team-a/résumé"))
        assert name.startswith("team-a-r-sum--")

    @settings(max_examples=30)
    @given(st.text(max_size=80), st.text(max_size=80))
    def test_every_id_has_names_and_no_two_share_one(self, first, second):
        names = list(job_names(first))
        assert all(map(is_job_name, names))
        if first != second:
            assert names[0] != next(job_names(second))

    @settings(max_examples=30)
    @given(st.text(), st.text(), st.integers(1), st.integers(1))
    def test_no_run_directory_is_that_of_another_job(self, first, second, one, other):
        if (first, one) != (second, other):
            assert run_directory(first, one) != run_directory(second, other)
        if first != second:
            assert not run_directory(first, one).startswith(run_directory(second))


class TestDeaths:
    def test_two_deaths_in_a_row_rule_a_batch_size_out(self):
        trials = build_trials((64, FAILED), (32, REACHED), (64, LOST))
        assert find_dead(build_settings(), trials) == {64: 2}

    def test_a_result_between_them_starts_the_count_again(self):
        trials = build_trials((64, FAILED), (64, STOPPED), (64, FAILED))
        assert find_dead(build_settings(), trials) == {}

    def test_one_that_has_reached_the_target_may_die_more_often(self):
        ended = [(64, REACHED), (64, FAILED), (64, FAILED), (64, LOST)]
        assert find_dead(build_settings(), build_trials(*ended)) == {}
        assert find_dead(build_settings(), build_trials(*ended, (64, FAILED))) == {64: 4}

    def test_if_none_were_left_all_may_run(self):
        ended = [(64, FAILED)] * 2 + [(32, FAILED)] * 2
        assert find_dead(build_settings(), build_trials(*ended)) == {32: 2, 64: 2}
        ended += [(128, FAILED)] * 2
        assert find_dead(build_settings(), build_trials(*ended)) == {}

    def test_runs_on_other_gpus_do_not_count(self):
        trials = build_trials((64, FAILED), (64, FAILED), gpu_model="Fake B100")
        assert find_dead(build_settings(), trials) == {}

    def test_the_nearest_candidate_takes_the_place_of_a_dead_default(self):
        problem = pose_problem(build_settings(), 3, {64})
        assert (problem.candidates, problem.default) == ((32, 128), 32)


def test_a_job_becomes_a_problem():
    settings = build_settings(
        higher_is_better_metric=False, beta_knob=None, window_size=5, number_of_gpus=2
    )
    problem = pose_problem(settings, 7)
    assert (problem.mode, problem.cost_factor, problem.window) == ("min", None, 5)
    assert (problem.recurrence, problem.hardware.gpu_count, problem.max_power_w) == (7, 2, 300.0)
    assert pose_problem(build_settings(window_size=-1), 1).window is None


def train(trials, number, epoch_s, epochs=20, policy="auto"):
    """Run a training that reaches the target in its last epoch if nothing stops it."""
    job, policy = build_settings(max_epochs=100), create_policy(policy)
    decision = choose(job, policy, trials, number)
    trial = begin_trial(job, "job", number, decision, started_at="", uuid="", host=None)
    training, outcome = ReportedTraining(trial, decision.bound, LEASE_S), None
    for epoch in range(1, 101):
        report = Report(
            job_id="job",
            batch_size=trial.global_batch_size,
            trial_number=number,
            time=epoch * epoch_s,
            energy=epoch * epoch_s * 100,
            metric=job.target_metric * min(1.0, epoch / epochs),
            current_epoch=epoch,
        )
        training = training.with_report(report)
        outcome = training.judge(pose_problem(job, number), policy, report, "")
        if outcome is not None:
            break
    return trial.finish(outcome)


def test_a_slow_machine_alone_stops_no_training():
    trials = []
    for number in range(1, 16):
        trials.append(train(trials, number, 2.0 if number <= 12 else 6.0))
    assert {trial.status for trial in trials[12:]} == {REACHED}


@pytest.mark.parametrize("policy", ["auto", "zeus", "grid"])
def test_after_a_training_of_a_proven_batch_size_was_stopped_the_next_ends_with_a_model(policy):
    """After new data, a training takes five times the epochs."""
    trials = []
    for number in range(1, 31):
        epochs = 12 if number <= 15 else 60
        trials.append(train(trials, number, 2.0, epochs, policy))
    proven = [trial.status is STOPPED and trial.stage in PROVEN for trial in trials]
    assert any(proven)
    after = [trial.status for trial, stopped in zip(trials[1:], proven, strict=False) if stopped]
    assert set(after) == {REACHED}


NOW = "2025-06-01T12:00:09.000+00:00"


def build_training(bound=None, **values):
    trial = build_trial(max_power_w=300.0, target=0.9, max_epochs=10, metric="metric", **values)
    return ReportedTraining(trial, bound, LEASE_S)


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
    assert ReportedTraining.from_json(build_trial(), live) == training


def test_without_what_is_stored_while_it_runs_it_goes_on_unbounded():
    assert ReportedTraining.from_json(build_trial(), None) == ReportedTraining(
        build_trial(), None, LEASE_S
    )


def test_reports_after_its_lease_had_expired_count():
    training = build_training(Bound(2e4)).with_report(build_report(1, 0.2))
    live = json.loads(json.dumps(training.to_json(NOW)))
    later = training.with_report(build_report(2, 0.4))
    assert ReportedTraining.from_json(later.trial, live) == later


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
        assert ReportedTraining.from_json(build_trial(), json.loads(live)) == training
        outcome = judge(training, report) or training.end(NOW)
        encode_trial(training.trial.finish(outcome))
