"""How long a power profile holds, what profiling is charged with, and what a shared GPU teaches."""

from __future__ import annotations

import dataclasses

import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import (
    DISPATCHED,
    MISSED,
    OOM,
    REACHED,
    STOPPED,
    change,
    power_levers,
    problem,
    trial,
)
from tests.bandit.test_reinterpret import learned
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.problem import STALE, PowerObjective, is_stale, merged_profile
from zeusrun.bandit.reinterpret import read_history, read_trial
from zeusrun.trial import PowerPoint, TrialStatus

CANCELLED = TrialStatus.CANCELLED
NOW = problem(max_power_w=50.0, samples_per_epoch=640.0)
POINT = PowerPoint(100.0, 10.0, 20.0)


def test_a_profile_holds_the_newest_point_of_every_limit():
    new = POINT._replace(steps_per_s=10.4)
    high = PowerPoint(200.0, 12.0, 40.0)
    past = [run(64, profile=(high, POINT)), run(64, profile=(new,))]
    assert merged_profile(past) == (new, high)


@pytest.mark.parametrize("change", [{"steps_per_s": 10.6}, {"power_w": 18.9}])
def test_a_profile_at_odds_with_a_newer_run_starts_anew(change):
    high = PowerPoint(200.0, 12.0, 40.0)
    new = POINT._replace(**change)
    assert is_stale(POINT, new)
    past = [run(64, profile=(high, POINT)), run(64, profile=(new,))]
    assert merged_profile(past) == (new,)
    again = PowerPoint(150.0, 11.0, 30.0)
    assert merged_profile([*past, run(64, profile=(again,))]) == (new, again)


def test_a_margin_of_five_percent_is_not_stale():
    assert STALE == 0.05
    assert not is_stale(POINT, POINT._replace(steps_per_s=9.6, power_w=20.9))


def test_a_run_elsewhere_makes_no_profile_stale():
    past = [
        run(64, profile=(POINT,)),
        run(64, profile=(POINT._replace(power_w=90.0),), local=False),
    ]
    assert merged_profile(past) == (POINT,)


def profiled(**changes):
    """A reached trial of 100 J and 5 epochs that tried two limits: 200 and 100 W."""
    points = (PowerPoint(100.0, 10.0, 15.0), PowerPoint(200.0, 10.0, 30.0))
    return trial(64, power_profile=points, whole_steps=50, **changes)


def test_profiling_is_not_charged_to_the_arm():
    assert read_trial(NOW, profiled()).cost_j == pytest.approx(100)
    assert read_trial(NOW, profiled(profiling_cost_j=20.0)).cost_j == pytest.approx(80)


def test_a_run_never_costs_less_than_at_the_limit_chosen():
    # 10 steps an epoch, 1.5 J a step, 5 epochs
    assert read_trial(NOW, profiled(profiling_cost_j=60.0)).cost_j == pytest.approx(75)
    assert read_trial(NOW, profiled(profiling_cost_j=1000.0)).cost_j == pytest.approx(75)


def test_profiling_under_another_eta_knob_has_another_cost_and_is_left_in():
    now = problem(eta_knob=0.0, max_power_w=50.0, samples_per_epoch=640.0)
    assert read_trial(now, profiled(profiling_cost_j=20.0)).cost_j == pytest.approx(500)


def test_profiling_that_is_all_of_a_cost_leaves_it_as_it_is():
    past = trial(64, profiling_cost_j=1000.0)
    assert read_trial(problem(), past).cost_j == pytest.approx(100)


def test_an_epoch_costs_what_lies_between_the_steps_as_well_whether_limits_were_tried_or_not():
    # 100 J in 5 epochs, of which steps at the limit chosen take 75 J.
    tried = read_trial(NOW, profiled(profiling_cost_j=10.0))
    assert tried.epoch_cost_j == pytest.approx(18)
    held = dataclasses.replace(profiled(), power_profile=profiled().power_profile[:1])
    assert read_trial(NOW, held).epoch_cost_j == pytest.approx(20)


def test_speed_is_priced_at_a_limit_that_may_be_held_today():
    now = dataclasses.replace(NOW, levers=power_levers((200.0, 250.0)))
    assert read_trial(NOW, profiled()).power_limit_w == 100.0
    assert read_trial(now, profiled()).power_limit_w == 200.0


@pytest.mark.parametrize("status", [TrialStatus.FAILED, OOM])
def test_what_a_crashed_run_measured_of_limits_is_kept(status):
    past = dataclasses.replace(profiled(), status=status, cause="it crashed")
    assert read_trial(NOW, past).profile == past.power_profile
    elsewhere = change(NOW, gpu_model="another", gpu_count=1)
    assert read_trial(elsewhere, past) is None


def test_an_epoch_costs_what_it_does_at_the_limit_of_the_objective():
    points = (PowerPoint(100.0, 5.0, 10.0), PowerPoint(200.0, 10.0, 30.0))
    past = trial(64, power_profile=points)
    energy = read_trial(NOW, past)
    assert (energy.power_limit_w, energy.epoch_cost_j) == (100.0, pytest.approx(20))
    fast = dataclasses.replace(NOW, power_objective=PowerObjective("max_slowdown", 1.5))
    within = read_trial(fast, past)  # the cost is the problem's own all the same
    assert (within.power_limit_w, within.epoch_cost_j) == (200.0, pytest.approx(30))


@pytest.mark.parametrize("status", [REACHED, MISSED])
def test_a_trial_that_shared_its_gpus_shows_its_epochs_and_the_most_that_one_costs(status):
    value = 0.96 if status is REACHED else 0.5
    past = learned(
        0.5, value, status=status, shared=True, max_epochs=40 if status is REACHED else 2
    )
    now = NOW if status is REACHED else dataclasses.replace(NOW, max_epochs=2)
    read = read_trial(now, past)
    assert (read.status, read.epochs, read.local) == (status, 2, False)
    assert (read.cost_j, read.power_w, read.profile, read.disturbed) == (None, None, (), True)
    assert read.epoch_cost_j == pytest.approx(30)


def test_a_stop_on_shared_gpus_is_no_failure_and_a_crash_says_nothing():
    assert read_trial(NOW, learned(0.5, 0.6, status=STOPPED, shared=True)).status is CANCELLED
    for status in (OOM, TrialStatus.FAILED):
        assert read_trial(NOW, trial(64, status, None, shared=True)) is None


def test_of_a_shared_trial_with_another_metric_only_the_most_that_an_epoch_costs_is_known():
    read = read_trial(problem(metric="f1"), learned(0.96, shared=True))
    assert (read.status, read.epochs, read.disturbed) == (CANCELLED, None, True)
    other = problem(metric="f1", world_size=7)
    assert read_trial(other, learned(0.96, shared=True)) is None


@pytest.mark.parametrize("shared", [False, None])
def test_a_trial_alone_on_its_gpus_or_not_known_to_have_shared_reads_as_ever(shared):
    assert read_trial(NOW, learned(0.96, shared=shared)) == read_trial(NOW, learned(0.96))


def test_a_user_may_learn_from_shared_gpus_all_the_same():
    now = dataclasses.replace(NOW, learn_from_shared=True)
    assert read_trial(now, learned(0.96, shared=True)) == read_trial(now, learned(0.96))
    assert read_trial(now, trial(64, OOM, None, shared=True)).status is OOM
    assert describe_kept(now, [learned(0.96, shared=True)]) == []


def test_it_is_said_what_is_kept_of_shared_trials():
    why = "(policy.learn_from_shared is false)"
    past = [learned(0.96, shared=True), learned(0.97, shared=True), trial(64, OOM, shared=True)]
    counts = "kept for their epochs, and for their speed while no better one is known"
    assert describe_kept(NOW, past) == [
        f"2 runs shared their GPUs {why}: {counts}",
        f"1 run shared its GPUs {why}: left out",
    ]
    on_cpu = dataclasses.replace(learned(0.96, shared=True), gpu_model=None, gpu_count=0)
    assert f"1 run shared its CPU {why}" in describe_kept(NOW, [on_cpu])[0]
    stopped = describe_kept(NOW, [learned(0.5, status=STOPPED, shared=True)])
    more = ", and for its speed while no better one is known"
    assert stopped == [f"1 run shared its GPUs {why}: kept for its epochs{more}"]


def test_a_history_of_shared_and_other_trials_is_read_in_order():
    past = [learned(0.96, shared=True), trial(64, DISPATCHED), learned(0.96)]
    _, runs = read_history(NOW, past)
    assert [one.local for one in runs] == [False, True, True]
