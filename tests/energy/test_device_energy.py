"""The choice between a counter and sampled power, and devices that miss answers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.energy.device import Health, Reading
from zeusrun.energy.device_energy import Accounts, EnergyTrack
from zeusrun.trial import EnergySource


def watch(track, readings, period_s=0.1):
    """Feed (energy_j, power_w) pairs and return the warnings."""
    return [
        warning
        for number, (energy_j, power_w) in enumerate(readings)
        for warning in track.add(number * period_s, Reading(energy_j, power_w, None))
    ]


def counter_track():
    return EnergyTrack("GPU-1", EnergySource.COUNTER)


def test_a_moving_counter_is_believed_over_sampled_power():
    track = counter_track()
    assert watch(track, [(number * 30.0, 100.0) for number in range(11)]) == []
    assert track.source is EnergySource.COUNTER
    assert track.energy_j(0.0, 1.0) == pytest.approx(300.0)


def test_without_a_counter_constant_power_is_integrated_and_not_zero():
    track = EnergyTrack("GPU-1", EnergySource.INTEGRATED)
    (warning,) = watch(track, [(None, 100.0)] * 11)
    assert "not supported; sampled power is integrated instead" in warning
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
    assert "jumped from 240.0 to 0.0 J" in warning
    assert track.energy_j(0.0, 5.0) == pytest.approx(500.0)


def test_a_counter_that_runs_backwards_with_nothing_beside_it_leaves_energy_unknown():
    track = counter_track()
    (warning,) = watch(track, [(5.0, None), (6.0, None), (1.0, None), (2.0, None)])
    assert "unknown" in warning
    assert track.source is None
    assert track.energy_j(0.0, 0.3) is None
    assert track.power_w() is None


def watch_utilized(track, readings):
    """Feed (energy_j, power_w, utilization), ten a second, to the end; return the warnings."""
    told = []
    for number, (energy_j, power_w, utilization) in enumerate(readings):
        told += track.add(number / 10, Reading(energy_j, power_w, None, Health(utilization)))
    return told + list(track.end())


@pytest.mark.parametrize("utilization", [0.9, None])
def test_a_counter_that_freezes_beside_no_power_leaves_energy_unknown(utilization):
    track = counter_track()
    moving = [(number * 10.0, None, utilization) for number in range(200)]
    (warning,) = watch_utilized(track, moving + [(1990.0, None, utilization)] * 200)
    assert "GPU-1 stands still while power is unknown" in warning
    assert "unknown" in warning
    assert (track.energy_j(0.0, 39.0), track.source, track.power_w()) == (None, None, None)


@pytest.mark.parametrize(("utilization", "looks"), [(0.9, 100), (None, 100), (0.0, 100), (0.9, 4)])
def test_a_counter_that_never_moves_beside_no_power_counts_for_nothing(utilization, looks):
    track = counter_track()
    (warning,) = watch_utilized(track, [(7.0, None, utilization)] * looks)
    assert "GPU-1" in warning
    assert "unknown" in warning
    assert (track.energy_j(0.0, 0.3), track.source, track.power_w()) == (None, None, None)


def test_a_run_of_two_looks_is_known_if_its_counter_moved():
    track = counter_track()
    assert watch_utilized(track, [(7.0, None, 0.9), (17.0, None, 0.9)]) == []
    assert track.energy_j(0.0, 0.1) == pytest.approx(10.0)


def test_power_that_is_not_told_to_the_end_is_told_to_the_user():
    track = EnergyTrack("GPU-1", EnergySource.INTEGRATED)
    absent, unfinished = watch_utilized(
        track, [(None, 300.0, 0.9)] * 200 + [(None, None, 0.9)] * 200
    )
    assert "not supported" in absent
    assert "GPU-1 reported no power for too long" in unfinished
    assert track.energy_j(0.0, 39.9) is None


def test_power_that_is_not_told_at_the_last_look_alone_is_no_gap():
    track = EnergyTrack("GPU-1", EnergySource.INTEGRATED)
    (absent,) = watch_utilized(track, [(None, 300.0, 0.9)] * 200 + [(None, None, 0.9)])
    assert "not supported" in absent
    assert track.energy_j(0.0, 20.0) == pytest.approx(6000.0)


@pytest.mark.parametrize("max_power_w", [400.0, None])
@pytest.mark.parametrize("at", [1, 50])
def test_a_counter_that_leaps_forward_is_dropped_with_one_warning(max_power_w, at):
    track = EnergyTrack("GPU-1", EnergySource.COUNTER, max_power_w)
    leaping = [(number * 10.0 + (5e6 if number >= at else 0.0), 100.0) for number in range(101)]
    (warning,) = watch(track, leaping)
    assert "GPU-1 jumped from" in warning
    assert "sampled power is integrated instead" in warning
    assert track.energy_j(0.0, 10.0) == pytest.approx(1000.0)


def test_a_counter_that_leaps_forward_beside_no_power_leaves_energy_unknown():
    track = EnergyTrack("GPU-1", EnergySource.COUNTER, 400.0)
    (warning,) = watch(track, [(0.0, None), (5e6, None), (5e6 + 10.0, None)])
    assert "unknown" in warning
    assert track.energy_j(0.0, 0.2) is None


def test_a_counter_that_tells_at_once_what_was_drawn_in_a_silence_does_not_leap():
    track = EnergyTrack("GPU-1", EnergySource.COUNTER, 400.0)
    watch(track, counting(400.0, 1))
    assert track.add(61.0, Reading(61 * 400.0, 400.0, None)) == ()
    assert track.source is EnergySource.COUNTER


def test_a_model_may_stand_still():
    track = EnergyTrack("cpu", EnergySource.ESTIMATED)
    assert watch(track, [(0.0, None)] * 100) == []
    assert track.source is EnergySource.ESTIMATED
    assert track.energy_j(0.0, 9.0) == 0.0


@pytest.mark.parametrize("rest_s", [0.9, 60.9])
def test_what_a_model_finds_late_was_used_in_the_second_before_and_no_faster_than_can_be(rest_s):
    track = EnergyTrack("cpu", EnergySource.ESTIMATED, 20.0)
    readings = [(n / 10, 0.0) for n in range(round(rest_s * 10) + 1)]
    found_s = rest_s + 0.1  # a process, a second after its start
    readings += [(found_s, 8.3), (found_s + 0.1, 10.4), (found_s + 0.2, 12.4)]
    powers_w = []
    for time_s, energy_j in readings:
        assert track.add(time_s, Reading(energy_j, None, None)) == ()
        powers_w.append(track.power_w() or 0.0)
    assert max(powers_w) <= 20.0
    assert powers_w[-3] == pytest.approx(8.3)
    assert track.energy_j(0.0, found_s + 0.2) == pytest.approx(12.4)
    assert track.energy_j(0.0, found_s - 1.0) == pytest.approx(0.0)
    assert track.energy_j(found_s - 0.5, found_s - 0.4) < 2.0


def test_power_of_a_counter_alone_is_smoothed_over_a_second():
    track = EnergyTrack("cpu", EnergySource.ESTIMATED)
    watch(track, [(number // 5 * 50.0, None) for number in range(31)])
    assert track.power_w() == pytest.approx(100.0)


def test_sampled_power_over_a_long_silence_is_unknown_but_a_counter_spans_it():
    sampled, counted = EnergyTrack("A", EnergySource.INTEGRATED), counter_track()
    told = []
    for number, time_s in enumerate([0.0, 1.0, 8.0, 9.0, 16.0]):
        told.append(sampled.add(time_s, Reading(None, 100.0, None)))
        assert counted.add(time_s, Reading(number * 100.0, 100.0, None)) == ()
    assert [len(sentences) for sentences in told] == [1, 0, 0, 0, 0]
    (at_the_end,) = sampled.end()
    assert "reported no power for too long" in at_the_end
    assert counted.end() == ()
    assert sampled.energy_j(0.5, 8.5) is None
    assert sampled.energy_j(8.0, 9.0) == pytest.approx(100.0)
    assert sampled.energy_j(0.0, 1.0) == pytest.approx(100.0)
    assert counted.energy_j(0.0, 9.0) == pytest.approx(300.0)


def test_a_failed_device_has_no_energy_even_where_it_was_measured():
    track = counter_track()
    watch(track, [(number * 10.0, 100.0) for number in range(11)])
    track.failed = True
    assert track.energy_j(0.0, 1.0) is None
    assert track.power_w() is None
    assert track.source is None


def test_a_device_that_tells_nothing_has_no_energy():
    track = counter_track()
    (warning,) = watch(track, [(None, None)] * 5)
    assert "not supported; the energy of this run is unknown" in warning
    assert track.source is None
    assert track.energy_j(0.0, 0.4) is None


def test_a_reading_out_of_time_is_ignored():
    track = counter_track()
    track.add(1.0, Reading(10.0, None, None))
    track.add(2.0, Reading(20.0, None, None))
    assert track.add(2.0, Reading(5.0, None, None)) == ()
    assert track.energy_j(1.0, 2.0) == 10.0


def counting(power_w, seconds, since_j=0.0, told_w=None):
    """Ten readings a second of a counter and of sampled power, which may tell otherwise."""
    told_w = power_w if told_w is None else told_w
    return [(since_j + number * power_w / 10, told_w) for number in range(seconds * 10 + 1)]


def test_both_accounts_are_kept_where_both_exist():
    track = counter_track()
    watch(track, counting(100.0, 10, told_w=96.0))
    counter_j, integrated_j = track.accounts_j(0.0, 10.0)
    assert counter_j == pytest.approx(1000.0)
    assert integrated_j == pytest.approx(960.0)
    assert track.disagreement(0.0, 10.0) is None


@pytest.mark.parametrize(
    ("claimed", "readings", "expected"),
    [
        (EnergySource.INTEGRATED, [(None, 100.0)] * 101, (None, 1000.0)),
        (EnergySource.COUNTER, [(7.0, 100.0)] * 101, (None, 1000.0)),
        (EnergySource.COUNTER, [(n * 10.0, None) for n in range(101)], (1000.0, None)),
        (EnergySource.ESTIMATED, [(n * 10.0, None) for n in range(101)], (None, None)),
    ],
)
def test_an_account_that_is_absent_or_dropped_is_unknown(claimed, readings, expected):
    track = EnergyTrack("GPU-1", claimed)
    watch(track, readings)
    assert track.accounts_j(0.0, 10.0) == pytest.approx(Accounts(*expected))


def test_accounts_that_differ_by_more_than_a_tenth_over_half_a_minute_are_told_with_both_figures():
    track = counter_track()
    watch(track, counting(100.0, 40, told_w=200.0))
    doubt = track.disagreement(0.0, 40.0)
    assert "GPU-1" in doubt
    assert "4000 J by its counter" in doubt
    assert "8000 J by sampled power" in doubt
    assert track.disagreement(0.0, 29.0) is None


def test_accounts_that_differ_by_less_than_a_tenth_agree():
    track = counter_track()
    watch(track, counting(100.0, 40, told_w=109.0))
    assert track.disagreement(0.0, 40.0) is None


def test_a_counter_that_moves_every_second_is_believed():
    track = counter_track()
    readings = [(number // 10 * 100.0, 100.0) for number in range(6, 307)]
    assert watch(track, readings) == []
    assert track.source is EnergySource.COUNTER
    assert track.energy_j(2.0, 12.0) == pytest.approx(1000.0, abs=100.0 * 0.1)
    assert track.energy_j(0.0, 30.0) == pytest.approx(3000.0, abs=100.0 * 0.2)


def test_a_counter_that_is_not_told_any_more_is_replaced_with_one_warning():
    track = counter_track()
    (warning,) = watch(track, counting(100.0, 5) + [(None, 100.0)] * 50)
    assert "does not answer any more" in warning
    assert track.energy_j(0.0, 10.0) == pytest.approx(1000.0)


@pytest.mark.parametrize("missed", [1, 9])
@pytest.mark.parametrize("rest", [0, 50])
def test_a_counter_that_fails_to_answer_for_a_moment_is_kept(missed, rest):
    track = counter_track()
    well = counting(100.0, 10)
    hole = [(None, 120.0)] * missed
    assert watch(track, well[:40] + hole + well[40 + missed :][:rest]) == []
    assert track.end() == ()
    assert track.source is EnergySource.COUNTER
    until_s = (39 + missed + rest) / 10
    assert track.energy_j(0.0, until_s) == pytest.approx(100.0 * until_s)


def test_a_counter_that_is_looked_at_rarely_may_fail_to_answer_once():
    track = counter_track()
    watch(track, counting(100.0, 1))
    assert track.add(3.0, Reading(None, 100.0, None)) == ()
    assert track.add(5.0, Reading(500.0, 100.0, None)) == ()
    assert track.energy_j(0.0, 5.0) == pytest.approx(500.0)


def miss(track, since_s, until_s):
    return [
        warning
        for number in range(round(since_s * 10), round(until_s * 10))
        for warning in track.miss(number / 10, "no answer")
    ]


def resume(track, since_s, readings):
    return [
        warning
        for number, (energy_j, power_w) in enumerate(readings)
        for warning in track.add(since_s + number / 10, Reading(energy_j, power_w, None))
    ]


def test_a_device_that_does_not_answer_has_no_energy_until_it_does():
    track = counter_track()
    watch(track, counting(100.0, 5))
    assert miss(track, 5.1, 8.0) == []
    assert (track.energy_j(0.0, 2.0), track.source, track.power_w()) == (None, None, None)
    assert resume(track, 8.0, counting(100.0, 5, since_j=800.0)) == []
    assert track.energy_j(0.0, 10.0) == pytest.approx(1000.0)
    assert track.source is EnergySource.COUNTER
    assert track.end() == ()


def test_a_driver_that_restarts_is_bridged_by_sampled_power():
    track = counter_track()
    watch(track, counting(100.0, 5))
    miss(track, 5.1, 8.0)
    (dropped,) = resume(track, 8.0, counting(100.0, 5))
    assert "jumped from" in dropped
    assert "sampled power is integrated instead" in dropped
    assert track.energy_j(0.0, 10.0) == pytest.approx(1000.0)
    assert track.source is EnergySource.INTEGRATED


def test_a_device_that_is_silent_for_too_long_is_lost_for_good():
    track = counter_track()
    watch(track, counting(100.0, 5))
    (failed,) = miss(track, 5.1, 10.2)
    assert "GPU-1 failed; the energy of this run is unknown: no answer" in failed
    assert track.failed
    assert track.end() == ()
    assert track.energy_j(0.0, 5.0) is None


def test_a_device_asked_again_only_after_too_long_is_lost_too():
    track = counter_track()
    watch(track, counting(100.0, 5))
    miss(track, 5.1, 5.2)
    (failed,) = track.add(12.0, Reading(1200.0, 100.0, None))
    assert "no answer" in failed
    assert track.failed


def test_only_a_silence_at_the_end_is_reported():
    track = counter_track()
    watch(track, counting(100.0, 5))
    for number in range(5):
        assert miss(track, 5.1 + number, 5.5 + number) == []
        assert resume(track, 5.5 + number, [(550.0 + number * 100.0, 100.0)]) == []
    assert miss(track, 9.6, 9.7) == []
    (lost,) = track.end()
    assert "the energy of this run is unknown" in lost
    assert track.energy_j(0.0, 5.0) is None
    assert track.end() == ()


def test_a_device_that_never_answers_is_told_once():
    track = counter_track()
    assert len(miss(track, 0.0, 5.2)) == 1
    assert track.failed


def test_a_counter_dropped_after_a_gap_in_sampled_power_says_that_nothing_is_known():
    track = counter_track()
    track.add(0.0, Reading(100.0, 100.0, None))
    track.add(8.0, Reading(900.0, 100.0, None))
    track.add(9.0, Reading(0.0, 100.0, None))
    (at_the_end,) = track.end()
    assert "reported no power for too long; its energy is unknown" in at_the_end
    assert track.energy_j(0.0, 9.0) is None
    assert track.cumulative_j is None


def test_cumulative_energy_is_unknown_once_the_counter_stood_still():
    track = counter_track()
    watch(track, counting(100.0, 5, since_j=7000.0) + [(7500.0, 100.0)] * 50)
    assert track.source is EnergySource.INTEGRATED
    assert track.cumulative_j is None


def test_cumulative_energy_without_a_counter_is_that_of_sampled_power():
    track = EnergyTrack("GPU-1", EnergySource.INTEGRATED)
    assert track.cumulative_j is None
    watch(track, [(None, 100.0)] * 11)
    assert track.cumulative_j == pytest.approx(100.0)


steps = st.lists(
    st.tuples(
        st.floats(0.05, 1.0),
        st.one_of(st.none(), st.floats(0.0, 500.0)),
        st.sampled_from(["counts", "counts", "stands", "restarts", "is absent", "misses"]),
    ),
    max_size=60,
)


@given(steps)
def test_cumulative_energy_never_decreases_and_no_window_is_negative(steps):
    track = counter_track()
    time_s = energy_j = 0.0
    cumulative_j = []
    for step_s, power_w, event in steps:
        time_s += step_s
        energy_j = {"counts": energy_j + 20.0, "restarts": 0.0}.get(event, energy_j)
        if event == "misses":
            track.miss(time_s, "no answer")
            continue
        told_j = None if event == "is absent" else energy_j
        track.add(time_s, Reading(told_j, power_w, None))
        cumulative_j.append(track.cumulative_j)
    known_j = [energy_j for energy_j in cumulative_j if energy_j is not None]
    assert all(after >= before - 1e-6 for before, after in itertools.pairwise(known_j))
    used_j = track.energy_j(0.0, time_s)
    assert used_j is None or used_j >= -1e-6
