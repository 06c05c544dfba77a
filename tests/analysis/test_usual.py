"""What runs like a given one usually took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import DONE, build_trial
from zeusrun.analysis.usual import UNKNOWN, find_usual
from zeusrun.trial import TrialStatus

NEXT = build_trial(9)


def ended(number, startup_s, epochs, status=TrialStatus.REACHED, **changes):
    outcome = replace(DONE, startup_s=startup_s, epochs=epochs, status=status)
    return build_trial(number, **changes).finish(outcome)


def test_it_is_the_median_of_runs_on_the_same_devices_and_with_the_same_batch_size():
    earlier = [
        ended(1, 4.0, 10),
        ended(2, 6.0, 12),
        ended(3, 5.0, 40, TrialStatus.MISSED),
        ended(4, 9.0, 30, global_batch_size=256),
        ended(5, 90.0, 11, world_size=8),
    ]
    usual = find_usual(NEXT, earlier)
    assert usual.startup_s == pytest.approx(5.5)
    assert usual.epochs == 11


def test_without_such_runs_it_is_unknown():
    assert find_usual(NEXT, []) == UNKNOWN
    other = ended(1, None, 3, learning_rate=0.5)
    assert find_usual(NEXT, [other, build_trial(2)]) == UNKNOWN
