"""The choice between a counter and sampled power, and the bounded memory of both."""

from __future__ import annotations

import itertools

import pytest

from zeusrun.gpu.device import Reading
from zeusrun.gpu.track import EnergySeries, EnergyTrack
from zeusrun.trial import EnergySource


def watch(track, readings, period_s=0.1):
    """Feed (energy_j, power_w) pairs and return the warnings."""
    warnings = [
        track.add(number * period_s, Reading(energy_j, power_w, None))
        for number, (energy_j, power_w) in enumerate(readings)
    ]
    return [warning for warning in warnings if warning is not None]


def counter_track():
    return EnergyTrack("GPU-1", EnergySource.COUNTER)


def test_a_moving_counter_is_believed_over_sampled_power():
    track = counter_track()
    assert watch(track, [(number * 30.0, 100.0) for number in range(11)]) == []
    assert track.source is EnergySource.COUNTER
    assert track.energy_j(0.0, 1.0) == pytest.approx(300.0)


def test_without_a_counter_constant_power_is_integrated_and_not_zero():
    track = EnergyTrack("GPU-1", EnergySource.INTEGRATED)
    watch(track, [(None, 100.0)] * 11)
    assert track.source is EnergySource.INTEGRATED
    assert track.energy_j(0.0, 1.0) == pytest.approx(100.0)


def test_a_counter_that_stands_still_while_power_is_drawn_is_dropped_with_one_warning():
    track = counter_track()
    (warning,) = watch(track, [(7.0, 100.0)] * 51)
    assert "GPU-1" in warning
    assert "stands still" in warning
    assert track.source is EnergySource.INTEGRATED
    assert track.energy_j(0.0, 5.0) == pytest.approx(500.0)


def test_a_counter_that_freezes_in_mid_run_is_replaced_for_the_whole_run():
    track = counter_track()
    moving = [(number * 10.0, 100.0) for number in range(50)]
    (warning,) = watch(track, moving + [(490.0, 100.0)] * 51)
    assert "stands still" in warning
    assert track.energy_j(0.0, 10.0) == pytest.approx(1000.0)


def test_a_counter_that_stands_still_while_nothing_is_drawn_is_kept():
    track = counter_track()
    moving = [(number * 10.0, 100.0) for number in range(50)]
    asleep = [(490.0, 0.0)] * 51
    assert watch(track, moving + asleep + [(490.0 + n * 10.0, 100.0) for n in range(9)]) == []
    assert track.source is EnergySource.COUNTER


def test_a_run_too_short_to_judge_a_still_counter_is_integrated():
    track = counter_track()
    assert watch(track, [(7.0, 100.0)] * 6) == []
    assert track.source is EnergySource.INTEGRATED
    assert track.energy_j(0.0, 0.5) == pytest.approx(50.0)


def test_a_counter_that_runs_backwards_is_dropped_with_one_warning():
    track = counter_track()
    restarted = [(number % 25 * 10.0, 100.0) for number in range(51)]
    (warning,) = watch(track, restarted)
    assert "ran backwards, from 240.0 to 0.0 J" in warning
    assert track.energy_j(0.0, 5.0) == pytest.approx(500.0)


def test_a_counter_that_runs_backwards_with_nothing_beside_it_leaves_energy_unknown():
    track = counter_track()
    (warning,) = watch(track, [(5.0, None), (6.0, None), (1.0, None), (2.0, None)])
    assert "unknown" in warning
    assert track.source is None
    assert track.energy_j(0.0, 0.3) is None
    assert track.power_w() is None


def test_a_model_may_stand_still():
    track = EnergyTrack("cpu", EnergySource.ESTIMATED)
    assert watch(track, [(0.0, None)] * 100) == []
    assert track.source is EnergySource.ESTIMATED
    assert track.energy_j(0.0, 9.0) == 0.0


def test_power_of_a_counter_alone_is_smoothed_over_a_second():
    track = EnergyTrack("cpu", EnergySource.ESTIMATED)
    watch(track, [(number // 5 * 50.0, None) for number in range(31)])
    assert track.power_w() == pytest.approx(100.0)


def test_sampled_power_over_a_long_silence_is_unknown_but_a_counter_spans_it():
    sampled, counted = EnergyTrack("A", EnergySource.INTEGRATED), counter_track()
    for number, time_s in enumerate([0.0, 1.0, 8.0, 9.0]):
        sampled.add(time_s, Reading(None, 100.0, None))
        counted.add(time_s, Reading(number * 100.0, 100.0, None))
    assert sampled.energy_j(0.5, 8.5) is None
    assert sampled.energy_j(8.0, 9.0) == pytest.approx(100.0)
    assert sampled.energy_j(0.0, 1.0) == pytest.approx(100.0)
    assert counted.energy_j(0.0, 9.0) == pytest.approx(300.0)


def test_a_failed_device_has_no_energy_even_where_it_was_measured():
    track = counter_track()
    watch(track, [(number * 10.0, 100.0) for number in range(11)])
    track.fail()
    assert track.energy_j(0.0, 1.0) is None
    assert track.power_w() is None
    assert track.source is None


def test_a_device_that_tells_nothing_has_no_energy():
    track = counter_track()
    watch(track, [(None, None)] * 5)
    assert track.source is None
    assert track.energy_j(0.0, 0.4) is None


def test_a_reading_out_of_time_is_ignored():
    track = counter_track()
    track.add(1.0, Reading(10.0, None, None))
    track.add(2.0, Reading(20.0, None, None))
    assert track.add(2.0, Reading(5.0, None, None)) is None
    assert track.energy_j(1.0, 2.0) == 10.0


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
