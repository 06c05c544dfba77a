"""Which power limit was in force for most of a time."""

from __future__ import annotations

from zeusrun.energy.limit_series import LimitSeries


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
