"""What ``Control`` observes and decides, without a training."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from tests.gradients.rank.test_noise import isotropic_steps
from zeusrun.adapt.rank.agent import Control
from zeusrun.gradients.rank.noise import NoiseEstimate, NoiseScale
from zeusrun.sidecar.plan import RankPlan

EVERY_EPOCH = {
    "interval": 1,
    "unit": "epoch",
    "growth": 2.0,
    "schedule": (),
    "per_device_max": None,
    "learning_rate": "none",
}


class Environment(SimpleNamespace):
    rank, world_size, epoch, plan, ran_out_of_memory = 0, 1, None, RankPlan(), False

    def record_on_0(self, event): ...


def moments(low=None, value=None, high=None):
    """Return averages whose estimate is this one."""
    estimate = None if low is None else NoiseEstimate(low, value, high)
    return SimpleNamespace(estimate=lambda _: estimate)


def train(policy, noises):
    """Train an epoch of four steps with each noise scale; return the batch sizes."""
    now = [moments()]
    plan = {**EVERY_EPOCH, "policies": [policy], "minimum": 64, "maximum": 512}
    control = Control(Environment(), plan, lambda: now[0])
    control.prepare(64)
    sizes = []
    for noise in noises:
        now[0] = noise
        control.begin_epoch(control, None, 4096, drop_last=False)
        sizes.append(control.batch_size)
        for _ in range(4):
            control.after_step(control.batch_size, last=False)
        control.after_epoch()
    return sizes


def test_the_noise_scale_is_compared_with_its_least_value_so_far():
    noises = [moments(), moments(30), moments(16, 20, 25), moments(8, 9, 10), moments(20, 22, 30)]
    # From 10 on at least twice: 20 / 10; two decisions later it is 3 times.
    noises += [moments(20, 22, 30), moments(30, 33, 36), moments(30, 33, 36), moments(7, 8, 9)]
    assert train("noise-scale", noises) == [64] * 5 + [128, 128, 192, 192]


def simulate(seed, noise_at, data=2000, decisions=40):
    """Return the batch sizes over 16 of a training with a decision an epoch.

    ``noise_at``: returns the noise scale at a decision.
    """
    generator, scale = np.random.default_rng(seed), NoiseScale(data)
    plan = {**EVERY_EPOCH, "policies": ["noise-scale"], "minimum": 4, "maximum": 4096}
    control = Control(Environment(), plan, lambda: scale)
    control.prepare(16)
    sizes = []
    for decision in range(decisions):
        control.begin_epoch(control, None, data, drop_last=False)
        size, noise = control.batch_size, noise_at(decision)
        for norms in isotropic_steps(generator, 2, 1000, noise, data // size, share=size / 2):
            scale.add(norms)
            control.after_step(size, last=False)
        control.after_epoch()
        sizes.append(size / 16)
    return sizes


@pytest.mark.parametrize(
    ("data", "seeds"),
    [(500, 4), (2000, 2), (8000, 1), pytest.param(500, 100, marks=pytest.mark.long)],  # more seeds
)
@pytest.mark.parametrize("noise", [50, 250, 400, 1000])  # with 8 samples a rank, 250 is the limit
def test_a_constant_noise_scale_leaves_the_batch_size(data, seeds, noise):
    for seed in range(seeds):
        sizes = simulate(seed, lambda _: noise, data)
        assert max(sizes) <= 1.1
        assert min(sizes) >= 1 / 1.1


@pytest.mark.parametrize("seed", range(4))
def test_the_batch_size_follows_a_noise_scale_that_rises_tenfold(seed):
    sizes = simulate(seed, lambda decision: 50 * 10 ** (decision / 39))
    assert 4 <= sizes[-1] <= 11
    assert sizes == sorted(sizes)


@pytest.mark.parametrize("seed", range(4))
def test_the_batch_size_shrinks_with_a_noise_scale_that_falls_again(seed):
    sizes = simulate(seed, lambda decision: 50 * (10 if 10 < decision < 25 else 2))
    assert max(sizes) >= 3.5
    assert sizes[-1] <= max(sizes) / 2
    assert sizes[-1] >= 1 / 1.1
