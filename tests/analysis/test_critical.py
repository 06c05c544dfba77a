"""The critical batch size, fitted to epochs that follow the law."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from zeusrun.analysis.critical import fit_critical

RUN_SD = 0.14


def evidence(critical, sizes, runs, generator=None):
    """Return what runs of these batch sizes have taken, if the critical one is this."""
    reached = {}
    for size in sizes:
        logs = np.zeros(runs) if generator is None else RUN_SD * generator.normal(size=runs)
        epochs = [10 * (1 + size / critical) * math.exp(log) for log in logs]
        # Epochs are whole numbers.
        reached[size] = [SimpleNamespace(weight=1.0, epochs_today=max(1, round(e))) for e in epochs]
    return SimpleNamespace(reached=reached, run_sd=RUN_SD)


@pytest.mark.parametrize("critical", [20, 170, 2000])
@pytest.mark.parametrize(
    ("sizes", "runs"),
    [([32, 64, 128, 256], 2), ([16, 32, 64, 128, 256, 512], 3), ([64, 128], 2)],
)
def test_its_range_has_the_truth(critical, sizes, runs):
    generator = np.random.default_rng(0)
    found = [fit_critical(evidence(critical, sizes, runs, generator)) for _ in range(200)]
    inside = [(low or 0) <= critical <= (high or math.inf) for low, _, high, _ in found]
    assert np.mean(inside) >= 0.85
    assert all((low or 0) < value < (high or math.inf) for low, value, high, _ in found)
    if len(sizes) == 6 and critical == 170:
        assert np.median([high / low for low, _, high, _ in found]) < 4
        assert np.median([each.value for each in found]) == pytest.approx(170, rel=0.1)


def test_where_no_batch_size_is_as_large_it_is_at_least_so_much():
    low, _, high, sizes = fit_critical(evidence(100_000, [32, 64, 128, 256], 5))
    assert low > 256
    assert (high, sizes) == (None, 4)


def test_the_largest_batch_size_tells_how_far_beyond_it_the_critical_one_may_be():
    low, value, high, _ = fit_critical(evidence(100_000, [16, 1024], 5))
    assert 1024 < low < value
    assert high is None


def test_where_every_batch_size_is_larger_it_is_at_most_so_much():
    low, _, high, _ = fit_critical(evidence(1, [64, 128, 256, 512], 5))
    assert low is None
    assert high < 64


def test_three_runs_of_two_batch_sizes_are_the_least_that_say_anything():
    for runs, known in (({64: 1, 512: 1}, False), ({64: 2, 512: 1}, True), ({64: 3}, False)):
        reached = {size: evidence(100, [size], n).reached[size] for size, n in runs.items()}
        reached[1024] = []  # nothing reached the target
        found = fit_critical(SimpleNamespace(reached=reached, run_sd=RUN_SD))
        assert (found is not None) is known
        assert not known or found.sizes == 2


def test_two_near_batch_sizes_say_next_to_nothing():
    low, _, high, _ = fit_critical(evidence(100, [64, 68], 2))
    assert (low, high) == (None, None)


@pytest.mark.parametrize(
    ("sizes", "runs", "known"), [([64], 9, False), ([64, 128], 1, False), ([64, 128], 2, True)]
)
def test_it_needs_three_runs_of_two_batch_sizes(sizes, runs, known):
    assert (fit_critical(evidence(100, sizes, runs)) is not None) == known


def test_a_batch_size_without_a_run_that_reached_the_target_does_not_count():
    found = evidence(100, [64, 128, 256], 2)
    low, value, high, _ = fit_critical(found)
    assert (low, value, high) == pytest.approx((17.08, 80.96, 249.6), rel=0.01)
    found.reached[256] = []
    assert fit_critical(found).sizes == 2


def test_old_runs_weigh_less():
    found = evidence(100, [32, 64, 128, 256], 3)
    plain = fit_critical(found)
    for run in found.reached[256][:2]:
        run.epochs_today, run.weight = 500, 1e-6
    assert fit_critical(found).value == pytest.approx(plain.value, rel=0.2)
