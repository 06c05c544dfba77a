"""The noise scale from squared norms: gradients whose mean and covariance are known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from zeusrun.worker.stats.noise import Average, NoiseScale, Norms

STEPS = 200
SHARE = 32  # samples of a rank


def isotropic_steps(generator, ranks, dimension, noise_scale):
    """Yield norms of steps with |G|² = 1 and Σ = noise_scale / dimension · I."""
    deviation = math.sqrt(noise_scale / dimension / SHARE)
    for _ in range(STEPS):
        along = 1 + deviation * generator.normal(size=ranks)
        # Across G, the squared length of the mean and what is left of the ranks' are independent.
        mean = deviation**2 / ranks * generator.chisquare(dimension - 1)
        rest = deviation**2 * generator.chisquare((ranks - 1) * (dimension - 1))
        each = np.mean(along**2) + mean + rest / ranks
        yield Norms(each, np.mean(along) ** 2 + mean, 1 / SHARE, ranks)


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("dimension", [1000, 1_000_000])
@pytest.mark.parametrize("ratio", [0.05, 0.5, 5, 50, None])
def test_it_is_within_a_fifth_over_three_decades(ranks, dimension, ratio):
    # In theory the 95th percentile is at 1.24 for two ranks and 1.5 · √dimension.
    bound = (1.5 if ranks > 2 else 1.2) * math.sqrt(dimension)
    noise_scale = SHARE * min(bound, bound if ratio is None else ratio)
    generator, found = np.random.default_rng(7), []
    for _ in range(50):
        scale = NoiseScale(0.01)
        for norms in isotropic_steps(generator, ranks, dimension, noise_scale):
            assert scale.add(norms)
        found.append(scale.value / noise_scale)
    low, median, high = np.percentile(found, [5, 50, 95])
    assert median == pytest.approx(1, abs=0.05)
    assert low > 0.8
    assert high < 1.2


def test_ranks_may_have_different_numbers_of_samples():
    generator, scale = np.random.default_rng(1), NoiseScale(0.01)
    gradient, shares = np.full(500, 0.1), np.array([8, 4, 1])
    for _ in range(3000):
        own = gradient + generator.normal(size=(3, 500)) / np.sqrt(shares)[:, None]
        norms = [np.sum(own**2) / 3, np.sum(own.mean(axis=0) ** 2)]
        scale.add(Norms(*norms, float(np.mean(1 / shares)), 3))
    assert scale.value == pytest.approx(500 / 5, rel=0.1)


def test_it_is_unknown_while_the_gradient_cannot_be_told_from_noise():
    generator, scale, known = np.random.default_rng(2), NoiseScale(0.01), []
    assert scale.value is None
    for norms in isotropic_steps(generator, 2, 1000, 1e6):
        scale.add(norms)
        known.append(scale.value)
    assert known[0] is None
    assert sum(value is not None for value in known) < STEPS / 10
    assert all(value >= 0 for value in known if value is not None)


def test_what_is_not_finite_is_dropped():
    scale = NoiseScale(0.5)
    for value in (math.nan, math.inf, -math.inf):
        assert not scale.add(Norms(value, 1.0, 0.1, 2))
        assert not scale.add(Norms(1.0, value, 0.1, 2))
    assert scale.trace.value is None


def test_an_average_is_that_of_exponential_weights():
    values = np.random.default_rng(3).normal(size=50)
    average = Average(0.1)
    for value in values:
        average.add(value)
    weights = 0.9 ** np.arange(49, -1, -1)
    assert average.value == pytest.approx(np.average(values, weights=weights))
    assert 0.1 < average.error < 0.5
    constant = Average(0.1)
    constant.add(2.0)
    assert math.isnan(constant.error)
    constant.add(2.0)
    assert constant.error == pytest.approx(0.0, abs=1e-7)


@pytest.mark.parametrize("alpha", [1e-9, 1 - 1e-9])
@pytest.mark.parametrize("value", [0.0, 1e-300, 1e200, -1e300])
def test_an_extreme_value_raises_nothing(alpha, value):
    scale = NoiseScale(alpha)
    for number in (value, -value, value):
        scale.add(Norms(number, 1.0, 0.1, 2))
    assert scale.value is None or scale.value >= 0
