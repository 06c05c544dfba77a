"""The noise scale in the course of a training: points, joined curves, streams."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from zeusrun.trial.values import NoisePoint, add_point, join_curves


def point(samples, data=100, value=50.0):
    return NoisePoint(samples, samples / data if data else None, 40.0, value, 60.0)


def build(samples, data=100):
    curve = ()
    for each in samples:
        curve = add_point(curve, point(each, data))
    return curve


def at(curve):
    return [each.samples for each in curve]


def test_each_epoch_keeps_its_last_point():
    assert at(build([10, 60, 100, 101, 150, 220, 290])) == [100, 150, 290]


def test_what_a_restart_trains_again_replaces_what_was_there():
    assert at(build([90, 190, 290, 390, 150])) == [90, 150]


def test_a_known_scale_is_its_value_else_its_lower_bound():
    assert point(1).known == 50.0
    assert point(1)._replace(value=None, high=None).known == 40.0
    assert point(1)._replace(value=0.0).known == 0.0


def test_a_stream_has_twenty_points_while_its_samples_grow_by_e():
    curve = build([int(1000 * math.e ** (n / 500)) for n in range(1001)], data=None)
    assert 38 <= len(curve) <= 42
    assert curve[-1].samples == int(1000 * math.e**2)


def test_a_long_curve_loses_every_second_point_but_not_its_last():
    curve = build(range(100, 20_100, 100))
    assert len(curve) == 200
    longer = add_point(curve, point(20_100))
    assert at(longer) == [*range(200, 20_100, 200), 20_100]
    assert at(add_point(longer, point(20_150)))[-2:] == [20_100, 20_150]


@given(st.lists(st.integers(0, 30_000), max_size=600), st.sampled_from([None, 7, 100]))
def test_a_curve_ascends_and_ends_with_its_newest_point(samples, data):
    curve = build(samples, data)
    assert at(curve) == sorted(set(at(curve)))
    assert len(curve) <= 200
    assert at(curve)[-1:] == samples[-1:]


def test_the_parts_of_a_preempted_run_follow_each_other():
    before, since = build([90, 190]), build([50, 150])
    joined = join_curves(before, since, 200, 2.0)
    assert joined == (*before, point(250), point(350))
    assert join_curves((), since, 0, None) == tuple(each._replace(epoch=None) for each in since)


def test_a_point_beyond_the_last_report_of_the_first_part_is_trained_again():
    joined = join_curves(build([90, 190, 290]), build([30, 130]), 200, 2.0)
    assert at(joined) == [90, 190, 230, 330]


def test_without_a_second_part_the_first_stays():
    before = build([90, 190])
    assert join_curves(before, (), 200, 2.0) == before
