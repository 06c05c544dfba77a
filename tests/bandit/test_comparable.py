from __future__ import annotations

import pytest

from tests.bandit.scripts import DISPATCHED, MISSED, OOM, REACHED, STOPPED, problem, trial
from zeusrun.bandit.comparable import comparable, set_aside
from zeusrun.trial import EnergySource, TrialStatus

ESTIMATED = {"energy_source": EnergySource.ESTIMATED}


def test_a_trial_of_the_same_problem_is_kept_unchanged():
    past = [trial(64), trial(32, energy_j=None), trial(16, DISPATCHED), trial(128, OOM, None)]
    assert comparable(problem(), past) == past
    assert set_aside(problem(), past) == []


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"metric": "loss"}, "1 trial had metric loss (max)"),
        ({"mode": "min"}, "1 trial had metric val_accuracy (min)"),
        ({"target": 0.9}, "1 trial had target 0.9"),
        ({"global_batch_size": 48}, "1 trial used batch size 48, not a candidate"),
        ({"world_size": 4}, "1 trial had world size 4"),
        ({"gpu_model": "P100"}, "1 trial ran on 2 x P100"),
        ({"gpu_count": 1}, "1 trial ran on 1 x V100"),
        ({"gpu_model": None, "gpu_count": 0}, "1 trial had no GPU"),
        ({"learning_rate": 0.2}, "1 trial had learning rate 0.2"),
        ({"learning_rate": None}, "1 trial had no learning rate"),
        ({"energy_source": EnergySource.ESTIMATED}, "1 trial had estimated energy"),
        ({"status": MISSED, "max_epochs": 39}, "1 trial missed the target in 39 epochs, now 40"),
        ({"status": STOPPED, "eta_knob": 0.5}, "1 trial stopped early under eta_knob 0.5"),
        ({"status": TrialStatus.FAILED}, "1 trial ended as FAILED"),
        ({"status": TrialStatus.CANCELLED}, "1 trial ended as CANCELLED"),
        ({"status": TrialStatus.PREEMPTED}, "1 trial ended as PREEMPTED"),
        ({"status": TrialStatus.LOST}, "1 trial ended as LOST"),
    ],
)
def test_a_trial_of_another_problem_is_set_aside_with_its_reason(changes, sentence):
    past = [trial(64, **changes)]
    assert comparable(problem(), past) == []
    assert set_aside(problem(), past) == [sentence]


def test_reasons_are_counted_in_order_of_first_occurrence():
    past = [trial(64, target=0.9), trial(48), trial(32, target=0.9), trial(16)]
    assert set_aside(problem(), past) == [
        "2 trials had target 0.9",
        "1 trial used batch size 48, not a candidate",
    ]


def test_a_trial_in_flight_for_another_target_is_left_out_but_is_no_past_trial():
    past = [trial(64, DISPATCHED, target=0.9)]
    assert comparable(problem(), past) == []
    assert set_aside(problem(), past) == []


def test_a_learning_rate_equal_but_for_rounding_is_equal():
    assert comparable(problem(), [trial(64, learning_rate=0.1 * (1 + 1e-12))])


def test_a_job_without_a_learning_rate_compares_trials_without_one():
    past = [trial(64, learning_rate=None), trial(64)]
    assert comparable(problem(learning_rates={}), past) == past[:1]


def test_out_of_memory_teaches_whatever_the_target_but_not_on_other_hardware():
    past = [trial(64, OOM, target=0.5, learning_rate=9.0), trial(64, OOM, gpu_model="P100")]
    assert comparable(problem(), past)[0].target == 0.5
    assert set_aside(problem(), past) == ["1 trial ran on 2 x P100"]


def test_a_miss_with_as_many_epochs_or_more_still_teaches():
    past = [trial(64, MISSED, max_epochs=40), trial(64, MISSED, max_epochs=80)]
    assert len(comparable(problem(), past)) == 2


def test_a_target_reached_after_more_epochs_than_allowed_now_is_a_miss():
    past = [trial(64, epochs=21, max_epochs=40), trial(64, epochs=20), trial(64, epochs=None)]
    kept = comparable(problem(max_epochs=20), past)
    assert [(t.status, t.cost_j) for t in kept] == [
        (MISSED, None),
        (REACHED, 100.0),
        (REACHED, 100.0),
    ]


def test_costs_are_recomputed_with_the_current_eta_knob():
    (kept,) = comparable(problem(eta_knob=0.5), [trial(64, cost_j=-1.0)])
    assert kept.cost_j == 0.5 * 100 + 0.5 * 50 * 10


@pytest.mark.parametrize("status", [MISSED, STOPPED, OOM])
def test_what_did_not_reach_the_target_has_no_cost(status):
    (kept,) = comparable(problem(), [trial(64, status, 1.0)])
    assert kept.cost_j is None


def test_measured_trials_are_set_aside_where_energy_is_estimated():
    past = [trial(64), trial(64, **ESTIMATED)]
    assert comparable(problem(energy_measured=False), past) == past[1:]
    assert set_aside(problem(energy_measured=False), past) == ["1 trial had measured energy"]


def test_counted_and_integrated_energy_are_both_measured():
    past = [trial(64), trial(64, energy_source=EnergySource.INTEGRATED)]
    assert comparable(problem(), past) == past


def test_with_no_energy_now_the_newest_reached_trial_decides_the_class():
    past = [trial(64), trial(64, **ESTIMATED), trial(64, MISSED), trial(64, energy_j=None)]
    assert comparable(problem(energy_measured=None), past)[0].energy_source is EnergySource(
        "estimated"
    )


def test_the_class_of_energy_does_not_matter_when_only_time_counts():
    past = [trial(64), trial(64, **ESTIMATED)]
    kept = comparable(problem(eta_knob=0.0), past)
    assert [t.cost_j for t in kept] == [500.0, 500.0]


def test_a_miss_teaches_whatever_measured_its_energy():
    assert comparable(problem(), [trial(64, MISSED, **ESTIMATED)])


def test_a_target_reached_too_late_is_a_miss_whatever_measured_its_energy():
    (kept,) = comparable(problem(max_epochs=20), [trial(64, epochs=21, **ESTIMATED)])
    assert kept.status is MISSED
