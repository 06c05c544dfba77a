"""A staircase becomes energy over any window, and a long series stays bounded."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.energy.counter import CounterAccount
from zeusrun.energy.series import EnergySeries

PERIOD_S = 0.1


def used_j(time_s, watts, half_period_s):
    """Energy since 0 of a GPU that draws one power and then the other, in turn."""
    turns, rest_s = divmod(time_s, 2 * half_period_s)
    first_s = min(rest_s, half_period_s)
    whole_j = turns * half_period_s * sum(watts)
    return whole_j + first_s * watts[0] + (rest_s - first_s) * watts[1]


def look_at_staircase(step_s, watts, half_period_s, generator, seconds=40.0):
    """Look ten times a second, with a little jitter, at a counter that moves every ``step_s``."""
    counter = CounterAccount(is_model=False)
    phase_s = generator.uniform(0, step_s)
    for number in range(int(seconds / PERIOD_S)):
        time_s = 100 + number * PERIOD_S + generator.uniform(0, 0.002)
        moved_s = time_s - (time_s - phase_s) % step_s
        power_w = watts[int(time_s / half_period_s) % 2]
        counter.look(time_s, used_j(moved_s, watts, half_period_s), power_w)
    return counter.series


def errors_j(step_s, watts, half_period_s=3.0, trials=100):
    """Errors of windows of 10 s that begin anywhere, on staircases of any phase."""
    generator = random.Random(7)
    found = []
    for _ in range(trials):
        series = look_at_staircase(step_s, watts, half_period_s, generator)
        since_s = generator.uniform(100.0, 129.0)
        true_j = used_j(since_s + 10, watts, half_period_s) - used_j(since_s, watts, half_period_s)
        found.append(series.energy_j(since_s, since_s + 10) - true_j)
    return found


@pytest.mark.parametrize("watts", [(300.0, 300.0), (70.0, 300.0)])
@pytest.mark.parametrize("step_s", [0.02, 0.05, 0.0997, 0.1, 0.1003, 0.15, 1.0])
def test_a_window_is_off_by_no_more_than_a_step_of_the_counter_and_not_biased(step_s, watts):
    errors = errors_j(step_s, watts)
    one_step_j = max(step_s, PERIOD_S) * max(watts)
    assert max(map(abs, errors)) <= one_step_j
    spread_j = statistics.stdev(errors)
    assert spread_j < one_step_j / 2
    assert abs(statistics.mean(errors)) < 4 * spread_j / len(errors) ** 0.5 + 1e-6


def test_a_counter_that_moves_once_a_second_is_as_good_as_the_looks_are_close():
    assert max(map(abs, errors_j(1.0, (300.0, 300.0)))) <= 300.0 * (PERIOD_S + 0.01)


def test_the_first_look_may_come_just_before_a_step_that_tells_a_second():
    series = EnergySeries()
    series.add(0.0, 5000.0)  # 0.9 s of 200 W are not told yet
    series.wait(0.05)
    series.add(0.1, 5200.0)
    for number in range(1, 11):
        series.wait(number + 0.05)
        series.add(number + 0.1, 5200.0 + number * 200.0)
    assert series.energy_j(0.0, 10.0) == pytest.approx(2000.0)


def test_what_the_first_step_told_is_an_upper_bound_on_the_correction():
    series = EnergySeries()
    series.add(0.0, 100.0)
    series.wait(0.5)
    series.add(1.0, 110.0)
    series.add(2.0, 310.0)
    assert series.energy_j(0.0, 1.0) == 10.0


def test_a_window_reaches_to_the_latest_look_though_the_counter_waits():
    series = EnergySeries()
    for number in range(5):
        series.add(float(number), number * 100.0)
    for number in range(1, 10):
        series.wait(4 + number / 10)
    assert series.energy_j(0.0, 4.9) == pytest.approx(490.0)


def test_a_gpu_asleep_uses_nothing_and_wakes_up_where_it_fell_asleep():
    series = EnergySeries()
    series.add(0.0, 0.0)
    series.add(1.0, 100.0)
    for number in range(2, 1000):
        series.rest(float(number))
    series.add(1000.0, 200.0)
    assert len(series) == 4  # a rest is its two ends
    assert series.energy_j(1.0, 999.0) == 0.0
    assert series.energy_j(999.0, 1000.0) == 100.0


def test_a_long_series_stays_bounded_and_keeps_its_energy():
    series = EnergySeries(max_samples=2000)
    for number in range(100_000):
        series.add(number / 10, number * 5.0)
    assert len(series) <= 2000
    assert series.energy_j(0.0, 9999.9) == pytest.approx(50.0 * 9999.9)
    for start_s in range(0, 9990, 333):
        assert series.energy_j(start_s, start_s + 9.0) == pytest.approx(450.0)


def test_thinning_leaves_samples_evenly_spread():
    series = EnergySeries(max_samples=2000)
    for number in range(100_000):
        series.add(number / 10, 0.0)
    times_s = list(series._times_s)
    older_s = [time_s for time_s in times_s if time_s < times_s[-1] - 600]
    widest_s = max(after - before for before, after in itertools.pairwise(older_s))
    assert widest_s < 30


def test_a_series_that_fills_up_within_a_minute_is_thinned_no_more_than_it_must():
    series = EnergySeries(max_samples=1000)
    for number in range(10_000):
        series.add(number / 1000, number * 1.0)
        assert len(series) <= 1000
    assert series.energy_j(0.0, 9.999) == pytest.approx(9999.0)


looks = st.lists(
    st.tuples(st.floats(0.01, 3.0), st.sampled_from([0.0, 0.0, 7.0, 300.0]), st.booleans()),
    min_size=3,
    max_size=60,
)


@given(looks, st.lists(st.floats(0.0, 1.0), min_size=4, max_size=4))
def test_windows_add_up_and_a_longer_one_never_holds_less(looks, places):
    series = EnergySeries(max_samples=20)
    time_s = energy_j = 0.0
    series.add(time_s, energy_j)
    for step_s, joules, at_rest in looks:
        time_s += step_s
        energy_j += joules
        if joules:
            series.add(time_s, energy_j)
        elif at_rest:
            series.rest(time_s)
        else:
            series.wait(time_s)
    if len(series) < 2:
        return
    one_s, two_s, three_s, four_s = sorted(place * time_s for place in places)
    inner_j = series.energy_j(two_s, three_s)
    whole_j = series.energy_j(one_s, four_s)
    parts_j = series.energy_j(one_s, two_s) + inner_j + series.energy_j(three_s, four_s)
    assert parts_j == pytest.approx(whole_j, rel=1e-6, abs=1e-6)
    assert -1e-6 <= inner_j <= whole_j + 1e-6


def test_energy_of_a_series_without_two_samples_is_unknown():
    series = EnergySeries()
    assert series.energy_j(0.0, 0.0) is None
    series.add(0.0, 1.0)
    series.wait(0.1)
    assert series.energy_j(0.0, 0.1) is None
    assert series.power_w() is None
