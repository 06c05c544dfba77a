"""Runs that miss the target by bad luck: how often, and what is said of the next one."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import problem
from zeusrun.bandit.auto.evidence import find_luck
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.problem import RUN_SD
from zeusrun.trial import TrialStatus

MISSED, STOPPED = TrialStatus.MISSED, TrialStatus.STOPPED


def luck_of(reached, failed):
    return find_luck({64: reached}, {64: failed} if failed else {})


def test_without_a_miss_none_is_expected():
    luck, others = luck_of([run(64, 10)] * 3, [])
    assert (luck.missing, luck.elsewhere, others) == ({64: 0.0}, 0.0, {})
    assert find_luck({}, {})[0].missing_of(64) == 0.0


def test_misses_far_beyond_the_usual_epochs_are_bad_luck_and_widen_no_spread():
    luck, others = luck_of([run(64, 10)] * 6, [run(64, 50, status=MISSED)] * 3)
    assert luck.missing_of(64) == pytest.approx(3 / 9, abs=0.05)
    assert luck.spread.sd < RUN_SD
    assert [each.weight for each in others[64]] == pytest.approx([0.0] * 3, abs=1e-6)
    assert luck.missing_of(128) == luck.elsewhere == pytest.approx(3 / 9, abs=0.05)


def test_a_run_that_was_stopped_near_the_usual_epochs_would_probably_have_reached_the_target():
    luck, others = luck_of([run(64, 10)] * 6, [run(64, 10, status=STOPPED)])
    assert others[64][0].weight == pytest.approx(0.45 / 0.55)
    assert luck.missing_of(64) < 0.05


def test_where_far_more_runs_fail_than_reach_the_target_the_successes_were_good_luck():
    luck, others = luck_of([run(64, 1)], [run(64, 30, status=STOPPED)] * 3)
    assert luck.missing_of(64) == 0.0
    assert [each.weight for each in others[64]] == [1.0, 1.0, 1.0]
    luck, others = luck_of([run(64, 10)] * 2, [run(64, 30, status=STOPPED)] * 3)
    assert luck.missing_of(64) > 0.4
    assert max(each.weight for each in others[64]) < 0.1


def test_what_is_said_of_a_job_that_misses_by_luck_can_come_true():
    """Reached in 4 of 6 runs, after 4 epochs of at most 12."""
    job = dataclasses.replace(problem(), max_epochs=12)
    runs = [run(64, 4), run(64, 4), run(64, 12, status=MISSED)] * 2
    believed = Auto().explain(job, runs, np.random.default_rng(0))
    (own,) = (each for each in believed if each.global_batch_size == 64)
    assert own.failure_chance == pytest.approx(1 / 3, abs=0.05)
    assert own.epochs == pytest.approx(4, abs=0.2)
    low_j, high_j = own.cost_range_j
    assert 300 < low_j < 400
    assert high_j <= 1200.001  # 12 epochs of 100 J
    assert 600 < own.cost_j < 1000  # with the run that follows a miss
    for each in believed:
        assert each.epochs <= 12
        assert each.cost_range_j[1] <= 12 * each.epoch_cost_j * 1.001
        assert math.isfinite(each.cost_j)


@pytest.mark.parametrize("cost_factor", [None, 2.0])
def test_where_nothing_ends_a_training_a_miss_costs_as_much_as_the_longest_run(cost_factor):
    """Compared by samples, epochs have no limit, and without a bound nothing else has one."""
    job = dataclasses.replace(problem(), unit=1000, cost_factor=cost_factor)
    runs = [run(64, 4), run(64, 4), run(64, 12, status=MISSED), run(32, 6)]
    believed = Auto().explain(job, runs, np.random.default_rng(0))
    (own,) = (each for each in believed if each.global_batch_size == 64)
    assert own.failure_chance > 0.2
    assert 400 < own.cost_j < 400 * (1 + 3 * 0.55)  # one run in three misses at 12 epochs
    for each in believed:
        assert all(map(math.isfinite, (*each.cost_range_j, each.cost_j, each.epochs)))
