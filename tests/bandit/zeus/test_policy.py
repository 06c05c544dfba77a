from __future__ import annotations

import numpy as np
import pytest

from tests.bandit.scripts import (
    DISPATCHED,
    MISSED,
    OOM,
    STOPPED,
    bound_j,
    choose,
    history,
    problem,
    share,
    trial,
)
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.zeus.policy import Zeus
from zeusrun.trial import Stage

THREE = problem(candidates=(32, 64, 128))
EXPLORED = [(64, 300.0), (32, 200.0), (128, 210.0), (32, 200.0), (64, 300.0), (128, 210.0)]
NOISY = [(64, 300.0), (32, 190.0), (128, 200.0), (32, 210.0), (64, 310.0), (128, 220.0)]
UNKNOWN = [(64, None), (32, None), (128, None), (64, None), (32, None), (128, None)]


def explain(problem, trials, seed=0):
    beliefs = Zeus().explain(*read_history(problem, trials), np.random.default_rng(seed))
    return {belief.global_batch_size: belief for belief in beliefs}


# Thompson sampling


def test_a_near_tie_is_explored_and_a_dear_arm_hardly():
    past = history(*NOISY)
    assert 0.5 < share(THREE, past, 32) < 0.95
    assert share(THREE, past, 128) > 0.1
    assert share(THREE, past, 64) < 0.05


def test_more_runs_make_it_surer():
    past = history(*NOISY, *[(32, 190.0), (128, 200.0), (32, 210.0), (128, 220.0)] * 10)
    assert share(THREE, past, 32) > 0.9


def test_the_sentence_names_the_draws():
    decision = choose(THREE, history(*EXPLORED))
    assert decision.stage is Stage.EXPLOIT
    assert decision.why.startswith(f"{decision.global_batch_size} drew ")
    assert " against " in decision.why
    assert decision.why.endswith("after 2 runs")


def test_an_arm_whose_last_two_runs_failed_is_out():
    past = history(*EXPLORED, (32, MISSED), (32, STOPPED))
    assert share(THREE, past, 32) == 0


def test_an_arm_that_failed_once_stays_in_at_its_cost():
    assert share(THREE, history(*EXPLORED, (32, STOPPED)), 32) == share(
        THREE, history(*EXPLORED), 32
    )


def test_an_arm_that_failed_and_then_reached_the_target_stays_in():
    past = history(*EXPLORED, (32, MISSED), (32, 200.0), (32, MISSED))
    assert share(THREE, past, 32) > 0


@pytest.mark.parametrize("status", [MISSED, STOPPED])
def test_an_arm_that_failed_in_this_recurrence_is_not_repeated(status):
    past = [*history(*EXPLORED), trial(32, status, recurrence=1000)]
    assert share(THREE, past, 32) == 0
    assert share(problem(candidates=(32, 64, 128), recurrence=1001), past, 32) > 0


def test_survivors_that_all_failed_in_this_recurrence_are_run_again():
    past = history(*EXPLORED) + [trial(b, MISSED, recurrence=1000) for b in THREE.candidates]
    assert share(THREE, past, 32) > 0


def test_every_arm_failing_twice_means_the_default():
    past = history(*EXPLORED, *[(b, STOPPED) for b in THREE.candidates] * 2)
    decision = choose(THREE, past)
    assert decision.global_batch_size == 64
    assert "128 failed in its last two runs" in decision.why


def test_an_exploration_in_flight_does_not_hold_up_thompson_sampling():
    past = history(*EXPLORED)
    busy = [*past, trial(32, DISPATCHED, recurrence=999)]
    assert choose(THREE, past) == choose(THREE, busy)


def test_a_window_forgets_what_has_drifted_away():
    past = history(*EXPLORED, *[(32, 900.0)] * 2, *[(32, 150.0)] * 2)
    windowed = problem(candidates=(32, 64, 128), window=2)
    assert share(windowed, past, 32) > 0.9
    assert share(THREE, past, 32) < 0.2
    assert explain(windowed, past)[32].cost_j == 150.0


def test_a_failure_pushes_no_cost_out_of_the_window():
    past = history(*EXPLORED, (32, MISSED))
    assert explain(problem(candidates=(32, 64, 128), window=2), past)[32].cost_j == 200.0


def test_the_same_seed_chooses_the_same():
    past = history(*EXPLORED)
    assert [choose(THREE, past, s) for s in range(20)] == [
        choose(THREE, past, s) for s in range(20)
    ]


def test_a_changed_eta_knob_re_reads_the_history():
    past = [
        trial(b, energy_j=e, time_s=t, eta_knob=1.0)
        for b, e, t in [(64, 200.0, 2.0), (32, 100.0, 4.0), (128, 300.0, 1.0)] * 2
    ]
    assert share(THREE, past, 32) > 0.9
    assert share(problem(candidates=(32, 64, 128), eta_knob=0.0), past, 128) > 0.9


# Unknown costs


def test_with_no_cost_known_it_settles_on_the_default_and_says_why():
    decision = choose(THREE, history(*UNKNOWN))
    assert (decision.global_batch_size, decision.stage) == (64, Stage.EXPLOIT)
    assert decision.why == "no cost is known of what is left, so 64, the default"


def test_with_no_cost_known_and_the_default_out_it_settles_on_the_nearest():
    past = history((64, MISSED), *UNKNOWN[1:3], *UNKNOWN[4:])
    decision = choose(THREE, past)
    assert decision.global_batch_size == 32
    assert decision.why.endswith("so 32, the nearest to the default")


def test_once_costs_are_known_every_survivor_shows_its_own_first():
    past = history(*UNKNOWN, (64, 300.0))
    decision = choose(THREE, past)
    assert (decision.global_batch_size, decision.stage) == (32, Stage.EXPLORE)
    assert decision.why == "32 reached the target, but its cost is still unknown"


def test_a_survivor_whose_cost_stays_unknown_is_left_out_of_the_draw():
    past = history(*EXPLORED[:2], (128, None), *EXPLORED[3:5], *[(128, None)] * 3)
    assert choose(THREE, past).stage is Stage.EXPLOIT
    assert share(THREE, past, 128) == 0
    assert explain(THREE, past)[128].verdict == "out: never showed its cost"


# The bound


def test_the_bound_is_a_multiple_of_the_cheapest_reached_cost():
    assert bound_j(THREE, history(*EXPLORED)) == 2 * 200.0


def test_there_is_no_bound_without_a_cost_factor():
    assert bound_j(problem(cost_factor=None), history(*EXPLORED)) is None


@pytest.mark.parametrize("past", [[], [(64, MISSED), (32, STOPPED)], [(64, OOM)], [(64, None)]])
def test_there_is_no_bound_before_a_cost_is_known(past):
    assert bound_j(problem(), history(*past)) is None


def test_a_truncated_cost_never_sets_the_bound():
    past = [*history(*EXPLORED), trial(32, STOPPED, 1.0), trial(64, MISSED, 2.0)]
    assert bound_j(THREE, past) == 2 * 200.0


def test_the_bound_follows_the_window():
    past = history(*EXPLORED, *[(b, 900.0) for b in THREE.candidates])
    assert bound_j(problem(candidates=(32, 64, 128), window=1), past) == 1800.0


def test_the_bound_is_lifted_when_no_arm_is_left():
    past = history(*EXPLORED, *[(b, STOPPED) for b in THREE.candidates] * 2)
    assert bound_j(THREE, past) is None


# What it explains


def test_before_any_run_the_default_is_certain():
    beliefs = explain(problem(), [])
    assert list(beliefs) == [16, 32, 64, 128, 256]
    assert [b.chance for b in beliefs.values()] == [0, 0, 1, 0, 0]
    assert beliefs[64].verdict == "round 1: 64 comes first"
    assert beliefs[16].verdict == "not tried yet"
    assert beliefs[16].cost_j is None


def test_pruned_arms_say_why():
    beliefs = explain(problem(), history((64, 300.0), (32, MISSED), (128, OOM), (128, OOM)))
    assert beliefs[32].verdict == "out: failed in round 1"
    assert beliefs[16].verdict == "out: lies beyond 32, which failed in round 1"
    assert beliefs[128].verdict == "out: ran out of memory"
    assert beliefs[256].verdict == "out: larger than one that did not fit"
    assert (beliefs[128].trials, beliefs[128].reached) == (2, 0)


def test_survivors_show_their_costs_and_chances():
    past = history(*EXPLORED, (32, MISSED))
    beliefs = explain(THREE, past)
    assert (beliefs[32].trials, beliefs[32].reached, beliefs[32].cost_j) == (3, 2, 200.0)
    assert beliefs[32].cost_range_j == pytest.approx((200.0, 200.0))
    assert beliefs[32].failure_chance == pytest.approx(1 / 3)
    assert beliefs[32].epochs == 5
    assert beliefs[32].verdict == "the cheapest on average"
    assert beliefs[64].verdict == "100 J more than 32"
    for arm, belief in beliefs.items():
        assert belief.chance == pytest.approx(share(THREE, past, arm, draws=1000), abs=0.06)
