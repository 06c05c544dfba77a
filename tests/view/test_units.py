"""Numbers as people read them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.factories import build_trial
from zeusrun.trial import EnergySource
from zeusrun.trial.values import WorkersChange
from zeusrun.view import units

DASH, MINUS = "\u2013", "\u2212"


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (None, DASH),
        (0.0, "0 J"),
        (0.0245, "0.0245 J"),
        (1.234, "1.23 J"),
        (12.34, "12.3 J"),
        (999.4, "999 J"),
        (999.6, "1.00 kJ"),
        (1234.0, "1.23 kJ"),
        (999_600.0, "1.00 MJ"),
        (5.5e9, "5.50 GJ"),
    ],
)
def test_joules_have_three_digits_and_a_prefix(joules, text):
    assert units.energy(joules) == text


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (EnergySource.COUNTER, "40.0 J"),
        (EnergySource.INTEGRATED, "∫40.0 J"),
        (EnergySource.ESTIMATED, "~40.0 J"),
        (None, "40.0 J"),
    ],
)
def test_joules_are_marked_by_their_source(source, text):
    assert units.electricity(40.0, source) == text


def test_unknown_energy_has_no_mark():
    assert units.electricity(None, EnergySource.ESTIMATED) == DASH


@given(st.floats(1, 9e11))
def test_joules_fit_eight_columns_with_their_mark(joules):
    text = units.electricity(joules, EnergySource.ESTIMATED)
    assert re.fullmatch(r"~(\d\.\d\d|\d\d\.\d|\d{3}) [kMG]?(J|Wh)", text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, DASH),
        (0.0, "0.0 s"),
        (8.34, "8.3 s"),
        (59.94, "59.9 s"),
        (59.96, "1 m 00 s"),
        (125.0, "2 m 05 s"),
        (3599.4, "59 m 59 s"),
        (3599.6, "1 h 00 m"),
        (4321.0, "1 h 12 m"),
        (360_000.0, "100 h 00 m"),
    ],
)
def test_seconds_become_minutes_and_hours(seconds, text):
    assert units.duration(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (None, DASH),
        (0.0, "0\u00a0%"),
        (0.234, "23\u00a0%"),
        (-0.234, MINUS + "23\u00a0%"),
        (1.0, "100\u00a0%"),
        (-3.0, MINUS + "300\u00a0%"),
    ],
)
def test_a_fraction_is_whole_percent_and_a_loss_has_a_sign(fraction, text):
    assert units.percent(fraction) == text


def test_no_percent_has_no_sign():
    assert units.percent(-0.003) == "0\u00a0%"


@pytest.mark.parametrize(
    ("watts", "text"), [(None, DASH), (0.0, "0 W"), (0.42, "0.42 W"), (249.6, "250 W")]
)
def test_watts_are_whole_unless_they_are_few(watts, text):
    assert units.power(watts) == text


@pytest.mark.parametrize(("number", "text"), [(None, DASH), (0, "0"), (12345, "12345")])
def test_a_count_is_a_whole_number(number, text):
    assert units.number(number) == text


@pytest.mark.parametrize(("value", "text"), [(None, DASH), (0.98765, "0.9877"), (-1.5, "-1.5")])
def test_a_number_has_the_digits_of_its_format(value, text):
    assert units.number(value, ".4g") == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 runs"), (1, "1 run"), (2, "2 runs")])
def test_a_count_agrees_with_its_noun(count, text):
    assert units.plural(count, "run") == text


@pytest.mark.parametrize(("count", "text"), [(512, "512 B"), (4096, "4.10 kB"), (3e9, "3.00 GB")])
def test_bytes_have_three_digits_and_a_prefix(count, text):
    assert units.size(count) == text


def test_a_moment_is_in_the_readers_zone(monkeypatch):
    import time

    monkeypatch.setenv("TZ", "UTC-2")  # POSIX: two hours east
    time.tzset()
    try:
        assert units.moment("2025-06-01T23:30:00.000+00:00") == "06-02 01:30"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_what_is_no_moment_is_shown_as_it_is():
    assert units.moment("not a moment at all") == "not a moment at "


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([None, None], ""),
        ([0.0, 1.0], "▁█"),
        ([0.5, 0.5], "▁▁"),
        ([0.0, None, 1.0], "▁ █"),
        ([0.0, 0.5, 1.0], "▁▅█"),
    ],
)
def test_a_curve_is_a_line_of_bars(values, bars):
    assert units.sparkline(values) == bars


@given(st.lists(st.none() | st.floats(-1e9, 1e9), max_size=500))
def test_a_curve_of_any_length_fits_its_width(values):
    assert len(units.sparkline(values)) <= 40


@pytest.mark.parametrize(
    ("range_j", "text"),
    [
        (None, DASH),
        ((622.0, 1010.0), f"0.62{DASH}1.01 kJ"),
        ((0.0, 12.34), f"0.0{DASH}12.3 J"),
        ((0.0, 0.0), f"0{DASH}0 J"),
        ((1.0, 5.5e9), f"0.00{DASH}5.50 GJ"),
    ],
)
def test_a_range_of_joules_has_one_unit(range_j, text):
    assert units.energy_range(range_j) == text


@pytest.mark.parametrize(
    ("wait_s", "time_s", "steps", "text"),
    [
        (8.7, 21.2, 100, "87 ms of a step of 212 ms wait for data: 41\N{NO-BREAK SPACE}%"),
        (0.0, 21.2, 100, "0 ms of a step of 212 ms wait for data: 0\N{NO-BREAK SPACE}%"),
        (300.0, 400.0, 100, "3.0 s of a step of 4.0 s wait for data: 75\N{NO-BREAK SPACE}%"),
        (None, 21.2, 100, None),
        (8.7, None, 100, None),
        (8.7, 0.0, 100, None),
        (8.7, 21.2, None, None),
    ],
)
def test_the_wait_of_a_step(wait_s, time_s, steps, text):
    trial = build_trial(data_wait_s=wait_s, time_s=time_s, steps=steps)
    assert units.waiting_text(trial) == text


def test_how_long_a_step_takes_with_loader_workers():
    first = WorkersChange(0.0, 1, False, 0.034, 0.9)
    stay = WorkersChange(1.0, 2, True, 0.016, 0.8)
    begun, died = WorkersChange(2.0, 4, False), WorkersChange(3.0, 8, False, died=True)
    text = units.workers_text(build_trial(workers=(first, stay, begun, died)))
    assert (
        text == "a step takes 34 ms with 1, 16 ms with 2 that stay, unknown with 4, with 8 one died"
    )
    assert units.workers_text(build_trial(workers=(begun,))) is None
    assert units.workers_text(build_trial()) is None
