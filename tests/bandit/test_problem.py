from __future__ import annotations

import math

import pytest

from tests.bandit.scripts import problem


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"candidates": ()}, "default"),
        ({"candidates": (64, 32)}, "ascending"),
        ({"candidates": (32, 64, 64)}, "ascending"),
        ({"candidates": (0, 64)}, "ascending"),
        ({"default": 48}, "default"),
        ({"eta_knob": 1.5}, "eta_knob"),
        ({"eta_knob": math.nan}, "eta_knob"),
        ({"cost_factor": 0.0}, "cost_factor"),
        ({"cost_factor": math.inf}, "cost_factor"),
        ({"window": 0}, "window"),
        ({"control": 1}, "control"),
    ],
)
def test_a_problem_that_contradicts_itself_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        problem(**changes)
