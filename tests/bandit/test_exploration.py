from __future__ import annotations

import pytest

from tests.bandit.scripts import (
    DISPATCHED,
    MISSED,
    OOM,
    STOPPED,
    choose,
    history,
    problem,
    trial,
)
from zeusrun.trial import Decision, Stage, TrialStatus

FIRST_ROUND = [(64, 300.0), (32, 200.0), (16, 400.0), (128, 350.0), (256, MISSED)]


def play(problem, surface, past=()) -> tuple[list[int], list]:
    """Run explorations to their end on a scripted surface; the arms in order, and the history."""
    entries, arms = list(past), []
    while (decision := choose(problem, history(*entries))).stage is Stage.EXPLORE:
        arms.append(decision.global_batch_size)
        entries.append((arms[-1], surface[arms[-1]]))
        assert len(arms) < 30
    return arms, entries


def test_the_first_run_is_the_default():
    assert choose(problem(), []) == Decision(64, Stage.EXPLORE, "round 1: 64 comes first")


def test_smaller_arms_come_next_in_descending_order():
    decision = choose(problem(), history((64, 812.0)))
    assert decision.global_batch_size == 32
    assert decision.why == "round 1: 32 is next below 64"


def test_larger_arms_follow_once_the_smallest_is_done():
    assert choose(problem(), history(*FIRST_ROUND[:3])).why == ("round 1: 128 is next above 64")


def test_the_second_round_starts_at_the_cheapest_arm():
    assert choose(problem(), history(*FIRST_ROUND)) == Decision(
        32,
        Stage.EXPLORE,
        "round 2: 32 comes first",
    )


def test_a_scripted_surface_is_explored_exactly_as_in_the_paper():
    surface = {16: 400.0, 32: 200.0, 64: 300.0, 128: 350.0, 256: MISSED}
    arms, _ = play(problem(), surface)
    assert arms == [64, 32, 16, 128, 256, 32, 16, 64, 128]


@pytest.mark.parametrize("failure", [MISSED, STOPPED])
def test_a_failure_ends_its_direction(failure):
    surface = {16: 100.0, 32: failure, 64: 300.0, 128: failure, 256: 100.0}
    arms, _ = play(problem(), surface)
    assert arms == [64, 32, 128, 64]


def test_a_default_that_fails_is_still_followed_downwards_then_upwards():
    surface = {16: 400.0, 32: 300.0, 64: MISSED, 128: 200.0, 256: 250.0}
    arms, _ = play(problem(), surface)
    assert arms == [64, 32, 16, 128, 256, 128, 32, 16, 256]


def test_an_arm_that_fails_in_the_second_round_is_pruned_with_what_lies_beyond():
    past = [*FIRST_ROUND, (32, 210.0), (16, 390.0), (64, STOPPED)]
    decision = choose(problem(), history(*past))
    assert decision.stage is Stage.EXPLOIT
    assert decision.global_batch_size in (16, 32)


def test_the_arm_that_starts_the_second_round_may_fail_without_ending_it():
    assert choose(problem(), history(*FIRST_ROUND, (32, MISSED))).global_batch_size == 16


def test_nothing_left_means_the_default_and_says_so():
    decision = choose(problem(), history((64, MISSED), (32, MISSED), (128, STOPPED)))
    assert decision.global_batch_size == 64
    assert decision.why.startswith("no batch size is left, so the default, 64: 16 lies beyond 32")
    assert "128 failed in round 1" in decision.why


def test_a_single_candidate_is_run_twice_and_then_kept():
    only = problem(candidates=(64,))
    arms, entries = play(only, {64: 100.0})
    assert arms == [64, 64]
    decision = choose(only, history(*entries))
    assert decision == Decision(
        64, Stage.EXPLOIT, "64 is the only batch size left, 100 J on average"
    )


@pytest.mark.parametrize(
    "status",
    [TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.PREEMPTED, TrialStatus.LOST],
)
def test_a_run_that_says_nothing_is_repeated(status):
    assert choose(problem(), history((64, 300.0), (32, status))).global_batch_size == 32


def test_extra_runs_of_an_arm_count_towards_its_second_round():
    past = [*FIRST_ROUND[:2], (32, 205.0), *FIRST_ROUND[2:]]
    assert choose(problem(), history(*past)).global_batch_size == 16


def test_an_extra_failure_counts_in_the_second_round_and_not_before():
    past = [(64, 300.0), (64, MISSED), (32, 200.0), (16, 400.0)]
    assert choose(problem(), history(*past)).global_batch_size == 128
    surface = {16: 400.0, 32: 200.0, 64: 300.0, 128: 350.0, 256: MISSED}
    arms, entries = play(problem(), surface, past)
    assert arms == [128, 256, 32, 16]  # 64 fails above 32, so 128 lies beyond it
    assert choose(problem(), history(*entries)).global_batch_size in (16, 32)


def test_exploration_does_not_depend_on_the_order_of_different_arms():
    past = history(*FIRST_ROUND)
    assert choose(problem(), past) == choose(problem(), past[::-1])


def test_a_window_does_not_reopen_the_exploration():
    past = [*FIRST_ROUND, (32, 210.0), (16, 390.0), (64, 310.0), (128, 340.0)] + [(32, 1.0)] * 20
    assert choose(problem(window=1), history(*past)).stage is Stage.EXPLOIT


# Memory


def test_an_arm_that_has_trained_is_tried_again_after_one_crash_for_memory():
    past = [(64, 300.0), (32, MISSED), (128, 200.0), (128, OOM)]
    arms, _ = play(problem(), {256: MISSED, 128: 200.0, 64: 300.0}, past)
    assert arms == [256, 128, 64]


def test_an_arm_out_of_memory_is_pruned_with_all_larger_ones():
    past = [*FIRST_ROUND[:3], (128, OOM)]
    decision = choose(problem(), history(*past))
    assert decision.global_batch_size == 32
    assert decision.why.startswith("round 2")


def test_larger_arms_are_pruned_even_if_they_had_reached_the_target():
    past = [*FIRST_ROUND[:4], (256, 100.0), (64, OOM), (64, OOM)]
    decision = choose(problem(), history(*past))
    assert decision.global_batch_size == 32
    arms, entries = play(problem(), {16: 400.0, 32: 200.0}, past)
    assert arms == [32, 16]
    assert choose(problem(), history(*entries)).global_batch_size in (16, 32)


def test_a_default_out_of_memory_hands_over_to_the_nearest_smaller_arm():
    decision = choose(problem(), history((64, OOM)))
    assert decision.global_batch_size == 32


def test_every_arm_out_of_memory_means_the_default():
    decision = choose(problem(), history((16, OOM), (16, OOM)))
    assert decision.global_batch_size == 64
    assert decision.why.startswith("no batch size is left")


# Attempts of one recurrence


def attempts(*entries):
    return [
        trial(arm, status, recurrence=1000, attempt=n) for n, (arm, status) in enumerate(entries)
    ]


def test_an_arm_out_of_memory_is_not_repeated_in_its_recurrence():
    assert choose(problem(), attempts((64, OOM))).global_batch_size == 32
    past = history(*FIRST_ROUND[:3]) + attempts((128, OOM))
    assert choose(problem(), past).global_batch_size == 32
    assert choose(problem(recurrence=1001), past).global_batch_size == 32


def test_the_only_candidate_is_repeated_in_its_recurrence():
    decision = choose(problem(candidates=(64,)), attempts((64, OOM)))
    assert decision.global_batch_size == 64
    assert decision.why.startswith("no batch size is left")


# Concurrent recurrences


def in_flight(arm, stage=Stage.EXPLORE, recurrence=999):
    return trial(arm, DISPATCHED, stage=stage, recurrence=recurrence)


def test_beside_an_exploration_the_cheapest_known_arm_runs():
    past = [*history(*FIRST_ROUND[:2]), in_flight(16)]
    assert choose(problem(), past) == Decision(
        32, Stage.CONCURRENT, "another recurrence is exploring; 32 is the cheapest so far, 200 J"
    )


def test_beside_the_very_first_run_the_default_runs():
    decision = choose(problem(), [in_flight(64)])
    assert (decision.global_batch_size, decision.stage) == (64, Stage.CONCURRENT)


def test_beside_an_exploration_a_default_that_failed_does_not_run():
    decision = choose(problem(), [*history((64, MISSED)), in_flight(32)])
    assert (decision.global_batch_size, decision.stage) == (32, Stage.CONCURRENT)


def test_beside_an_exploration_an_arm_that_failed_since_does_not_run():
    past = [*history(*FIRST_ROUND[:2], (32, MISSED)), in_flight(16)]
    assert choose(problem(), past).global_batch_size == 64


def test_beside_an_exploration_an_arm_that_failed_in_this_recurrence_does_not_run():
    past = [*history(*FIRST_ROUND[:2]), in_flight(16), *attempts((32, STOPPED))]
    assert choose(problem(), past).global_batch_size == 64


@pytest.mark.parametrize(
    "other",
    [
        in_flight(16, recurrence=1000),
        in_flight(16, stage=Stage.CONCURRENT),
        in_flight(16, stage=Stage.FORCED),
    ],
    ids=["own recurrence", "concurrent", "forced"],
)
def test_other_trials_in_flight_do_not_hold_up_the_exploration(other):
    decision = choose(problem(), [*history(*FIRST_ROUND[:2]), other])
    assert (decision.global_batch_size, decision.stage) == (16, Stage.EXPLORE)


# Unknown costs


def test_a_reached_target_of_unknown_cost_counts_as_reached():
    decision = choose(problem(), history((64, None)))
    assert decision.why == "round 1: 32 is next below 64"


def test_the_second_round_starts_near_the_default_if_no_cost_is_known():
    past = [(64, MISSED), (32, None), (16, None), (128, None), (256, None)]
    decision = choose(problem(), history(*past))
    assert decision.global_batch_size == 32


def test_an_arm_of_unknown_cost_is_never_the_cheapest():
    past = [(64, 300.0), (32, None), (16, 400.0), (128, MISSED)]
    assert choose(problem(), history(*past)).global_batch_size == 64
