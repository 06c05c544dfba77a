"""Which number of loader workers is tried next, and which one stays."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.loader.rank.tuner import Arm, Measured, Measurement, Tuner

MS = 1e-3


def tune(step_ms, first=1, most=64, *, passes=20, memory=1000, may_stay=False, **known):
    """Return the numbers of workers of each pass; ``step_ms`` says how long a step takes."""
    tuner, seen = Tuner(Arm(first, stays=False), most, **known), []
    for _ in range(passes):
        seen.append(tuner.arm.workers)
        ms, wait, begin = step_ms(tuner.arm)
        tuner.take(Measured(ms * MS, 0.0, wait, begin), memory, may_stay=may_stay)
    return seen, tuner.arm


def reads(read_ms, step_ms=10.0):
    """Return what a step takes that waits for workers; each needs ``read_ms`` for a batch."""

    def measure(arm):
        ms = max(step_ms, read_ms / arm.workers)
        return ms, (ms - step_ms) / ms, 0.0

    return measure


def path(*numbers, **options):
    seen, arm = tune(*numbers, **options)
    return [n for n, before in zip(seen, [None, *seen], strict=False) if n != before], arm.workers


def test_it_doubles_until_nothing_is_gained():
    assert path(reads(30.0)) == ([1, 2, 4], 4)
    assert path(reads(1000.0), most=8) == ([1, 2, 4, 8], 8)


def test_a_loader_that_is_fast_enough_stays_as_it_is():
    assert path(reads(10.2)) == ([1], 1)


def test_fewer_workers_may_be_faster_where_they_compete_for_the_cores():
    def competing(arm):
        return 10.0 + arm.workers, 0.5, 0.0

    assert path(competing, first=4) == ([4, 8, 2, 1], 1)


def test_of_equal_ones_that_which_was_there_stays():
    assert path(lambda _: (10.0, 0.5, 0.0), first=4)[1] == 4
    known = {Arm(2, stays=False): Measured(10 * MS, 0.0, 0.5, 0.0)}
    assert path(lambda _: (10.0, 0.5, 0.0), first=4, measured=known) == ([4, 1, 2], 2)


@pytest.mark.parametrize("limit", [{"most": 3}, {"memory": 3}])
def test_a_limit_is_never_passed(limit):
    seen, arm = tune(reads(1000.0), **limit)
    assert max(seen) == arm.workers == 3


def test_more_than_the_limit_in_the_script_may_stay():
    assert path(reads(1000.0), first=8, most=2)[1] == 8


def test_a_difference_within_the_noise_is_none():
    tuner = Tuner(Arm(1, stays=False), 2)
    tuner.take(Measured(10 * MS, 1 * MS, 0.5, 0.0), 9, may_stay=False)
    assert tuner.arm.workers == 2
    tuner.take(Measured(8 * MS, 1 * MS, 0.5, 0.0), 9, may_stay=False)
    assert tuner.arm.workers == 1


def test_where_passes_are_short_workers_may_stay():
    def starts(arm):
        return (10.0, 0.6, 0.0) if arm.stays else (20.0, 0.6, 0.5)

    assert tune(starts, most=1, may_stay=True)[1] == Arm(1, stays=True)
    assert tune(starts, most=1, may_stay=False)[1] == Arm(1, stays=False)


def test_what_an_earlier_run_found_stays_until_waiting_rises():
    assert path(reads(1000.0), first=4, known=0.9) == ([4], 4)  # it waited as long then
    assert path(reads(100.0), first=4, known=0.4)[0][:2] == [4, 8]  # now 60 %


def test_a_search_goes_on_where_an_earlier_run_has_left_it():
    earlier = {Arm(n, stays=False): Measured(1.0 / n, 0.0, 0.9, 0.0) for n in (1, 2)}
    assert path(reads(1000.0), first=2, most=8, measured=earlier) == ([4, 8], 8)
    assert path(reads(1000.0), first=2, most=2, measured=earlier) == ([2], 2)


def test_it_looks_again_when_waiting_rises():
    tuner = Tuner(Arm(2, stays=False), 8, known=0.0)
    tuner.take(Measured(10 * MS, 0.0, 0.09, 0.0), 9, may_stay=False)
    assert tuner.arm.workers == 2
    tuner.take(Measured(10 * MS, 0.0, 0.11, 0.0), 9, may_stay=False)
    assert tuner.arm.workers == 4


@given(
    st.lists(st.floats(1e-4, 1e3), min_size=200, max_size=200),
    st.integers(1, 64),
    st.integers(1, 64),
    st.booleans(),
)
def test_it_settles_at_the_best_of_those_it_has_measured(costs, first, most, may_stay):
    def measure(arm):
        return costs[arm.workers + 65 * arm.stays], 0.5, 0.5

    seen, arm = tune(measure, first=first, most=most, may_stay=may_stay, passes=40)
    _, again = tune(measure, first=first, most=most, may_stay=may_stay, passes=41)
    assert arm == again  # it has ended
    assert min(seen) >= 1
    assert max(seen) <= max(first, most)
    assert costs[arm.workers + 65 * arm.stays] <= 1.02 * min(costs[n] for n in seen)


def test_a_measurement_needs_thirty_steps_or_five_seconds():
    def measure(steps, interval_s):
        measurement = Measurement(1)
        for _ in range(steps - 1):
            measurement.add_interval(interval_s)
        measurement.add_pass(steps, interval_s, 0.0)
        return measurement.result

    assert measure(29, 0.1) is None
    assert measure(30, 0.1).step_s == pytest.approx(0.1)
    assert measure(6, 1.0).step_s == pytest.approx(1.0)


def test_passes_whose_later_steps_nobody_saw_are_no_measurement():
    measurement = Measurement(1)
    for _ in range(20):
        measurement.add_pass(3, 0.1, 0.05)
    assert measurement.result is None


def test_an_unknown_wait_is_no_measurement():
    measurement = Measurement(1)
    measurement.add_interval(0.1)
    measurement.add_pass(60, 0.1, math.inf)
    assert measurement.result is None


def test_a_measurement_adds_up_passes_and_their_begins():
    measurement = Measurement(2)
    for _ in range(8):
        for _ in range(3):
            measurement.add_interval(0.1)
        measurement.add_pass(4, 0.7, 0.65)  # 0.6 s until the first batch, then 0.05 s
    result = measurement.result
    assert result.step_s == pytest.approx(0.25)  # (0.7 + 3 x 0.1) / 4
    assert (result.wait, result.begin) == (pytest.approx(0.65), pytest.approx(0.6))
    assert result.error_s == pytest.approx(0.0)


def test_batches_that_come_in_bursts_are_no_noise():
    measurement = Measurement(8)
    for number in range(800):
        measurement.add_interval(0.08 if number % 8 == 0 else 0.0)
    measurement.add_pass(801, 0.08, 0.0)
    assert measurement.result.error_s == pytest.approx(0.0, abs=1e-9)
    assert measurement.result.step_s == pytest.approx(0.01, rel=0.01)
