"""Energy over any window, from samples and from a staircase; the limit in force for longest."""

from __future__ import annotations

import itertools
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.energy.device_energy import CounterAccount, PowerAccount
from zeusrun.energy.monitor import LimitSeries
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
        counter.add(time_s, used_j(moved_s, watts, half_period_s), power_w)
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


def series_of(times_s, energies_j):
    series = EnergySeries()
    for time_s, energy_j in zip(times_s, energies_j, strict=True):
        series.add(time_s, energy_j)
    return series


def energy_between(times_s, energies_j, since_s, until_s):
    return series_of(times_s, energies_j).energy_j(since_s, until_s)


def recent_power_w(times_s, energies_j):
    return series_of(times_s, energies_j).power_w()


steps_s = st.lists(st.floats(0.01, 10.0), min_size=2, max_size=30)


def cumulate(values, start=0.0):
    total, totals = start, []
    for value in values:
        total += value
        totals.append(total)
    return totals


@st.composite
def tracks(draw):
    times_s = cumulate(draw(steps_s), start=draw(st.floats(-100.0, 100.0)))
    count = len(times_s)
    joules = draw(st.lists(st.floats(0.0, 1e4), min_size=count, max_size=count))
    return times_s, cumulate(joules)


@st.composite
def tracks_and_moments(draw, count):
    times_s, energies_j = draw(tracks())
    moment = st.floats(times_s[0] - 0.99, times_s[-1] + 0.99)
    return times_s, energies_j, sorted(draw(moment) for _ in range(count))


@given(steps_s, st.floats(1.0, 1e3), st.floats(-0.99, 0.99), st.floats(-0.99, 0.99))
def test_constant_power_is_power_times_time_over_any_window(steps, power_w, head_s, tail_s):
    times_s = cumulate(steps)
    energies_j = [power_w * time_s for time_s in times_s]
    since_s, until_s = sorted((times_s[0] + head_s, times_s[-1] + tail_s))
    used_j = energy_between(times_s, energies_j, since_s, until_s)
    assert used_j == pytest.approx(power_w * (until_s - since_s), rel=1e-6, abs=1e-6)


@given(tracks_and_moments(3))
def test_neighbouring_windows_add_up(given_):
    times_s, energies_j, (first_s, second_s, third_s) = given_
    parts_j = energy_between(times_s, energies_j, first_s, second_s) + energy_between(
        times_s, energies_j, second_s, third_s
    )
    whole_j = energy_between(times_s, energies_j, first_s, third_s)
    assert parts_j == pytest.approx(whole_j, rel=1e-6, abs=1e-6)


@given(tracks_and_moments(4))
def test_a_longer_window_never_holds_less(given_):
    times_s, energies_j, (start_s, inner_start_s, inner_end_s, end_s) = given_
    inner_j = energy_between(times_s, energies_j, inner_start_s, inner_end_s)
    assert -1e-6 <= inner_j <= energy_between(times_s, energies_j, start_s, end_s) + 1e-6


@given(tracks())
def test_between_two_samples_it_is_their_difference(track):
    times_s, energies_j = track
    used_j = energy_between(times_s, energies_j, times_s[0], times_s[-1])
    assert used_j == pytest.approx(energies_j[-1] - energies_j[0])


@pytest.mark.parametrize("window", [(-1.01, 1.0), (0.5, 3.01), (4.5, 5.0), (-5.0, -4.0)])
def test_further_than_a_second_outside_the_samples_it_is_unknown(window):
    assert energy_between([0.0, 1.0, 2.0], [0.0, 1.0, 2.0], *window) is None


def test_outside_it_goes_on_as_in_the_nearest_second():
    times_s = [0.0, 0.5, 1.0, 5.0, 5.5, 6.0]
    energies_j = [0.0, 20.0, 20.0, 20.0, 20.0, 60.0]  # a counter moves in steps
    assert energy_between(times_s, energies_j, -0.5, 0.0) == pytest.approx(10.0)
    assert energy_between(times_s, energies_j, 6.0, 6.5) == pytest.approx(20.0)


@pytest.mark.parametrize("samples", [[], [1.0]])
def test_fewer_than_two_samples_are_no_measurement(samples):
    assert energy_between(samples, samples, 1.0, 1.0) is None
    assert recent_power_w(samples, samples) is None


def test_a_window_that_ends_before_it_starts_is_refused():
    with pytest.raises(ValueError, match="before it starts"):
        energy_between([0.0, 1.0], [0.0, 1.0], 1.0, 0.5)


def test_recent_power_is_the_mean_of_the_last_second():
    times_s = [0.0, 1.0, 1.5, 2.0]
    assert recent_power_w(times_s, [0.0, 500.0, 500.0, 540.0]) == 40.0


def test_recent_power_of_samples_far_apart_is_that_of_the_last_two():
    assert recent_power_w([0.0, 10.0, 20.0], [0.0, 0.0, 50.0]) == 5.0


def test_between_two_power_samples_the_mean_of_both_counts():
    account = PowerAccount()
    account.sample(1.0, 100.0)
    account.sample(3.0, 200.0)
    assert account.total_j == 300.0


def read(*readings):
    series = LimitSeries()
    for time_s, *limits_w in readings:
        series.add(time_s, limits_w)
    return series


def test_the_limit_that_was_in_force_longest_is_told():
    series = read(
        (0.0, 300.0), (1.0, 300.0), (2.0, 200.0), (4.0, 250.0), (7.0, 200.0), (9.0, 200.0)
    )
    assert series.longest_w(0.0, 9.0) == 200.0
    assert series.longest_w(0.0, 3.5) == 300.0
    assert series.longest_w(4.5, 9.0) == 250.0


def test_the_last_reading_stands_for_what_follows():
    assert read((0.0, 300.0), (1.0, 200.0)).longest_w(0.0, 5.0) == 200.0


def test_of_several_gpus_the_lowest_limit_counts():
    assert read((0.0, 300.0, 212.5)).longest_w(0.0, 1.0) == 212.5


def test_where_a_gpu_does_not_tell_for_most_of_the_time_the_limit_is_unknown():
    series = read((0.0, 300.0, 300.0), (1.0, 300.0, None))
    assert series.longest_w(0.0, 3.0) is None
    assert series.longest_w(0.0, 1.5) == 300.0


def test_before_the_first_reading_and_in_no_time_it_is_unknown():
    assert LimitSeries().longest_w(0.0, 1.0) is None
    assert read((5.0, 300.0)).longest_w(0.0, 4.0) is None
    assert read((5.0, 300.0)).longest_w(6.0, 6.0) is None


def test_energy_never_falls_when_late_processes_are_found_one_after_the_other():
    series = EnergySeries()
    for time_s, energy_j in ((0.0, 0.0), (1.0, 1.0), (1.1, 200.0), (3.1, 210.0), (4.1, 500.0)):
        series.catch_up(time_s, energy_j, 20.0)
    found = [series.energy_j(n / 10, n / 10 + 0.1) for n in range(41)]
    assert min(each for each in found if each is not None) >= 0.0
