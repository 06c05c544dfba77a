"""What runs, and recurrences, usually took."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import DONE, REACHED, build_trial
from zeusrun.analysis.usual import (
    UNKNOWN,
    find_usual,
    recurrence_durations_s,
    upper_duration_s,
)
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


def timed(recurrence, attempt=1, status=TrialStatus.REACHED, **values):
    outcome = {"status": status, "finished_at": "2025-06-01T12:01:40.000+00:00", **values}
    return build_trial(recurrence, attempt, **outcome)


def test_the_attempts_of_a_recurrence_add_up_with_start_up_and_shutdown():
    trials = [
        timed(1, 1, TrialStatus.OOM),  # 100 s by the clock
        timed(1, 2, startup_s=2.0, time_s=50.0, shutdown_s=1.0),
        timed(2, time_s=30.0),
    ]
    assert recurrence_durations_s(trials) == [153.0, 30.0]
    assert recurrence_durations_s([build_trial().finish(REACHED)]) == [8.5]


def test_what_crashed_was_ended_runs_or_is_forgotten_does_not_count():
    crashed = (TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.LOST, TrialStatus.PREEMPTED)
    trials = [timed(number, status=status) for number, status in enumerate(crashed, 1)]
    trials += [build_trial(5), timed(6, time_s=9.0, forgotten=True), timed(7, finished_at="?")]
    assert recurrence_durations_s(trials) == []
    kept = [timed(8, status=TrialStatus.MISSED), timed(9, status=TrialStatus.STOPPED)]
    assert recurrence_durations_s(kept) == [100.0, 100.0]


def test_the_newest_fifty_count_and_few_count_by_the_longest():
    trials = [timed(number, time_s=float(number)) for number in range(1, 81)]
    durations_s = recurrence_durations_s(trials)
    assert (durations_s[0], len(durations_s)) == (31.0, 50)
    assert upper_duration_s(durations_s) == 78.0
    assert upper_duration_s([3.0, 1.0, 2.0]) == 3.0
