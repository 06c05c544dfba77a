from __future__ import annotations

import numpy as np
import pytest

from zeusrun.bandit.tally import believe
from zeusrun.bandit.zeus.policy import chances, draw_j


def test_one_cost_is_believed_with_the_prior_spread():
    belief = believe([100.0])
    assert (belief.runs, belief.mean_j) == (1, 100.0)
    assert belief.sd_j == pytest.approx(14.0)
    assert belief.sd_of_mean_j == pytest.approx(14.0)


def test_what_is_believed_of_the_mean_narrows_with_runs():
    spreads = [believe([90.0, 110.0] * n).sd_of_mean_j for n in (1, 5, 50)]
    assert spreads == sorted(spreads, reverse=True)
    assert spreads[-1] > 0


def test_several_costs_have_the_spread_of_their_population():
    costs = np.random.default_rng(1).normal(100, 40, 20).tolist()
    assert believe(costs).sd_j == pytest.approx(np.std(costs))


def test_the_range_of_the_next_run_is_wider_than_that_of_runs_and_never_negative():
    low, high = believe([90.0, 110.0]).range_j
    assert (low, high) == pytest.approx((100 - 1.645 * 150**0.5, 100 + 1.645 * 150**0.5))
    assert believe([1.0, 1000.0]).range_j[0] == 0.0


def test_a_cost_of_zero_can_be_drawn_from():
    assert draw_j({16: believe([0.0])}, np.random.default_rng(0)) == {16: 0.0}


def test_chances_agree_with_the_exact_probability_of_two_gaussians():
    beliefs = {32: believe([100.0]), 64: believe([114.0])}
    # Difference of means 14, of variances 14^2 + 15.96^2: P(Z < 14 / 21.23) = 0.745.
    assert chances(beliefs, np.random.default_rng(0))[32] == pytest.approx(0.745, abs=0.03)
