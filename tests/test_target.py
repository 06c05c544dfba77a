"""When a metric meets its target, for everybody who asks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from zeusrun.target import meets_target, worst_that_reaches


@given(st.floats(-1e30, 1e30, width=64), st.sampled_from(["max", "min"]))
def test_a_float32_equal_to_the_target_meets_it(target, mode):
    assert meets_target(float(np.float32(target)), target, mode) or abs(target) < 1e-37


@pytest.mark.parametrize(
    ("value", "target", "mode", "met"),
    [
        (0.949999988, 0.95, "max", True),
        (0.9499, 0.95, "max", False),
        (0.050000001, 0.05, "min", True),
        (0.0501, 0.05, "min", False),
        (-1e-9, 0.0, "max", False),
        (math.inf, 0.95, "max", False),
        (-math.inf, 0.95, "min", False),
        (math.nan, 0.95, "max", False),
        (math.nan, 0.95, "min", False),
    ],
)
def test_what_meets_a_target(value, target, mode, met):
    assert meets_target(value, target, mode) is met
    if math.isfinite(value):
        edge = worst_that_reaches(target, mode)
        assert (value <= edge if mode == "min" else value >= edge) is met
