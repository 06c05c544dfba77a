"""Energy between two moments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.energy.integrate import energy_between, recent_power_w, trapezoid_j

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


def test_a_trapezoid_takes_the_mean_of_both_ends():
    assert trapezoid_j(1.0, 100.0, 3.0, 200.0) == 300.0
