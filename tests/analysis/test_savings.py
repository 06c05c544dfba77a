"""What choosing batch sizes has saved against the default every time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import build_trial
from zeusrun.analysis.net_amounts import find_net_amounts
from zeusrun.analysis.savings import find_savings
from zeusrun.analysis.sizes import build_sizes
from zeusrun.trial import CurvePoint, EnergySource, Interruption, Stage, TrialStatus


def run(recurrence, arm=32, cost_j=100.0, attempt=1, **changes):
    """A run that has reached the target; the default batch size is 32."""
    values = {
        "status": TrialStatus.REACHED,
        "global_batch_size": arm,
        "cost_j": cost_j,
        "time_s": 1.0,
        "energy_source": EnergySource.ESTIMATED,
    }
    return build_trial(recurrence, attempt, **{**values, **changes})


STOPPED = {"status": TrialStatus.STOPPED}


def saved(*trials):
    found = find_savings(trials).by_trial
    return {name.removeprefix("job-"): each.saved_j for name, each in found.items()}


def test_a_recurrence_is_compared_with_the_mean_cost_of_the_default():
    trials = [run(1, cost_j=90.0), run(2, cost_j=110.0), run(3, 16, 70.0)]
    assert saved(*trials) == {"1-1": 10.0, "2-1": -10.0, "3-1": 30.0}
    found = find_savings(trials)
    assert (found.net_j, found.default_j, found.ended, found.explored) == (30.0, 300.0, 3, True)
    assert found.by_trial["job-3-1"].default_runs == 2


def interrupted(recurrence, arm=32, epochs=4, lost_s=96.0, left=1, **changes):
    """A run of 1 s and 25 J an epoch that lost some seconds; reports of so many epochs are left."""
    times = [float(n + (lost_s if n > left else 0.0)) for n in range(1, epochs + 1)]
    curve = tuple(CurvePoint(n, t, 25.0 * t, 0.1 * n) for n, t in enumerate(times, 1))
    values = {
        "curve": curve,
        "epochs": epochs,
        "time_s": times[-1],
        "energy_j": 25.0 * times[-1],
        "max_power_w": 25.0,
        "interruptions": (Interruption(left + lost_s / 2, 3),),
    }
    return run(recurrence, arm, 25.0 * times[-1], **{**values, **changes})


def test_an_interruption_is_charged_to_neither_side():
    usual = {"max_power_w": 25.0}
    lost = [interrupted(1), run(2, 64, 60.0, **usual), interrupted(3, 64)]
    assert saved(*lost) == {"1-1": 0.0, "2-1": 40.0, "3-1": 0.0}
    net = find_net_amounts(lost, find_savings(lost))
    assert (net.energy_j, net.energy_runs) == (0.0, 2)
    (default, other), _ = build_sizes(lost)
    assert (default.costs_j, default.time_s) == ((100.0,), 4.0)
    assert sorted(other.costs_j) == [60.0, 100.0]


def test_a_run_that_began_anew_is_neither_measured_nor_a_measure():
    usual = {"max_power_w": 25.0}
    anew = interrupted(2, 64, left=0)
    assert saved(run(1, **usual), anew) == {"1-1": 0.0}
    assert saved(interrupted(1, left=0), run(2, 64, 60.0, **usual)) == {}
    assert build_sizes([anew])[0][0].costs_j == ()


def test_a_lost_attempt_cost_what_it_would_have_undisturbed():
    missed = interrupted(2, 64, status=TrialStatus.MISSED)
    tried = [run(1, max_power_w=25.0), missed, run(2, attempt=2, max_power_w=25.0)]
    assert saved(*tried) == {"1-1": 0.0, "2-2": -100.0}
    assert saved(*tried[:2]) == {"1-1": 0.0, "2-1": -100.0}


def test_attempts_that_failed_are_part_of_what_a_recurrence_cost():
    tried = run(2, 64, 150.0, **STOPPED)
    assert saved(run(1), tried, run(2, attempt=2)) == {"1-1": 0.0, "2-2": -150.0}
    looked = replace(tried, status=TrialStatus.CANCELLED, stage=Stage.SPEED_CHECK, cost_j=5.0)
    assert saved(run(1), looked, run(2, attempt=2)) == {"1-1": 0.0, "2-2": -5.0}


def test_the_default_alone_saves_nothing_and_loses_nothing():
    found = find_savings([run(n, cost_j=cost) for n, cost in enumerate((80.0, 100.0, 120.0), 1)])
    assert (found.net_j, found.explored, found.pays_back_in) == (0.0, False, None)


@pytest.mark.parametrize(
    "other",
    [
        {"metric": "loss"},
        {"mode": "min"},
        {"target": 0.9},
        {"eta_knob": 0.1},
        {"world_size": 4},
        {"gpu_model": "another"},
        {"gpu_count": 2},
        {"max_power_w": 40.0},
        {"energy_source": EnergySource.COUNTER},
        {"learning_rate": 0.1},
        {"variant": "noise-scale"},
        {"shared": True},
        {"forgotten": True},
        {"status": TrialStatus.MISSED},
        {"status": TrialStatus.STOPPED},
        {"cost_j": None},
        {"cost_j": 0.0},
        {"cost_j": 1e300},
        {"default_batch_size": 64},
    ],
    ids=str,
)
def test_runs_of_the_default_under_other_conditions_are_no_measure(other):
    assert "2-1" not in saved(run(1, **other), run(2, 16, 50.0))


def test_adaptive_runs_are_compared_with_adaptive_runs_of_the_default_only():
    adaptive = {"variant": "noise-scale"}
    trials = [run(1), run(2, cost_j=60.0, **adaptive), run(3, 16, 50.0, **adaptive), run(4, 16, 80)]
    assert saved(*trials) == {"1-1": 0.0, "2-1": 0.0, "3-1": 10.0, "4-1": 20.0}


@pytest.mark.parametrize(
    "other",
    [
        {"shared": True},
        {"forgotten": True},
        {"status": TrialStatus.DISPATCHED},
        {"status": TrialStatus.PREEMPTED},
        {"cost_j": None},
        {"cost_j": 1e300},
        {"default_batch_size": None},
        {"world_size": 4},
    ],
    ids=str,
)
def test_a_recurrence_with_such_an_attempt_is_not_compared(other):
    failed = replace(run(2, 64, 20.0, **STOPPED), **other)
    assert "2-2" not in saved(run(1), failed, run(2, 16, 50.0, attempt=2))


def test_an_attempt_that_never_trained_has_cost_nothing():
    crashed = run(2, 64, None, status=TrialStatus.OOM, time_s=None)
    assert saved(run(1), crashed, run(2, 16, 80.0, attempt=2))["2-2"] == 20.0


def test_a_recurrence_of_which_nothing_was_measured_is_not_counted():
    timed_out = run(2, 64, None, time_s=None, **STOPPED)
    found = find_savings([run(1), timed_out])
    assert (list(found.by_trial), found.default_j, found.ended) == (["job-1-1"], 100.0, 2)
    both = saved(run(1), timed_out, run(2, 16, 30.0, attempt=2, **STOPPED))
    assert both["2-2"] == -30.0


def test_a_default_batch_size_of_0_in_a_damaged_record_is_not_compared():
    assert saved(run(1, arm=0, default_batch_size=0), run(2, 16, default_batch_size=0)) == {}


def test_energy_that_does_not_count_may_come_from_anywhere():
    default = run(1, eta_knob=0.0, energy_source=EnergySource.COUNTER)
    assert saved(default, run(2, 16, 80.0, eta_knob=0.0, energy_source=None))["2-1"] == 20.0


@pytest.mark.parametrize(("rate", "comparable"), [(0.1, 1), (0.2, 1), (0.1 * 2**0.5, 1), (0.3, 0)])
def test_a_learning_rate_must_belong_to_the_rule_of_the_default_s(rate, comparable):
    found = saved(run(1, learning_rate=0.1), run(2, 64, 80.0, learning_rate=rate))
    assert ("2-1" in found) == comparable


def test_where_two_rates_of_the_default_fit_the_newest_counts():
    old, new = run(1, cost_j=500.0, learning_rate=0.1), run(2, learning_rate=0.2)
    assert saved(old, new, run(3, 64, 80.0, learning_rate=0.2))["3-1"] == 20.0


def test_a_recurrence_that_other_batch_sizes_have_failed_is_a_loss():
    tried, last = run(2, 64, 30.0, **STOPPED), run(2, cost_j=70.0, attempt=2, **STOPPED)
    assert saved(run(1), tried, last) == {"1-1": 0.0, "2-2": -30.0}
    assert "2-2" not in saved(run(1), replace(tried, global_batch_size=32), last)


def test_a_history_that_begins_in_the_middle_of_a_recurrence_leaves_it_out():
    assert saved(run(1, 16, 50.0, attempt=2), run(2)) == {"2-1": 0.0}


@pytest.mark.parametrize(
    ("costs_j", "stage", "arm", "more"),
    [
        ((80.0, 80.0), Stage.EXPLOIT, 16, 8),
        ((80.0, 80.0), Stage.EXPLORE, 16, None),
        ((120.0, 120.0), Stage.EXPLOIT, 16, None),
        ((100.0, 100.0), Stage.EXPLOIT, 32, None),
    ],
)
def test_a_loss_is_made_good_by_what_the_batch_size_in_use_saves(costs_j, stage, arm, more):
    lost = [run(1), run(2, 64, 200.0, **STOPPED), run(2, attempt=2)]
    now = [run(n, arm, cost_j, stage=stage) for n, cost_j in enumerate(costs_j, 3)]
    found = find_savings([*lost, *now])
    assert found.pays_back_in == more
    if arm == 32:
        assert found.coming_j == 0


def test_nothing_is_known_of_no_trials():
    found = find_savings([])
    assert (found.by_trial, found.ended, found.net_j, found.pays_back_in) == ({}, 0, 0, None)
