"""What a batch size usually costs."""

from __future__ import annotations

import dataclasses

import pytest

from tests.notify.test_notices import trial
from zeusrun.analysis.cost_baseline import find_baseline, run_cost_j, usual_cost_j
from zeusrun.analysis.usual import find_usual
from zeusrun.trial import CurvePoint, Interruption


def past(*costs, **changes):
    return [trial(n, cost_j=cost, **changes) for n, cost in enumerate(costs, 1)]


def test_three_runs_are_needed():
    assert find_baseline(past(100.0, 110.0), trial(9)) is None
    usual = find_baseline(past(100.0, 100.0, 100.0), trial(9))
    assert usual.runs == 3
    assert usual.cost_j == pytest.approx(100)


def test_a_few_equal_runs_do_not_make_every_other_one_strange():
    usual = find_baseline(past(100.0, 100.0, 100.0), trial(9))
    assert usual.low_j < 75
    assert usual.high_j > 135
    many = find_baseline(past(*[100.0] * 20), trial(30))
    assert 110 < many.high_j < usual.high_j


@pytest.mark.parametrize(
    "other",
    [
        {"global_batch_size": 64},
        {"target": 0.9},
        {"eta_knob": 0.1},
        {"gpu_model": "another"},
        {"world_size": 4},
        {"learning_rate": 0.1},
        {"shared": True},
        {"forgotten": True},
    ],
)
def test_runs_under_other_conditions_say_nothing(other):
    strange = [dataclasses.replace(each, **other) for each in past(1.0, 1.0, 1.0)]
    assert find_baseline(strange, trial(9)) is None
    usual = find_baseline([*strange, *past(100.0, 100.0, 100.0)], trial(9))
    assert usual.cost_j == pytest.approx(100)


def interrupted(number, **changes):
    """A run that would have cost 200 J, and has cost 1,100 J."""
    curve = tuple(
        CurvePoint(n, t, 10.0 * t, 0.5) for n, t in enumerate((5.0, 10.0, 105.0, 110.0), 1)
    )
    values = {"curve": curve, "epochs": 4, "max_power_w": 10.0}
    cut = (Interruption(100.0, 2),)
    found = trial(number, cost_j=1100.0, **{**values, "interruptions": cut, **changes})
    return dataclasses.replace(found, time_s=110.0, energy_j=1100.0)


def test_an_interrupted_run_counts_as_if_it_had_not_been_and_one_that_began_anew_does_not():
    whole = interrupted(9)
    assert run_cost_j(whole) == pytest.approx(200.0)
    usual = find_baseline([interrupted(n) for n in range(3)], whole)
    assert usual.cost_j == pytest.approx(200.0)
    anew = interrupted(1, curve=whole.curve[2:])
    assert run_cost_j(anew) is None
    assert find_baseline([anew] * 3, whole) is None
    assert find_usual(whole, [anew]).epochs is None
    assert find_usual(whole, [whole]).epochs == 4


def test_a_shared_run_would_have_cost_its_epochs_at_the_usual_speed():
    shared = interrupted(9, shared=True, interruptions=(), epochs=3)
    assert usual_cost_j([interrupted(n) for n in range(3)], shared) == pytest.approx(150.0)
    assert usual_cost_j([shared], shared) is None


def test_only_the_newest_count():
    usual = find_baseline(past(*[1.0] * 50, *[100.0] * 20), trial(99))
    assert usual.cost_j == pytest.approx(100)


def test_a_run_that_reports_within_epochs_costs_usually_by_its_samples():
    def sampled(number, samples, cost_j, **changes):
        curve = (CurvePoint(samples // 2, 5.0, 50.0, 0.1), CurvePoint(samples, 10.0, 100.0, 0.99))
        whole = (curve[-1]._replace(epoch=1),)
        values = {"curve": whole, "by_samples": curve, "samples": samples, "epochs": 1}
        return trial(number, cost_j=cost_j, time_s=10.0, **values, **changes)

    known = [sampled(n, 1000, 100.0) for n in (1, 2, 3)]
    assert usual_cost_j(known, sampled(4, 3000, 900.0, shared=True)) == pytest.approx(300.0)
