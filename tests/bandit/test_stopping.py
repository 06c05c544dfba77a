"""When a running trial is hopeless."""

from __future__ import annotations

import pytest

from zeusrun.bandit.problem import Running
from zeusrun.bandit.stopping import hopeless, share_done
from zeusrun.trial import Bound

PACE = ((1, 0.3), (4, 0.6), (9, 0.95))


def test_without_a_bound_or_a_cost_it_goes_on():
    assert hopeless(None, "max", Running(3, 1e9, 0.1)) is None
    assert hopeless(Bound(10.0), "max", Running(3, None, 0.1)) is None


def test_a_bound_that_is_passed_stops():
    assert "passed the bound of 10.0 J" in hopeless(Bound(10.0), "max", Running(3, 10.5, 0.1))


def test_it_stops_before_an_epoch_that_does_not_fit():
    assert hopeless(Bound(10.0), "max", Running(3, 7.5, 0.1)) is None
    assert "one more epoch would pass" in hopeless(Bound(10.0), "max", Running(3, 7.6, 0.1))


@pytest.mark.parametrize(
    ("best", "share"), [(None, 2 / 9), (0.2, 2 / 9), (0.3, 5 / 9), (0.6, 1.0), (0.99, 1.0)]
)
def test_the_way_is_measured_by_runs_that_went_it_and_an_epoch_is_granted(best, share):
    assert share_done((PACE,), "max", best) == pytest.approx(share)


def test_the_way_of_several_runs_is_their_mean():
    assert share_done((PACE, ((1, 0.95),)), "max", 0.2) == pytest.approx((2 / 9 + 1) / 2)


def test_a_minimised_metric_comes_down():
    pace = ((1, 9.0), (4, 6.0), (9, 2.0))
    assert share_done((pace,), "min", 9.5) == pytest.approx(2 / 9)
    assert share_done((pace,), "min", 9.0) == pytest.approx(5 / 9)


def test_a_trial_that_lags_behind_is_held_to_its_share():
    bound = Bound(100.0, (PACE,))
    of_samples = hopeless(bound, "max", Running(12, 60.0, 0.3, 250))
    assert of_samples.startswith("after 3,000 samples it has come 56 % of the way")
    assert hopeless(bound, "max", Running(10, 50.0, 0.3)) is None
    why = hopeless(bound, "max", Running(12, 60.0, 0.3))
    assert why == (
        "after 12 epochs it has come 56 % of the way at most, and has used 60 % of its bound, 100 J"
    )
