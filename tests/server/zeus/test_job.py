"""Zeus jobs as problems of our policies."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.factories import build_trial
from tests.server.zeus.conftest import build_settings
from zeusrun.bandit.auto.evidence import PROVEN
from zeusrun.bandit.registry import create_policy
from zeusrun.job_name import is_job_name
from zeusrun.server.zeus.job import (
    begin_trial,
    choose,
    find_dead,
    job_names,
    pose_problem,
    run_directory,
)
from zeusrun.server.zeus.messages import Report
from zeusrun.server.zeus.progress import LEASE_S, Training
from zeusrun.trial import TrialStatus

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
    training, outcome = Training(trial, decision.bound, LEASE_S), None
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
