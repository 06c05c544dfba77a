from __future__ import annotations

import math

import pytest

from zeusrun.cost import cost_j, energy_text


def test_energy_and_time_are_weighed_by_eta_knob():
    assert cost_j(100.0, 50.0, 4.0, 0.25) == pytest.approx(0.25 * 100 + 0.75 * 50 * 4)


def test_where_only_time_counts_energy_is_not_needed():
    assert cost_j(None, 50.0, 4.0, 0.0) == 200.0
    assert cost_j(100.0, 50.0, 4.0, 0.0) == 200.0
    assert cost_j(None, 50.0, 4.0, 0.001) is None


def test_eta_knob_one_needs_neither_power_nor_time():
    assert cost_j(100.0, None, None, 1.0) == 100.0


@pytest.mark.parametrize(
    ("energy_j", "max_power_w", "time_s", "eta_knob"),
    [
        (None, 50.0, 4.0, 0.5),
        (100.0, None, 4.0, 0.5),
        (100.0, 50.0, None, 0.5),
        (None, 50.0, 4.0, 1.0),
        (100.0, None, 4.0, 0.0),
        (math.nan, 50.0, 4.0, 0.5),
        (100.0, 50.0, math.inf, 0.5),
    ],
)
def test_cost_is_unknown_when_anything_needed_is(energy_j, max_power_w, time_s, eta_knob):
    assert cost_j(energy_j, max_power_w, time_s, eta_knob) is None


@pytest.mark.parametrize("eta_knob", [-0.1, 1.1, math.nan])
def test_eta_knob_outside_its_range_is_refused(eta_knob):
    with pytest.raises(ValueError, match="eta_knob"):
        cost_j(1.0, 1.0, 1.0, eta_knob)


@pytest.mark.parametrize(
    ("energy_j", "text"),
    [
        (0.0123, "0.0123 J"),
        (812, "812 J"),
        (999.4, "999 J"),
        (999.6, "1.00 kJ"),
        (2130, "2.13 kJ"),
        (3.4e6, "3.40 MJ"),
        (7.2e9, "7.20 GJ"),
        (4.5e12, "4500 GJ"),
        (1e300, "1e+291 GJ"),
        (-50, "-50.0 J"),
        (-3.55e-15, "0 J"),
    ],
)
def test_joules_are_written_with_a_prefix(energy_j, text):
    assert energy_text(energy_j) == text
