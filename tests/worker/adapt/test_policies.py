"""Injected traces give exactly the predicted batch sizes."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.worker.adapt.policies import (
    POLICIES,
    Limits,
    Observation,
    clip,
    decide,
    find_candidates,
    round_down,
    split,
    step_time_s,
)
from zeusrun.worker.adapt.rates import Rates, find_factor

LIMITS = Limits(32, 512, 2.0, ranks=2)
START = Observation(64, 64)


def play(policy, changes, limits=LIMITS, start=START):
    """Return the batch sizes that a policy decides on, one for each change of the observation."""
    sizes, observation = [], start
    for change in changes:
        proposal = decide(policy, replace(observation, **change), limits)
        size = observation.batch_size if proposal is None else proposal.batch_size
        observation = replace(observation, batch_size=int(size), **change)
        sizes.append(size)
    return sizes


def noise(*values):
    return [{"noise_scale": value, "first_noise_scale": 10.0} for value in values]


def test_noise_scale_follows_its_ratio_to_the_first_value_and_never_shrinks():
    # 64 times 1, 1.5, 1.51, 5 (at most twice), 5, 5, 2, unknown, 1e9 (at most 512)
    trace = noise(10, 15, 15.1, 50, 50, 50, 20, None, 1e9)
    assert play("noise-scale", trace) == [64, 96, 96, 192, 320, 320, 320, 320, 512]


def test_noise_scale_keeps_to_the_growth():
    assert play("noise-scale", noise(1e6, 1e6), Limits(32, 512, 1.5, 2)) == [96, 144]


@pytest.mark.parametrize("value", [None, 0.0])
def test_noise_scale_waits_for_a_first_value(value):
    assert (
        decide("noise-scale", replace(START, noise_scale=5, first_noise_scale=value), LIMITS)
        is None
    )


def test_double_on_rise_doubles_after_an_epoch_above_the_one_before():
    sums = [(), (5.0,), (5.0, 5.0), (5.0, 6.0), (6.0, 4.0), (4.0, 4.1), (4.1, 9.0), (9.0, 10.0)]
    sizes = play("double-on-rise", [{"epoch_sums": each} for each in sums])
    assert sizes == [64, 64, 64, 128, 128, 256, 512, 512]


def test_seesaw_doubles_where_the_schedule_halves_the_learning_rate():
    rates = [0.01, 0.1, 0.06, 0.05, 0.0499, 0.025, 0.001, 0.001]  # a warm-up first
    highest = [0.01, *[0.1] * 7]
    trace = [{"rate": pair} for pair in zip(rates, highest, strict=True)]
    assert play("seesaw", trace) == [64, 64, 64, 128, 128, 256, 512, 512]
    assert decide("seesaw", replace(START, rate=(0.0, 0.1)), LIMITS) is None


def test_seesaw_with_the_root_of_the_batch_size_divides_the_rate_by_the_root_of_2():
    scheduled, first = 0.05, 64
    size = decide("seesaw", replace(START, rate=(scheduled, 0.1)), LIMITS).batch_size
    factor = find_factor("sqrt", size / first, first, None, None)
    assert scheduled * factor == pytest.approx(0.1 / math.sqrt(2))


def test_norm_test_keeps_the_noise_of_the_mean_gradient_below_a_fifth_of_its_norm():
    # trace / (0.04 (|G|² + trace / B)): with |G|² = 1, trace 4, B = 64: 94.1, so 94
    trace = [{"trace": 4.0, "squared_gradient": 1.0}]
    assert play("norm-test", trace) == [94]
    assert play("norm-test", trace * 2, Limits(32, 512, 8, 2)) == [94, 94]
    assert play("norm-test", [{"trace": 2.0, "squared_gradient": 1.0}]) == [64]  # it holds
    assert play("norm-test", [{"trace": 1e6, "squared_gradient": -1.0}] * 4) == [128, 256, 512, 512]
    for unknown in (
        {},
        {"trace": -1.0, "squared_gradient": 1.0},
        {"trace": 64.0, "squared_gradient": -1.0},
    ):
        assert play("norm-test", [unknown]) == [64]


def test_goodput_takes_a_larger_one_while_throughput_gains_more_than_efficiency_loses():
    # Steps of constant time: with noise 64, size (64 + 64) / (64 + size): 64: 64, 128: 85.3.
    change = {"noise_scale": 64.0, "step_s": {64: 0.1}}
    assert play("goodput", [change]) == [128]
    # Time in proportion to the size: a smaller one learns more from each sample.
    assert play("goodput", [{"noise_scale": 64.0, "step_s": {64: 0.1, 128: 0.2}}]) == [32]
    # Back, if the larger one has proved slow.
    slow = {"noise_scale": 64.0, "step_s": {64: 0.1, 128: 0.25}}
    assert play("goodput", [slow], start=replace(START, batch_size=128)) == [64]


def test_goodput_changes_nothing_for_5_percent():
    for gain, size in ((1.049, 64), (1.051, 128)):
        # Only 64 and 128 are in the limits; goodput(128) / goodput(64) is the gain.
        ratio = 2 * (64 + 64) / (64 + 128)
        change = {"noise_scale": 64.0, "step_s": {64: 0.1, 128: 0.1 * ratio / gain}}
        assert play("goodput", [change], Limits(64, 128, 4.0, 2)) == [size]


def test_the_grid_of_goodput_is_geometric_from_the_first_batch_size():
    assert find_candidates(START, LIMITS) == [32, 44, 64, 90, 128]
    assert find_candidates(START, Limits(32, 512, 16.0, 2)) == [64, 256]
    assert find_candidates(START, Limits(64, 64, 2.0, 2)) == [64]


def test_step_times_are_a_constant_and_a_part_for_each_sample():
    assert step_time_s(64, {32: 0.5}) == 0.5
    assert step_time_s(128, {32: 0.3, 64: 0.5}) == pytest.approx(0.9)
    assert step_time_s(64, {32: 0.3, 64: 0.7}) == 0.7
    assert step_time_s(16, {32: 0.1, 64: 0.9}) == pytest.approx(16 * (3.2 + 57.6) / (32**2 + 64**2))
    assert step_time_s(16, {32: 0.5, 64: 0.3}) == pytest.approx(0.4)


def test_a_schedule_holds_from_its_epochs_on_whatever_the_growth():
    limits = Limits(32, 512, 1.1, 2, schedule=((2, 128), (4, 32), (5, 512)))
    epochs = [{"epoch": epoch} for epoch in range(1, 7)]
    assert play("schedule", epochs, limits) == [64, 128, 128, 32, 512, 512]


def test_sizes_are_shared_evenly_by_ranks_and_micro_batches():
    assert round_down(100, Limits(1, 512, ranks=3)) == 99
    assert round_down(100, Limits(1, 512, ranks=2, per_device_max=16)) == 96  # 2 x 3 x 16: 48 each
    assert round_down(2, Limits(1, 512, ranks=4)) == 4
    assert split(50, 16) == (13, 4)
    assert split(48, 16) == (16, 3)
    assert split(50, None) == (50, 1)


def test_a_run_that_begins_outside_of_the_limits_may_stay_there():
    assert clip(1, Observation(16, 16), LIMITS, may_shrink=True) == 16
    assert clip(1, Observation(32, 16), LIMITS, may_shrink=True) == 16
    assert clip(1e9, Observation(1024, 1024), LIMITS, may_shrink=False) == 1024


anything = st.one_of(st.none(), st.floats(-1e12, 1e12))


@given(
    policy=st.sampled_from([name for name in POLICIES if name != "schedule"]),
    noise_scale=st.one_of(st.none(), st.floats(0, 1e12)),
    first=st.one_of(st.none(), st.floats(0, 1e12)),
    trace=anything,
    square=anything,
    sums=st.lists(st.floats(0, 1e9), max_size=2),
    rate=st.one_of(st.none(), st.tuples(st.floats(0, 1), st.floats(1, 2))),
    times=st.dictionaries(st.integers(1, 4096), st.floats(1e-6, 1e3)),
    ranks=st.integers(1, 8),
    most=st.one_of(st.none(), st.integers(1, 64)),
    growth=st.floats(1.01, 64),
)
def test_a_decision_keeps_to_the_limits_whatever_is_observed(  # noqa: PLR0917
    policy, noise_scale, first, trace, square, sums, rate, times, ranks, most, growth
):
    limits = Limits(8 * ranks, 512 * ranks, growth, ranks, most)
    now = 64 * ranks
    observation = Observation(
        *(now, now),
        noise_scale=noise_scale,
        first_noise_scale=first,
        epoch_sums=tuple(sums),
        step_s=times,
        trace=trace,
        squared_gradient=square,
        rate=rate,
    )
    proposal = decide(policy, observation, limits)
    if proposal is not None:
        size = proposal.batch_size
        assert size % ranks == 0
        assert limits.least <= size <= limits.most
        assert now / growth <= size <= now * growth
        assert size > now or policy == "goodput"
        _, steps = split(size // ranks, most)
        assert size // ranks % steps == 0
        assert proposal.reason


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        ("none", 1.0),
        ("linear", 4.0),
        ("sqrt", 2.0),
        # (tr Σ / 64 + |G|²) / (tr Σ / 256 + |G|²), with tr Σ = 256, |G|² = 1
        ("adascale", 2.5),
    ],
)
def test_the_learning_rate_follows_the_batch_size(rule, expected):
    assert find_factor(rule, 4.0, 64, 256.0, 1.0) == pytest.approx(expected)
    assert find_factor(rule, 1.0, 64, None, None) == 1.0


def test_the_gain_of_adascale_is_between_1_and_the_ratio():
    assert find_factor("adascale", 4.0, 64, 256.0, 0.0) == 4.0
    assert find_factor("adascale", 4.0, 64, 1e-9, 1.0) == pytest.approx(1.0)
    assert find_factor("adascale", 4.0, 64, None, 1.0) is None
    assert find_factor("adascale", 4.0, 64, -1.0, 1.0) is None
    assert find_factor("adascale", 0.5, 64, 64.0, 1.0) == pytest.approx(2 / 3)


class Optimizer:
    def __init__(self, **group):
        self.param_groups = [group]


def test_rates_change_for_the_length_of_a_step_only():
    rates, adam = Rates(), Optimizer(lr=0.1, betas=(0.9, 0.99))
    rates.factor, rates.power = 2.0, 4.0
    rates.before(adam)
    assert adam.param_groups[0] == {"lr": 0.2, "betas": (0.9, 0.99**4)}
    rates.after()
    assert adam.param_groups[0] == {"lr": 0.1, "betas": (0.9, 0.99)}
    assert (rates.scheduled, rates.highest, rates.learning_rate) == (0.1, 0.1, 0.2)


def test_tokens_keep_the_half_life_of_beta2_in_samples():
    rates, adam = Rates(), Optimizer(lr=0.1, betas=(0.9, 0.95))
    rates.power = 512 / 64
    rates.before(adam)
    steps = [math.log(0.5) / math.log(beta) for beta in (0.95, adam.param_groups[0]["betas"][1])]
    assert steps[0] * 64 == pytest.approx(steps[1] * 512)
