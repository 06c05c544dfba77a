"""What the recurrences of a job took."""

from __future__ import annotations

from tests.factories import REACHED, build_trial
from zeusrun.analysis.durations import recurrence_durations_s, upper_duration_s
from zeusrun.trial import TrialStatus


def ended(recurrence, attempt=1, status=TrialStatus.REACHED, **values):
    outcome = {"status": status, "finished_at": "2025-06-01T12:01:40.000+00:00", **values}
    return build_trial(recurrence, attempt, **outcome)


def test_the_attempts_of_a_recurrence_add_up_with_start_up_and_shutdown():
    trials = [
        ended(1, 1, TrialStatus.OOM),  # 100 s by the clock
        ended(1, 2, startup_s=2.0, time_s=50.0, shutdown_s=1.0),
        ended(2, time_s=30.0),
    ]
    assert recurrence_durations_s(trials) == [153.0, 30.0]
    assert recurrence_durations_s([build_trial().finish(REACHED)]) == [8.5]


def test_what_crashed_was_ended_runs_or_is_forgotten_does_not_count():
    crashed = (TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.LOST, TrialStatus.PREEMPTED)
    trials = [ended(number, status=status) for number, status in enumerate(crashed, 1)]
    trials += [build_trial(5), ended(6, time_s=9.0, forgotten=True), ended(7, finished_at="?")]
    assert recurrence_durations_s(trials) == []
    kept = [ended(8, status=TrialStatus.MISSED), ended(9, status=TrialStatus.STOPPED)]
    assert recurrence_durations_s(kept) == [100.0, 100.0]


def test_the_newest_fifty_count_and_few_count_by_the_longest():
    trials = [ended(number, time_s=float(number)) for number in range(1, 81)]
    durations_s = recurrence_durations_s(trials)
    assert (durations_s[0], len(durations_s)) == (31.0, 50)
    assert upper_duration_s(durations_s) == 78.0
    assert upper_duration_s([3.0, 1.0, 2.0]) == 3.0
