"""Injected traces give exactly the predicted batch sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.adapt.rank.agent import Rates, find_factor
from zeusrun.adapt.rank.policies import (
    POLICIES,
    Limits,
    PolicyRunner,
    TrainingObservation,
    clip,
    round_down,
)
from zeusrun.gradients.rank.noise import NoiseEstimate

LIMITS = Limits(32, 512, 2.0, ranks=2)
START = TrainingObservation(64, 64)


def play(policy, changes, limits=LIMITS, start=START):
    """Return the batch sizes that a policy decides on, one for each change of the observation."""
    sizes, observation = [], start
    for change in changes:
        proposal = POLICIES[policy](replace(observation, **change), limits)
        size = observation.batch_size if proposal is None else proposal.batch_size
        observation = replace(observation, batch_size=int(size), **change)
        sizes.append(size)
    return sizes


def noise(low, value=None, high=None, least=(8.0, 10.0)):
    return {"noise": NoiseEstimate(low, value, high), "least_noise": least}


def test_noise_scale_moves_to_the_nearest_likely_ratio_to_its_least_value():
    # Of 64: the ends of the range over those of the least one, of 8 to 10.
    trace = [
        noise(8, 9, 12),  # 0.8 to 1.5: it may be as at the least
        noise(15, 20, 30),  # 1.5 to 3.75
        noise(10, 12, 14),  # 1 to 1.75: 1.5 is likely
        noise(50, 60, 70),  # 5, at most twice
        noise(50, 60, 70),
        noise(20),  # at least 2
        noise(60),  # at least 6
        noise(16, 20, 24),  # 1.6 to 3, at most halved
        noise(16, 20, 24),
    ]
    assert play("noise-scale", trace) == [64, 96, 96, 192, 320, 320, 384, 192, 192]
    proposal = POLICIES["noise-scale"](replace(START, **trace[1]), LIMITS)
    assert proposal.reason == "the noise scale is at least 1.5 times its least value"
    proposal = POLICIES["noise-scale"](replace(START, batch_size=512, **trace[2]), LIMITS)
    assert proposal.reason == "the noise scale is at most 1.75 times its least value"


def test_noise_scale_keeps_to_the_growth():
    assert play("noise-scale", [noise(1e6)] * 2, Limits(32, 512, 1.5, 2)) == [96, 144]


@pytest.mark.parametrize(
    "unknown",
    [
        {},
        {"noise": NoiseEstimate(50, 60, 70)},
        {"least_noise": (8.0, 10.0)},
        noise(1, 2, 3, (0, 10)),  # the least one may be 0
    ],
)
def test_noise_scale_waits_for_what_it_does_not_know(unknown):
    assert POLICIES["noise-scale"](replace(START, **unknown), LIMITS) is None


def asked(*observations):
    """Return what a runner of ``noise-scale`` proposes, one for each observation."""
    runner = PolicyRunner(("noise-scale",), pytest.fail)
    proposals = [runner.propose(replace(START, **each), LIMITS) for each in observations]
    return [None if each is None else each.batch_size for each in proposals]


def test_noise_scale_changes_after_two_decisions_in_the_same_direction():
    more, much, same = noise(15, 20, 30), noise(18, 20, 30), noise(8, 9, 12)
    assert asked(more, more) == [None, 96]
    assert asked(more, much) == asked(much, more) == [None, 96]  # the smaller one
    assert asked(more, same, more, more) == [None, None, None, 96]
    assert asked(more, {}, more) == [None] * 3
    large = {"batch_size": 128}
    less = large | noise(8, 9, 12)  # at most 1.5: 96
    assert asked(less, less) == [None, 96]
    assert asked(less, large | noise(30, 40, 50), less) == [None] * 3


def test_a_noise_scale_that_stays_unknown_is_told_once():
    told = []
    runner = PolicyRunner(("noise-scale",), told.append)
    for step in range(12):
        runner.propose(replace(START, step=step, **noise(9, least=None)), LIMITS)
        assert len(told) == (step >= 5)
    assert "policy noise-scale does not change the batch size" in told[0]
    assert "unknown after 5 decisions" in told[0]


def test_a_lower_bound_is_enough_for_noise_scale_once_there_is_a_least_value():
    runner = PolicyRunner(("noise-scale",), pytest.fail)
    for step in range(12):
        proposal = runner.propose(replace(START, step=step, **noise(15)), LIMITS)
    assert proposal.batch_size == 96


def test_a_schedule_holds_from_its_epochs_on_whatever_the_growth():
    limits = Limits(32, 512, 1.1, 2, schedule=((2, 128), (4, 32), (5, 512)))
    epochs = [{"epoch": epoch} for epoch in range(1, 7)]
    assert play("schedule", epochs, limits) == [64, 128, 128, 32, 512, 512]


def test_sizes_are_shared_evenly_by_ranks_and_micro_batches():
    assert round_down(100, Limits(1, 512, ranks=3)) == 99
    assert round_down(100, Limits(1, 512, ranks=2, per_device_max=16)) == 96  # 2 x 3 x 16: 48 each
    assert round_down(2, Limits(1, 512, ranks=4)) == 4
    assert round_down(51, Limits(1, 512, per_device_max=16)) == 48  # 51 would be 4 x 12.75


def test_a_run_that_begins_outside_of_the_limits_may_stay_there():
    assert clip(1, TrainingObservation(16, 16), LIMITS) == 16
    assert clip(1, TrainingObservation(32, 16), LIMITS) == 16
    assert clip(1e9, TrainingObservation(1024, 1024), LIMITS) == 1024


scales = st.floats(0, 1e12)
ranges = st.lists(scales, min_size=3, max_size=3).map(sorted)


@given(
    noise=st.one_of(
        st.none(),
        ranges.map(lambda each: NoiseEstimate(*each)),
        scales.map(lambda low: NoiseEstimate(low, None, None)),
    ),
    least=st.one_of(st.none(), ranges.map(lambda each: (each[0], each[2]))),
    ranks=st.integers(1, 8),
    most=st.one_of(st.none(), st.integers(1, 64)),
    growth=st.floats(1.01, 64),
)
def test_a_decision_keeps_to_the_limits_whatever_is_observed(noise, least, ranks, most, growth):
    limits = Limits(8 * ranks, 512 * ranks, growth, ranks, most)
    now = 64 * ranks
    observation = TrainingObservation(now, now, noise=noise, least_noise=least)
    proposal = POLICIES["noise-scale"](observation, limits)
    if proposal is not None:
        size = proposal.batch_size
        assert size % ranks == 0
        assert limits.minimum <= size <= limits.maximum
        assert now / growth <= size <= now * growth
        steps = 1 if most is None else math.ceil(size // ranks / most)
        assert size // ranks % steps == 0
        assert proposal.reason


@pytest.mark.parametrize(("rule", "expected"), [("none", 1.0), ("linear", 4.0), ("sqrt", 2.0)])
def test_the_learning_rate_follows_the_batch_size(rule, expected):
    assert find_factor(rule, 4.0) == pytest.approx(expected)
    assert find_factor(rule, 1.0) == 1.0


class Optimizer:
    def __init__(self, **group):
        self.param_groups = [group]


def test_rates_change_for_the_length_of_a_step_only():
    rates, adam = Rates(), Optimizer(lr=0.1, betas=(0.9, 0.99))
    rates.factor = 2.0
    rates.before(adam)
    assert adam.param_groups[0] == {"lr": 0.2, "betas": (0.9, 0.99)}
    rates.after()
    assert adam.param_groups[0] == {"lr": 0.1, "betas": (0.9, 0.99)}
    assert (rates.scheduled, rates.learning_rate) == (0.1, 0.2)
