"""What trying an arm is worth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zeusrun.bandit.auto.beliefs import HORIZON, Beliefs, values_of_trying

ARMS = (16, 32, 64)


def believed(mean, covariance, run_sd=0.1, incumbent=0, bound_factor=1.35):
    mean = np.array(mean, dtype=float)
    covariance = np.array(covariance)
    return Beliefs(
        arms=ARMS,
        log_epochs=mean,
        log_misses=0 * mean,
        log_epoch_cost=mean,
        mean=mean,
        covariance=covariance,
        speed_covariance=0 * covariance,
        speed_noise=0.0,
        run_sd=run_sd,
        bound_factor=bound_factor,
        incumbent=incumbent,
        incumbent_cost_j=1.0,
    )


def values(beliefs, in_flight=(), usable=ARMS):
    return values_of_trying(beliefs, usable, in_flight)


def independent(*sds):
    """Covariance of independent arms; 0 becomes tiny."""
    return np.diag([max(sd, 1e-6) ** 2 for sd in sds])


def test_the_gain_is_the_expected_fall_of_the_least_cost():
    """Against the integral by brute force, for one arm of independent doubt."""
    sd, doubt, mean = 0.1, 0.3, 0.05
    beliefs = believed([0, mean, 9], independent(0, doubt, 0), sd)
    move = doubt**2 / math.sqrt(doubt**2 + sd**2)
    z = np.linspace(-8, 8, 400_001)
    density = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    after = np.minimum(1.0, np.exp(mean + move * z - move**2 / 2))
    gain = 1 - float((after * density).sum() * (z[1] - z[0]))
    loss = math.exp(mean + doubt**2 / 2) - 1
    expected = HORIZON * gain - loss
    assert values(beliefs)[1] == pytest.approx(expected, rel=0.1)  # of 13 nodes


def test_what_is_known_teaches_nothing():
    beliefs = believed([0, 0.2, 0.5], independent(0, 0, 0))
    assert values(beliefs)[1] == pytest.approx(-math.expm1(0.2), rel=1e-3)


def test_everything_is_compared_with_a_run_of_the_incumbent():
    assert values(believed([0, 0, 0], np.eye(3)))[0] == 0


def test_what_a_run_of_the_incumbent_teaches_is_no_reason_to_try_another():
    """A run of a doubtful incumbent teaches as much as one of another arm, and costs no more."""
    known, doubtful = (believed([0, 0.02, 9], independent(sd, 0.1, 0)) for sd in (0, 0.2))
    assert values(known)[1] > 0 > values(doubtful)[1]


@pytest.mark.parametrize(
    ("factor", "cap"), [(1.35, 1.35), (1.2, 1.2), (None, math.exp(0.1 + 2.0) - 1)]
)
def test_the_loss_is_capped_where_the_trial_would_be_stopped(factor, cap):
    """The gain is the same for all of them."""
    doubtful = np.diag([1e-12, 4.0, 1e-12])
    found, other = (
        values(believed([0, 0.1, 9], doubtful, bound_factor=each))[1] for each in (factor, 1.0)
    )
    assert other - found == pytest.approx(cap - 1.0)


def test_memory_and_flight_rule_an_arm_out():
    found = values(believed([0, 0, 0], np.eye(3)), in_flight=(32,), usable=(16, 32))
    assert list(np.isfinite(found)) == [True, False, False]


def test_an_arm_in_flight_makes_its_neighbour_less_worth_trying():
    covariance = [[0, 0, 0], [0, 0.2, 0.19], [0, 0.19, 0.2]]
    beliefs = believed([0, 0, 0], covariance)
    assert values(beliefs, in_flight=(32,))[2] < 0.5 * values(beliefs)[2]


def test_the_incumbent_in_flight_hides_nothing():
    beliefs = believed([0, 0.1, 0.2], np.diag([0.01, 0.1, 0.1]))
    assert np.array_equal(values(beliefs, in_flight=(16,)), values(beliefs))


def test_without_an_incumbent_there_is_nothing_to_compare_with():
    with pytest.raises(ValueError, match="no incumbent"):
        values(believed([0, 0, 0], np.eye(3), incumbent=None))
