"""What a batch size usually costs."""

from __future__ import annotations

import dataclasses

import pytest

from tests.notify.test_notices import trial
from zeusrun.analysis.cost_baseline import find_baseline


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


def test_only_the_newest_count():
    usual = find_baseline(past(*[1.0] * 50, *[100.0] * 20), trial(99))
    assert usual.cost_j == pytest.approx(100)
