"""Every family is what it says it is, whatever the seed."""

from __future__ import annotations

import functools
import math

import pytest

from benchmarks.study import Scenario
from benchmarks.synthetic import FAMILIES
from zeusrun.simulate.engine import best_arm, expected

pytestmark = pytest.mark.long  # 10 s of CPU, for what benchmarks alone use
SEEDS = 50
MOST = 0.8 * SEEDS


@functools.cache
def jobs(family):
    scenario = Scenario(family, FAMILIES[family])
    return [scenario.build(seed) for seed in range(SEEDS)]


def costs_j(job, recurrence=1):
    return [expected(job, arm, 0.5, recurrence).cost_j for arm in job.arms]


def valleys(costs):
    edged = [math.inf, *costs, math.inf]
    triples = zip(edged, costs, edged[2:], strict=False)
    return sum(left > here < right or (left > here == right) for left, here, right in triples)


@pytest.mark.parametrize("family", sorted(FAMILIES.keys() - {"glide"}))
def test_the_default_reaches_in_every_era(family):
    for job in jobs(family):
        assert job.default in job.arms
        for first, _ in job.eras:
            curves = job.curves(job.default, first)
            reached = sum(curve.epochs is not None for curve in curves)
            assert reached >= 0.9 * len(curves)


def test_the_default_is_best():
    assert all(best_arm(job, 0.5, 1) == job.default for job in jobs("default-best"))


def test_only_the_default_reaches():
    for job in jobs("only-default"):
        finite = [arm for arm, cost in zip(job.arms, costs_j(job), strict=True) if cost < math.inf]
        assert finite == [job.default]


def test_the_best_is_at_an_edge():
    assert all(best_arm(job, 0.5, 1) in {job.arms[0], job.arms[-1]} for job in jobs("edge"))


def test_most_have_two_valleys():
    assert sum(valleys(costs_j(job)) == 2 for job in jobs("bimodal")) >= MOST
    assert sum(valleys(costs_j(job)) == 1 for job in jobs("law")) >= MOST


def test_runs_of_one_batch_size_differ_by_a_factor():
    for job in jobs("heavy-noise"):
        epochs = sorted(curve.epochs or job.max_epochs for curve in job.curves(job.default, 1))
        assert epochs[-1] >= 1.5 * epochs[0]


def test_the_best_glides_over_three_to_six_doublings_and_leaves_the_default_behind():
    left = 0
    for job in jobs("glide"):
        assert expected(job, job.default, 0.5, 1).cost_j < math.inf
        doublings = []
        for _, curves in job.eras:
            reach = [math.log2(arm) for arm in job.arms if any(c.epochs for c in curves[arm])]
            assert reach
            doublings.append(sum(reach) / len(reach))
        assert 2 <= abs(doublings[-1] - doublings[0]) <= 7
        left += expected(job, job.default, 0.5, 50).cost_j == math.inf
    assert left >= MOST


@pytest.mark.parametrize("family", ["drift", "creep", "glide"])
def test_the_best_moves(family):
    made = jobs(family)
    ends = [(best_arm(job, 0.5, 1), best_arm(job, 0.5, job.eras[-1][0])) for job in made]
    assert sum(first != last for first, last in ends) >= MOST


def test_drift_is_one_step_and_creep_are_many():
    assert all(len(job.eras) == 2 and 12 <= job.eras[1][0] < 30 for job in jobs("drift"))
    creeping = [Scenario("creep", FAMILIES["creep"]).build(seed) for seed in range(5)]
    assert all([first for first, _ in job.eras] == [*range(1, 50, 5)] for job in creeping)
