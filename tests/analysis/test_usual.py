"""What runs, and recurrences, usually took."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest

from tests.factories import DONE, REACHED, build_trial
from tests.notify.test_notices import trial
from zeusrun.analysis.usual import (
    FAR_SDS,
    UNKNOWN,
    find_baseline,
    find_usual,
    recurrence_durations_s,
    run_cost_j,
    upper_duration_s,
)
from zeusrun.bandit.problem import RUN_SD
from zeusrun.trial import CurvePoint, Interruption, TrialStatus
from zeusrun.trial.values import WorldChange

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


def past(*costs, **changes):
    return [trial(n, cost_j=cost, **changes) for n, cost in enumerate(costs, 1)]


def test_three_runs_are_needed():
    assert find_baseline(past(100.0, 110.0), trial(9)) is None
    usual = find_baseline(past(100.0, 100.0, 100.0), trial(9))
    assert usual.runs == 3
    assert usual.cost_j == pytest.approx(100)


def test_a_few_equal_runs_do_not_make_every_other_one_strange():
    usual = find_baseline(past(100.0, 100.0, 100.0), trial(9))
    assert usual.high_j > 135
    many = find_baseline(past(*[100.0] * 20), trial(30))
    assert 110 < many.high_j < usual.high_j


def test_runs_that_differ_as_much_as_usual_are_as_far_apart_as_usual():
    usual = find_baseline(past(*(100.0 * math.exp(n * RUN_SD) for n in (-1, 0, 1))), trial(9))
    far = FAR_SDS * RUN_SD * math.sqrt(1 + 1 / 3)
    assert usual.high_j == pytest.approx(100.0 * math.exp(far))


@pytest.mark.parametrize(
    "other",
    [
        {"global_batch_size": 64},
        {"target": 0.9},
        {"eta_knob": 0.1},
        {"gpu_model": "another"},
        {"world_size": 4},
        {"learning_rate": 0.1},
        {"shared": True},
        {"forgotten": True},
        {"world_sizes": (WorldChange(0.0, 0, 2), WorldChange(0.5, 0, 4))},
    ],
)
def test_runs_under_other_conditions_say_nothing(other):
    strange = [dataclasses.replace(each, **other) for each in past(1.0, 1.0, 1.0)]
    assert find_baseline(strange, trial(9)) is None
    usual = find_baseline([*strange, *past(100.0, 100.0, 100.0)], trial(9))
    assert usual.cost_j == pytest.approx(100)


def interrupted(number, **changes):
    """A run that would have cost 200 J, and has cost 1,100 J."""
    curve = tuple(
        CurvePoint(n, t, 10.0 * t, 0.5) for n, t in enumerate((5.0, 10.0, 105.0, 110.0), 1)
    )
    values = {"curve": curve, "epochs": 4, "max_power_w": 10.0}
    cut = (Interruption(100.0, 2),)
    found = trial(number, cost_j=1100.0, **{**values, "interruptions": cut, **changes})
    return dataclasses.replace(found, time_s=110.0, energy_j=1100.0)


def test_an_interrupted_run_counts_as_if_it_had_not_been_and_one_that_began_anew_does_not():
    whole = interrupted(9)
    assert run_cost_j(whole) == pytest.approx(200.0)
    usual = find_baseline([interrupted(n) for n in range(3)], whole)
    assert usual.cost_j == pytest.approx(200.0)
    anew = interrupted(1, curve=whole.curve[2:])
    assert run_cost_j(anew) is None
    assert find_baseline([anew] * 3, whole) is None
    assert find_usual(whole, [anew]).epochs is None
    assert find_usual(whole, [whole]).epochs == 4


def test_only_the_newest_count():
    usual = find_baseline(past(*[1.0] * 50, *[100.0] * 20), trial(99))
    assert usual.cost_j == pytest.approx(100)


def test_a_run_that_changed_its_ranks_has_no_usual_cost():
    grown = trial(9, world_sizes=(WorldChange(0.0, 0, 2), WorldChange(0.5, 0, 4)))
    assert run_cost_j(grown) is None
    assert find_baseline(past(100.0, 100.0, 100.0), grown) is None
