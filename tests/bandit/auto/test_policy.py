"""Policy ``auto`` as a whole."""

from __future__ import annotations

import dataclasses
import math
import re

import numpy as np
import pytest

from tests.bandit.runs import flying, run, speed_checked
from tests.bandit.scripts import power_levers, problem, watts
from zeusrun.bandit.auto.beliefs import assess, saved_by_check
from zeusrun.bandit.auto.policy import Auto, bound_of_proven
from zeusrun.bandit.problem import Running
from zeusrun.trial import Hardware, PowerPoint, Stage, TrialStatus

STOPPED, MISSED, OOM = TrialStatus.STOPPED, TrialStatus.MISSED, TrialStatus.OOM
JOB = problem(max_power_w=50.0, eta_knob=0.5)


def choose(*runs, **changes):
    now = dataclasses.replace(JOB, **changes)
    return Auto().choose(now, runs, np.random.default_rng(0))


def explain(*runs, **changes):
    now = dataclasses.replace(JOB, **changes)
    return {b.global_batch_size: b for b in Auto().explain(now, runs, np.random.default_rng(0))}


def settled(n=8):
    """A history that leaves little doubt that 64 is best."""
    epochs = {16: 16, 32: 12, 64: 10, 128: 12, 256: 16}
    return [run(arm, epochs[arm]) for arm in JOB.candidates for _ in range(n)]


def test_the_default_comes_first():
    decision = choose()
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLORE)
    assert decision.why == "64 is the default, and nothing has reached the target yet"
    assert decision.bound is None


def test_while_nothing_reaches_what_failed_least_near_the_default_is_next():
    failed = [run(64, 40, status=MISSED, recurrence=1000)]
    assert choose(*failed).global_batch_size == 32
    failed.append(run(32, 40, status=MISSED, recurrence=1000))
    assert choose(*failed).global_batch_size == 128
    assert choose(*failed, recurrence=1001).global_batch_size == 128
    assert "nearest to the default" in choose(*failed).why


def test_at_the_start_the_next_larger_batch_sizes_run_beside_the_default():
    second = choose(flying(64))
    assert second.global_batch_size == 128
    assert second.why == (
        "nothing has reached the target yet; 64 runs now, in another recurrence, so 128 is tried "
        "beside it"
    )
    assert choose(flying(64), flying(128)).global_batch_size == 256
    assert choose(flying(64), flying(128), flying(256)).global_batch_size == 32
    assert choose(*map(flying, JOB.candidates)).global_batch_size == 64


def test_what_has_proved_cheapest_is_run_when_no_doubt_is_left():
    decision = choose(*settled())
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLOIT)
    assert decision.why == (
        "64 is the cheapest batch size so far, 1.00 kJ a run; trying another is not "
        "expected to save enough"
    )


def test_a_doubtful_arm_is_worth_a_try_and_it_says_why():
    decision = choose(run(64, 10))
    assert decision.stage is Stage.EXPLORE
    assert decision.global_batch_size != 64
    assert decision.why.startswith(
        "only 64 has run to its end so far, and larger ones usually cost less: 256 is expected to be 4 % "
        "cheaper than 64, and it is cheaper with a probability of 5"
    )
    assert "%; a bad try costs once, a good one saves in 20 recurrences; try" in decision.why


def test_what_has_run_before_is_run_once_more():
    two = {"candidates": (64, 128)}
    again = choose(run(64, 10), run(64, 10), run(128, 10), **two)
    assert (again.global_batch_size, again.stage) == (128, Stage.EXPLORE)
    assert "another run of it is expected to save the cost of about 23 % of a run" in again.why
    dearer = choose(run(64, 10), run(128, 13), run(32, 14)).why
    assert " more expensive than 64, but so little is known that it is cheaper with a pro" in dearer


def test_a_try_that_is_expected_to_save_little_is_not_made():
    runs = [
        run(arm, epochs) for arm, epochs in ((64, 10), (128, 10), (32, 14), (256, 15), (16, 20))
    ]
    told = explain(*runs, run(64, 10))
    assert 0 < told[128].value_j < 0.05 * told[64].cost_j
    assert told[128].verdict.endswith("more expensive than 64; a try would save too little")
    assert told[64].is_next


def test_an_unknown_speed_is_checked_first_where_runs_are_long():
    long = [run(64, 10, per_epoch=1e5)]
    decision = choose(*long)
    assert decision.stage is Stage.SPEED_CHECK
    assert "at first, only 30 s are spent, to measure its speed" in decision.why
    again = choose(*long, speed_checked(decision.global_batch_size, 9e4))
    assert (
        again.stage is not Stage.SPEED_CHECK
        or again.global_batch_size != decision.global_batch_size
    )


def test_a_speed_check_that_disappoints_sends_the_choice_elsewhere():
    decision = choose(run(64, 10, per_epoch=1e5))
    arm = decision.global_batch_size
    assert choose(run(64, 10, per_epoch=1e5), speed_checked(arm, 9e5)).global_batch_size != arm


def test_a_run_that_cannot_be_replaced_has_no_speed_check():
    decision = choose(run(64, 10, per_epoch=1e5), speed_checks=False)
    assert decision.stage is Stage.EXPLORE
    assert "measure" not in decision.why


def test_a_recurrence_has_one_speed_check_at_most():
    """Each is a start of the script: thirty close candidates once had eleven in a night."""
    long = {"per_epoch": 1e5}
    known = [run(64, 10, **long)]
    decision = choose(*known, max_power_w=50.0)
    assert decision.stage is Stage.SPEED_CHECK
    look = speed_checked(decision.global_batch_size, 3e5, stage=Stage.SPEED_CHECK)
    look = look._replace(recurrence=JOB.recurrence)
    assert choose(*known, look, max_power_w=50.0).global_batch_size == 64
    later = choose(*known, look._replace(recurrence=JOB.recurrence - 1), max_power_w=50.0)
    assert later.stage is Stage.SPEED_CHECK


def test_short_runs_have_no_speed_check():
    assert choose(run(64, 10, per_epoch=100.0)).stage is Stage.EXPLORE


def test_after_a_failure_comes_what_is_proven():
    runs = [*settled(), run(256, 9, status=STOPPED, recurrence=1000)]
    decision = choose(*runs)
    assert (decision.global_batch_size, decision.stage) == (64, Stage.RETRY)
    assert decision.why == "256 failed in this recurrence; 64 has reached the target before"


def test_what_did_not_run_has_not_failed():
    crash = run(128, 9, status=OOM, recurrence=1000)
    stopped = run(256, 9, status=STOPPED, recurrence=1000)
    assert choose(*settled(), crash).why == (
        "128 ran out of memory; larger ones would, too; 64 has reached the target before"
    )
    assert choose(*settled(), stopped, crash).why == (
        "128 ran out of memory; 256 failed in this recurrence; 64 has reached the target before"
    )


def test_if_even_the_best_fails_the_next_best_follows():
    runs = [run(64, 10)] * 5 + [run(128, 12)] * 5 + [run(16, 30)] * 5
    runs.append(run(64, 9, status=STOPPED, recurrence=1000))
    assert choose(*runs).global_batch_size == 128


def test_the_incumbent_may_cost_what_the_user_allows_and_others_less():
    known = settled()
    decision = choose(*known)
    assert decision.bound.cost_j == pytest.approx(2 * 1000, rel=0.05)
    assert decision.bound.paces == ()
    without = choose(run(64, 10, pace=()), run(64, 10))  # a run without a learning curve
    assert (without.stage, len(without.bound.paces)) == (Stage.EXPLORE, 1)
    other = choose(run(64, 10))
    assert other.bound.cost_j == pytest.approx(1000 * (math.exp(0.28) + 0.1), rel=0.02)
    assert len(other.bound.paces) == 1


def test_without_a_cost_factor_nothing_is_stopped():
    assert choose(*settled(), cost_factor=None).bound is None
    assert choose(run(64, 10), cost_factor=None).bound is None


def test_a_trial_that_lags_is_stopped_and_the_incumbent_is_not():
    policy = Auto()
    tried, proven = choose(run(64, 10)), choose(*settled())
    slow = Running(7, tried.bound.cost_j * 0.8, 0.1)
    assert policy.review(JOB, tried, slow)
    assert policy.review(JOB, proven, slow) is None


def test_recurrences_in_flight_choose_differently():
    runs, chosen = [run(64, 10)], []
    for _ in range(4):
        arm = choose(*runs).global_batch_size
        chosen.append(arm)
        runs.append(flying(arm))
    others = [arm for arm in chosen if arm != 64]
    assert len(others) == len(set(others))
    assert len(set(chosen)) > 1


def test_results_may_come_in_any_order():
    runs = [*settled(n=3), run(256, 9, status=STOPPED), run(128, 11)]
    rng = np.random.default_rng(0)
    first = choose(*runs)
    for _ in range(20):
        mixed = [runs[i] for i in rng.permutation(len(runs))]
        assert choose(*mixed).global_batch_size == first.global_batch_size


def test_memory_is_never_tried_a_third_time():
    crash = run(128, status=OOM, epochs=None, per_epoch=None)
    for runs in ([crash, crash], [run(64, 10), crash, crash], [*settled(), crash, crash]):
        assert choose(*runs).global_batch_size < 128


def test_an_incumbent_that_no_longer_fits_gives_way():
    crash = run(64, status=OOM, epochs=None, per_epoch=None)
    there = [run(64, 10, per_epoch=None, local=False)] * 3
    assert choose(*there, crash, crash).global_batch_size == 32


TWO = {"candidates": (64, 128), "recurrence": 7}


def crash(arm, recurrence):
    return run(arm, None, status=TrialStatus.FAILED, per_epoch=None, recurrence=recurrence)


def test_a_batch_size_whose_script_crashes_in_two_recurrences_is_given_up():
    assert choose(run(64, 10), **TWO).global_batch_size == 128
    assert choose(run(64, 10), crash(128, 5), **TWO).global_batch_size == 128
    twice = [run(64, 10), crash(128, 5), crash(128, 6)]
    assert choose(*twice, **TWO).global_batch_size == 64
    told = explain(*twice, **TWO)
    assert told[128].verdict == "out: its script crashed in 2 recurrences, and not with others"


def test_one_bad_night_rules_no_batch_size_out():
    night = [crash(128, 5), crash(128, 5), crash(128, 5)]
    assert choose(run(64, 10), *night, **TWO).global_batch_size == 128
    # The data store was down: what has reached the target crashed as well.
    nights = [crash(128, 5), crash(64, 5), crash(128, 6), crash(64, 6)]
    assert choose(run(64, 10), *nights, **TWO).global_batch_size == 128


def test_after_a_crash_the_next_attempt_is_what_has_reached_the_target():
    decision = choose(run(64, 10), crash(128, 7), **TWO)
    assert (decision.global_batch_size, decision.stage) == (64, Stage.RETRY)
    assert decision.why == (
        "the script crashed with 128; 64 has reached the target before, and will show whether "
        "the batch size is the cause"
    )
    assert choose(run(64, 10), crash(64, 7), **TWO).stage is not Stage.RETRY


@pytest.mark.parametrize("status", [MISSED, STOPPED, OOM])
def test_after_a_crash_no_batch_size_follows_that_has_failed_in_the_recurrence(status):
    failed = run(64, 5, status=status, recurrence=7)
    past = [run(64, 10), run(32, 12)]
    three = {**TWO, "candidates": (32, 64, 128)}
    for now in ([failed, crash(128, 7)], [crash(128, 7), failed]):
        assert choose(*past, *now, **three).global_batch_size == 32


def test_a_later_success_clears_a_batch_size_that_crashed():
    cleared = [run(64, 10), crash(128, 3), crash(128, 4), run(128, 6, recurrence=5)]
    assert choose(*cleared, **TWO).global_batch_size == 128


def crashed_as(cause, arm, recurrence, **changes):
    return crash(arm, recurrence)._replace(cause=cause, **changes)


def test_what_today_s_training_has_finished_with_is_no_cause_of_its_crashes():
    """The disk was full, say: it stays the choice."""
    full = [crashed_as("disk", 64, 1000)] * 3
    decision = choose(*settled(), *full)
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLOIT)
    # It was another training that reached the target.
    edited = [each._replace(differs="script:a") for each in settled()]
    assert choose(*edited, *full).global_batch_size != 64


def test_an_edit_clears_a_batch_size_that_crashed():
    before = [
        crash(128, 5)._replace(differs="script:a"),
        crash(128, 6)._replace(differs="script:a"),
    ]
    assert choose(run(64, 10, differs="script:a"), *before, **TWO).global_batch_size == 128


def test_why_another_batch_size_follows_two_crashes_is_told():
    decision = choose(crashed_as("shape", 64, 1), crashed_as("shape", 64, 1))
    assert decision.why.startswith(
        "nothing has reached the target yet; 64: its script crashed 2 times with the same error; of"
    )
    told = explain(crashed_as("shape", 64, 1), crashed_as("shape", 64, 1))
    assert told[64].verdict == "out: its script crashed 2 times with the same error"


def test_a_script_that_never_worked_rules_nothing_out():
    crashes = [crash(64, recurrence) for recurrence in (1, 2, 3)]
    assert choose(*crashes).global_batch_size == 64


def test_what_is_stopped_in_its_first_epoch_is_not_tried_for_ever():
    runs = [run(64, 10)] * 4
    arms = []
    for _ in range(12):
        arm = choose(*runs).global_batch_size
        arms.append(arm)
        stopped = run(128, None, status=STOPPED, per_epoch=1600.0, pace=())
        runs.append(stopped if arm == 128 else run(arm, 10 if arm == 64 else 14))
    assert arms.count(128) <= 2


def test_when_nothing_proven_is_left_what_is_nearest_to_the_last_success_follows():
    runs = [run(64, 10)] * 4
    runs.append(run(64, 21, status=STOPPED, recurrence=1000))
    decision = choose(*runs)
    assert (decision.stage, decision.global_batch_size) == (Stage.RETRY, 128)
    assert "64 reached the target last; " in decision.why
    assert decision.why.endswith(", 128 is nearest to it")
    runs += [run(a, 9, status=STOPPED, recurrence=1000) for a in (16, 32, 128, 256)]
    assert choose(*runs).global_batch_size == 64


def test_if_the_target_moved_out_of_reach_nearby_every_arm_is_tried_within_three_nights():
    """The same few in the same order never reached it in job 23 of the family ``drift``."""
    runs = [run(64, 10)] * 4
    tried, why = set(), ""
    for night in range(1000, 1003):
        for attempt in range(3):
            decision = choose(*runs, recurrence=night, last_attempt=attempt == 2)
            tried.add(decision.global_batch_size)
            why += decision.why
            runs.append(run(decision.global_batch_size, 40, status=MISSED, recurrence=night))
    assert tried == {16, 32, 64, 128, 256}
    assert (
        "64 reached the target last; of the batch sizes that have failed least often since then, "
        in why
    )


def test_a_failure_that_cost_next_to_nothing_does_not_end_the_trying():
    runs = [run(64, 10)]
    first = choose(*runs).global_batch_size
    runs.append(run(first, 1, status=STOPPED, recurrence=1000))
    decision = choose(*runs)
    assert decision.stage is Stage.EXPLORE
    assert decision.global_batch_size not in {first, 64}
    runs.append(run(decision.global_batch_size, 2, status=STOPPED, recurrence=1000))
    assert choose(*runs).stage is Stage.RETRY


def test_the_last_attempt_goes_to_what_is_proven_though_nothing_is_lost_yet():
    runs = [run(64, 10), run(32, 12)]
    first = choose(*runs).global_batch_size
    runs.append(run(first, 1, status=STOPPED, recurrence=1000))
    assert choose(*runs).stage is Stage.EXPLORE
    decision = choose(*runs, last_attempt=True)
    assert (decision.global_batch_size, decision.stage) == (64, Stage.RETRY)
    assert decision.why == (
        f"{first} failed in this recurrence; 64 has reached the target before; this is the last "
        "attempt allowed"
    )
    assert decision.bound is not None


def test_the_last_attempt_is_not_bounded_once_the_best_has_failed():
    """All data got harder: under bounds of before, every batch size would be stopped."""
    failed = run(64, 20, status=STOPPED, stage=Stage.EXPLOIT, recurrence=1000)
    assert choose(*settled(), failed).bound is not None
    decision = choose(*settled(), failed, last_attempt=True)
    assert (decision.global_batch_size, decision.bound) == (64, None)  # it was only stopped
    missed = failed._replace(status=MISSED)
    assert choose(*settled(), missed, last_attempt=True).global_batch_size in {32, 128}
    tried = run(128, 15, status=STOPPED, recurrence=1000)
    assert choose(*settled(), tried, last_attempt=True).bound is not None


def test_after_a_crash_of_the_best_the_last_attempt_runs_it_again():
    decision = choose(run(64, 10), crash(64, 7), last_attempt=True, **TWO)
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLOIT)


def test_a_proven_arm_is_retried_under_the_users_own_bound():
    runs = [run(64, 10)] * 5 + [run(128, 18)] * 5
    runs.append(run(64, 9, status=STOPPED, recurrence=1000))
    decision = choose(*runs)
    assert decision.global_batch_size == 128
    assert decision.bound.cost_j > 1900
    assert decision.bound.paces == ()


def test_without_a_cost_it_stays_with_what_has_reached_the_target():
    decision = choose(run(64, 10, per_epoch=None))
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLOIT)
    assert "no cost is known yet" in decision.why


def test_a_moved_job_is_learned_again():
    """The best arm now takes eight times the epochs; the others are as they were."""
    runs = settled()
    seen = []
    for _ in range(60):
        arm = choose(*runs).global_batch_size
        seen.append(arm)
        runs.append(run(arm, {16: 16, 32: 12, 64: 80, 128: 14, 256: 16}[arm]))
    assert seen[0] == 64
    assert seen[-20:].count(32) >= 18


def test_after_the_job_has_moved_the_search_begins_where_the_target_was_reached_last():
    past = [run(64, 10)] * 3 + [run(128, 10)] * 3 + [run(256, 10)] * 9
    past += [run(256, 40, status=MISSED, recurrence=n) for n in range(991, 1001)]
    decision = choose(*past)
    assert decision.global_batch_size == 128
    assert decision.why.endswith(
        "of the batch sizes left to try, 128 is nearest to 256, which reached it last"
    )
    past += [run(arm, 40, status=MISSED, recurrence=1000) for arm in (128, 64, 32, 16)]
    decision = choose(*past)
    assert decision.global_batch_size == 256
    assert "every batch size has failed; 256 runs because it reached it last" in decision.why


def test_after_a_move_what_was_only_stopped_at_an_old_bound_runs_again():
    past = [run(arm, 10) for arm in (128, 256, 64) for _ in range(3)]
    stopped = [
        run(arm, 25, status=STOPPED, stage=Stage.RETRY, recurrence=1000)
        for arm in (64, 128)
        for _ in range(4)
    ]
    decision = choose(*past, *stopped)
    assert (decision.global_batch_size, decision.bound) == (64, None)
    assert decision.why.endswith("; 64 reached it last")
    missed = run(64, 40, status=MISSED, recurrence=1000)
    assert choose(*past, *stopped, missed).global_batch_size == 32
    missed = [missed, run(32, 40, status=MISSED, recurrence=1000)]
    decision = choose(*past, *stopped, *missed)
    assert decision.global_batch_size == 128
    assert "of the batch sizes left to try, 128 is nearest to 64" in decision.why


def test_the_last_attempt_judges_by_how_far_what_was_stopped_had_come():
    def pace(epochs):
        return tuple((max(1, round(epochs * n / 10)), n / 10) for n in range(1, 11))

    past = [*[run(64, 10, pace=pace(10))] * 4, *[run(32, 12, pace=pace(12))] * 4]
    half, third = pace(40)[:5], pace(30)[:6]
    stopped = {"status": STOPPED, "stage": Stage.EXPLOIT, "recurrence": 1000}
    past += [run(64, 20, pace=half, **stopped), run(32, 18, pace=third, **stopped)]
    decision = choose(*past, last_attempt=True)
    assert (decision.global_batch_size, decision.bound) == (32, None)
    assert "64 failed in this recurrence; 32 has reached the target before" in decision.why


def test_a_recurrence_that_is_older_than_the_move_comes_to_its_last_attempt():
    """Another one, begun later, has reached the target by now; what stopped this one is forgotten."""
    stopped = run(128, 40, status=STOPPED, stage=Stage.EXPLOIT, recurrence=1000)
    past = [*[run(128, 10)] * 3, stopped, stopped, run(64, 10, recurrence=1001)]
    assert choose(*past, last_attempt=True).global_batch_size == 64


def test_what_reached_the_target_last_comes_first_if_others_have_failed():
    past = [*[run(64, 10)] * 9, run(256, 10)]
    past += [run(64, 40, status=MISSED, recurrence=n) for n in range(991, 1001)]
    assert choose(*past).global_batch_size == 256


def test_it_says_that_the_job_has_moved():
    past = [*settled(4), *[run(64, 10)] * 12]  # 64 ran last
    decision = choose(*past, *[run(64, 80, status=MISSED)] * 10)
    since = "since the job changed, so 32 earlier runs no longer count for epochs"
    assert f"nothing has reached the target {since}" in decision.why


def test_power_limits_are_walked_and_then_held():
    now = dataclasses.replace(
        JOB,
        levers=power_levers((100.0, 150.0, 200.0, 250.0)),
        max_power_w=250.0,
        hardware=Hardware(1, "A100", 1),
    )
    policy = Auto()
    decision = policy.choose(now, [], np.random.default_rng(0))
    assert watts(decision.lever) == 150
    profile = [PowerPoint(150.0, 9.0, 150.0)]
    limit = watts(policy.next_lever(now, decision, profile))
    assert limit == 200
    profile.append(PowerPoint(200.0, 9.5, 200.0))
    assert watts(policy.next_lever(now, decision, profile)) == 100
    profile.append(PowerPoint(100.0, 6.0, 100.0))
    assert watts(policy.next_lever(now, decision, profile)) == 150


def test_explain_says_all_that_is_believed():
    told = explain(*settled())
    best, other = told[64], told[256]
    assert (best.trials, best.reached, best.chance) == (8, 8, 1.0)
    assert best.epochs == pytest.approx(10, rel=0.02)
    assert best.epoch_cost_j == pytest.approx(100, rel=0.01)
    assert best.cost_j == pytest.approx(1000, rel=0.02)
    low, high = best.cost_range_j
    assert low < 1000 < high
    assert best.value_j == 0
    assert best.verdict.startswith("64 is the cheapest batch size so far")
    assert other.chance == 0
    assert other.failure_chance > 0.99
    assert best.failure_chance < 0.01
    assert other.value_j < 0
    assert other.verdict == ("59 % more expensive than 64; not worth a try")


@pytest.mark.parametrize(
    ("epochs", "pattern"),
    [
        (16, r"\d\d % more expensive than 64"),
        (300, "far more expensive than 64"),
    ],
)
def test_large_differences_are_no_exact_numbers(epochs, pattern):
    runs = [run(arm, each) for _ in range(6) for arm, each in ((64, 10), (256, epochs))]
    verdict = explain(*runs)[256].verdict
    assert re.match(pattern, verdict), verdict


def test_how_a_batch_size_that_was_never_tried_would_fail_is_unknown():
    told = explain(*[run(64, 10)] * 4)
    assert told[64].failure_chance < 0.01
    assert (told[16].trials, told[16].failure_chance) == (0, None)
    assert told[16].cost_j is not None


def test_explain_of_nothing_claims_nothing():
    for belief in explain().values():
        assert (belief.epochs, belief.cost_j, belief.cost_range_j) == (None, None, None)
        assert (belief.failure_chance, belief.value_j) == (None, None)


def test_epochs_are_unknown_until_a_run_has_reached_the_target():
    cut = run(64, 2, status=TrialStatus.CANCELLED, pace=((1, 0.3), (2, 0.5)))
    beliefs = explain(cut).values()
    assert {belief.epochs for belief in beliefs} == {None}
    assert {belief.verdict for belief in beliefs if not belief.chance} == {
        "may run once another one has failed or reached the target"
    }
    assert None not in {belief.epochs for belief in explain(cut, run(64, 10)).values()}


def test_explain_tells_every_verdict():
    crash = run(256, status=OOM, epochs=None, per_epoch=None)
    runs = [*[run(64, 10)] * 4, run(16, 9, status=STOPPED), flying(32), crash, crash]
    told = explain(*runs)
    assert "ran out of memory" in told[256].verdict
    assert told[32].verdict == "runs now, in another recurrence"
    assert told[16].verdict.startswith("failed 1 of 1; counting that, ")


def test_a_range_of_ninety_percent_holds_nine_runs_in_ten():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(300):
        epochs = np.maximum(1, np.round(40 * rng.lognormal(0, 0.14, 9)))
        runs = [run(64, int(k)) for k in epochs[:8]]
        low, high = explain(*runs, max_epochs=400)[64].cost_range_j
        inside += low <= 100 * epochs[8] <= high
    assert 0.85 <= inside / 300 <= 0.95


@pytest.mark.parametrize("scatter", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("count", [3, 4, 6])
def test_it_holds_and_is_narrow_when_few_runs_show_the_speed(scatter, count):
    """On a new GPU, earlier runs show only the epochs."""
    rng, sd, draws = np.random.default_rng(0), math.hypot(0.14, scatter), 150
    inside, widths = 0.0, []
    for _ in range(draws):
        epochs = np.round(40 * rng.lognormal(0, 0.14, 20 + count)).tolist()
        speeds = [None] * 20 + (100 * rng.lognormal(0, scatter, count)).tolist()
        runs = [run(64, int(k), per_epoch=j) for k, j in zip(epochs, speeds, strict=True)]
        low, high = (math.log(j / 4000) for j in explain(*runs, max_epochs=400)[64].cost_range_j)
        inside += (math.erf(high / sd / math.sqrt(2)) - math.erf(low / sd / math.sqrt(2))) / 2
        known = 0.14**2 * (1 + 1 / len(runs)) + scatter**2 * (1 + 1 / count)
        widths.append((high - low) / (2 * 1.645 * math.sqrt(known)))
    assert inside / draws >= 0.85
    assert np.median(widths) <= 1.3


def test_explain_stands_batch_sizes_and_costs_of_any_size():
    arms = (2, 16, 10**15, 10**15 + 1)
    runs = [
        run(16, 10**6, per_epoch=1.0, status=MISSED),
        run(10**15 + 1, 10, per_epoch=1e-6, status=STOPPED),
        run(10**15 + 1, 10**6, per_epoch=1e-6),
        run(10**15 + 1, 1, per_epoch=1e300, status=STOPPED),
        run(10**15 + 1, 10**6, per_epoch=1e20, status=STOPPED),
    ]
    rates = dict.fromkeys(arms, 0.1)
    told = explain(*runs, candidates=arms, default=10**15 + 1, learning_rates=rates)
    numbers = [n for each in told.values() for n in (each.epochs, each.cost_j, each.value_j)]
    assert all(math.isfinite(n) for n in numbers if n is not None)


def test_the_bound_of_a_forced_run_is_that_of_a_candidate_of_today():
    cheap = [run(8, 10, per_epoch=1.0)] * 3  # a candidate once
    bound = bound_of_proven(JOB, [*cheap, *settled()])
    assert bound.cost_j == pytest.approx(2 * 1000, rel=0.05)
    assert bound_of_proven(JOB, cheap) is None
    assert bound_of_proven(dataclasses.replace(JOB, cost_factor=None), settled()) is None
    assert bound_of_proven(JOB, []) is None


def test_the_bound_of_a_forced_run_is_not_of_before_the_job_moved():
    before = [run(64, 5, recurrence=n) for n in range(1, 9)]
    since = [run(64, 15, recurrence=n) for n in range(9, 13)]
    assert bound_of_proven(JOB, before).cost_j == pytest.approx(2 * 500, rel=0.1)
    assert bound_of_proven(JOB, [*before, *since]).cost_j == pytest.approx(2 * 1500, rel=0.1)


def long_run(*extra, **changes):
    """The choice after one run of 1 MJ, and after what else has run."""
    return choose(run(64, 10, per_epoch=1e5), *extra, **changes)


def test_a_speed_check_pays_for_another_start_of_the_script():
    assert long_run(startup_s=60.0).stage is Stage.SPEED_CHECK
    slow = long_run(startup_s=1e5)  # 5 MJ, as much as five runs
    assert slow.stage is Stage.EXPLORE
    assert "measure" not in slow.why


def test_a_speed_that_the_neighbours_predict_is_not_checked():
    arms = {"candidates": (32, 64, 128, 192, 256)}
    first = run(64, 10, per_epoch=1e5)
    others = [speed_checked(arm, 1e5) for arm in (32, 128, 256)]
    unknown, predicted = (
        saved_by_check(assess(dataclasses.replace(JOB, **arms), runs), 3, 0.2)
        for runs in ([first], [first, *others])
    )
    assert unknown > 0 >= predicted


def test_a_try_that_is_stopped_costs_another_start():
    without, dear = (
        assess(
            dataclasses.replace(JOB, candidates=(64, 128, 4096), startup_s=startup_s),
            [run(64, 10, per_epoch=1e5)],
        )
        for startup_s in (0.0, 2e4)
    )
    assert dear.start == pytest.approx(1.0, rel=0.1)
    incumbent, near, far = without.values - dear.values
    assert (incumbent, near) == (0, 0)
    assert far == pytest.approx(dear.start)  # it would probably be stopped
