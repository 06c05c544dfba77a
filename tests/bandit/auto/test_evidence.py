"""Sorting out what the runs of a job say."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tests.bandit.runs import flying, run, speed_checked
from tests.bandit.scripts import problem
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import average_speed
from zeusrun.trial import TrialStatus

STOPPED, MISSED, OOM = TrialStatus.STOPPED, TrialStatus.MISSED, TrialStatus.OOM


def test_runs_are_sorted_by_what_they_tell():
    runs = [
        run(64, 10),
        run(32, 8, status=STOPPED),
        run(16, 40, status=MISSED),
        speed_checked(128, 90.0),
        run(256, 3, status=TrialStatus.CANCELLED),
        flying(128),
    ]
    evidence = gather(problem(), runs)
    assert {arm: len(own) for arm, own in evidence.results.items()} == {64: 1, 32: 1, 16: 1}
    assert list(evidence.reached) == [64]
    assert list(evidence.cut) == [256]
    assert evidence.speeds == {64: [100], 32: [100], 16: [100], 128: [90], 256: [100]}
    assert evidence.in_flight == {128}


def test_a_window_keeps_the_newest_of_each_arm():
    runs = [run(64, 10), run(64, 20), run(32, 7), run(64, 11)]
    evidence = gather(problem(window=2), runs)
    assert [each.epochs for each in evidence.results[64]] == [20, 11]
    assert [each.epochs for each in evidence.results[32]] == [7]


def test_what_failed_in_this_recurrence_is_known_whatever_the_window():
    runs = [run(64, 9, status=STOPPED, recurrence=1000), run(128, status=OOM, recurrence=1000)]
    assert gather(problem(), runs).failed_now == {64, 128, 256}
    assert gather(dataclasses.replace(problem(), recurrence=7), runs).failed_now == set()


def test_a_speed_check_that_ended_is_no_failure():
    runs = [speed_checked(64, 90.0)._replace(recurrence=1000)]
    assert gather(problem(), runs).failed_now == set()


def test_a_crash_for_memory_rules_out_the_arm_and_what_is_larger():
    assert gather(problem(), [run(128, status=OOM)]).fitting == (16, 32, 64)


@pytest.mark.parametrize("proven", [128, 256])
def test_what_has_fitted_before_is_ruled_out_by_the_second_crash(proven):
    crash, trained = run(128, status=OOM), run(proven, 9, status=MISSED)
    assert gather(problem(), [trained, crash]).fitting == (16, 32, 64, 128, 256)
    assert gather(problem(), [trained, crash, crash]).fitting == (16, 32, 64)


def timed(*costs, arm=64, limit=150):
    return [
        run(arm, per_epoch=cost, power_limit_w=limit, recurrence=n) for n, cost in enumerate(costs)
    ]


def test_a_steady_speed_is_that_of_the_newest_runs_under_the_newest_limit():
    runs = [*timed(900, limit=250), *timed(99, 100, 101, 102)]
    evidence = gather(problem(), runs)
    assert evidence.speeds[64] == [100, 101, 102]
    assert evidence.speed_sd < 0.05


def test_more_runs_are_averaged_where_speed_scatters_between_nights():
    rng = np.random.default_rng(0)
    costs = 100 * np.exp(0.2 * rng.standard_normal(40))
    evidence = gather(problem(), timed(*costs))
    assert len(evidence.speeds[64]) == 9
    both = [*timed(*costs[:20]), *timed(*(3 * costs[20:]), arm=128)]
    assert gather(problem(), both).speed_sd == pytest.approx(0.2, rel=0.4)


def test_one_slow_night_makes_a_steady_machine_no_noisy_one():
    evidence = gather(problem(), timed(*[100, 101] * 8, 210, 100))
    assert evidence.speed_sd < 0.05
    assert average_speed(evidence.speeds[64]) == pytest.approx(101, rel=0.02)


def test_a_lasting_change_of_speed_is_no_noise():
    for runs_since in range(1, 9):
        costs = [*[100, 101] * 8, *[150, 151] * 4]
        evidence = gather(problem(), timed(*costs[: 16 + runs_since]))
        assert evidence.speed_sd < 0.05
        assert runs_since < 2 or average_speed(evidence.speeds[64]) > 149


def test_where_speed_scatters_older_runs_of_another_speed_are_left_out():
    rng = np.random.default_rng(0)
    costs = [*(100 * np.exp(0.1 * rng.standard_normal(20))), 205, 180, 215]
    assert gather(problem(), timed(*costs)).speeds[64] == [205, 180, 215]


def disturbed(*costs, **changes):
    return [each._replace(local=False, disturbed=True) for each in timed(*costs, **changes)]


def test_the_speed_of_a_disturbed_run_counts_only_where_there_is_no_other_or_it_was_cheaper():
    """Other programs make a run more expensive, never cheaper."""
    assert gather(problem(), disturbed(300, 310)).speeds == {64: [300, 310]}
    both = [*disturbed(300), *timed(100, 101), *disturbed(290, arm=128), *disturbed(280)]
    assert gather(problem(), both).speeds == {64: [100, 101], 128: [290]}
    smoke = [*timed(400), *disturbed(150, 160)]  # one short epoch is a poor speed
    assert average_speed(gather(problem(), smoke).speeds[64]) == 160


def test_after_an_edit_its_own_speeds_count_and_those_of_other_arms_follow():
    before = [*timed(100, 100), *timed(80, 80, arm=128)]
    before = [each._replace(differs="args:a") for each in before]
    assert gather(problem(), before).speeds == {64: [100, 100], 128: [80, 80]}
    speeds = gather(problem(), [*before, *disturbed(200)]).speeds
    assert speeds == {64: [200], 128: [pytest.approx(160)] * 2}


def test_power_is_read_at_the_known_arm_nearest_to_the_default():
    runs = [run(256, power_w=90.0), run(32, power_w=60.0), run(32, power_w=None)]
    assert gather(problem(), runs).power_w == 60


def test_what_came_before_the_job_moved_is_left_out():
    runs = [run(32, 12), *(run(64, 10) for _ in range(8)), *(run(64, 90) for _ in range(6))]
    evidence = gather(problem(), runs)
    assert evidence.outdated == 9
    assert {arm: len(own) for arm, own in evidence.results.items()} == {64: 6}
    assert 32 in evidence.speeds  # the machine has not moved


def test_failures_that_told_of_the_move_are_not_held_against_an_arm():
    """They were held to bounds of before, and what reaches the target after may be dearer."""
    runs = [run(64, 10, recurrence=n) for n in range(8)]
    runs += [run(64, 25, status=STOPPED, recurrence=n) for n in range(8, 18)]
    runs += [run(16, 50, recurrence=17), run(64, 30, recurrence=18)]
    evidence = gather(problem(), runs)
    assert evidence.outdated == 8
    assert [each.status for each in evidence.results[64]] == [TrialStatus.REACHED]


def test_an_arm_that_missed_the_target_since_the_move_stays_failed():
    """No bound of before ended it: it ran all of its epochs."""
    runs = [run(64, 10, recurrence=n) for n in range(8)]
    runs += [run(64, 40, status=MISSED, recurrence=8)] * 6 + [run(128, 40, status=MISSED)]
    runs += [run(32, 10, recurrence=8), run(32, 10, recurrence=9)]
    evidence = gather(problem(), runs)
    assert evidence.outdated == 8
    assert {arm: len(own) for arm, own in evidence.results.items()} == {32: 2, 64: 6, 128: 1}


def test_the_arm_that_reached_the_target_last_is_known_also_after_a_move():
    assert gather(problem(), []).last_reached is None
    runs = [*[run(64, 10)] * 8, run(32, 12), *[run(32, 40, status=MISSED)] * 2]
    runs += [run(64, 40, status=MISSED)] * 8
    evidence = gather(problem(), runs)
    assert (evidence.reached, evidence.last_reached) == ({}, 32)


def test_a_window_of_one_does_not_forget_that_an_arm_works():
    runs = [*[run(64, 10)] * 9, run(64, 21, status=STOPPED)]
    evidence = gather(problem(window=1), runs)
    assert len(evidence.results[64]) == 2
    assert list(evidence.reached) == [64]


def passed(arm, epochs, share, step=1):
    return run(arm, epochs)._replace(last_step=(step, share))


def counted(*runs):
    reached = gather(problem(), runs).reached
    return {arm: [each.epochs_today for each in own] for arm, own in reached.items()}


def test_a_run_that_passed_its_target_just_in_time_counts_as_one_that_was_just_too_late():
    """Four epochs instead of five by luck made a dearer batch size the best, often for good."""
    found = counted(passed(64, 4, 0.98), passed(128, 5, 0.02))
    assert found[64][0] == pytest.approx(4.48)
    assert found[128][0] == pytest.approx(4.52)


def test_runs_count_as_many_epochs_on_average_as_they_took():
    runs = [passed(64, n, share) for n, share in ((4, 0.1), (5, 0.9), (4, 0.6), (7, 0.0))]
    assert np.mean(counted(*runs)[64]) == pytest.approx(5)
    # An accuracy of 1 that is wanted is passed with the last report of each run.
    assert counted(*(passed(64, n, 1.0) for n in (4, 5)))[64] == [4, 5]
    assert counted(passed(64, 1, 0.0), passed(64, 1, 1.0), run(64, 9))[64] == [0.5, 1.5, 9]


def test_reports_that_are_far_apart_say_as_much():
    assert counted(passed(64, 40, 1.0, 10), passed(64, 50, 0.0, 10))[64] == pytest.approx([45, 45])
