"""What holds of every policy, whatever the history."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.runs import flying, run
from tests.bandit.scripts import OOM, REACHED, problem, trial, watts
from tests.bandit.test_invariants import histories, problems, unhurried
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.problem import Running
from zeusrun.bandit.registry import POLICIES, create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import bounded_choice
from zeusrun.bandit.tally import build_tally
from zeusrun.trial import PowerPoint, Stage, TrialStatus

names = pytest.mark.parametrize("name", POLICIES)


def rng():
    return np.random.default_rng(7)


@names
@unhurried
@given(problems, histories)
def test_it_chooses_a_candidate_says_why_and_explains_all(name, problem, past):
    now, runs = read_history(problem, past)
    policy = create_policy(name)
    decision = policy.choose(now, runs, rng())
    assert decision.global_batch_size in problem.candidates
    assert decision.why
    assert decision.bound is None or decision.bound.cost_j > 0
    assert policy.choose(now, runs, rng()) == decision
    beliefs = policy.explain(now, runs, rng())
    assert [belief.global_batch_size for belief in beliefs] == list(problem.candidates)
    assert sum(belief.chance for belief in beliefs) == pytest.approx(1)
    assert all(belief.verdict for belief in beliefs)
    assert all(": " in clause for clause in describe_kept(problem, past))


@names
@given(st.integers(0, 100), st.none() | st.floats(0, 1e6), st.none() | st.floats(-1, 1))
def test_a_review_gives_a_reason_or_nothing(name, epochs, cost_j, best):
    policy = create_policy(name)
    runs = [run(64, 10), run(128, 12)]
    decision = policy.choose(problem(max_power_w=50.0), runs, rng())
    why = policy.review(problem(), decision, Running(epochs, cost_j, best))
    assert why is None or len(why) > 10


LIMITS = (100.0, 150.0, 200.0, 250.0)


@names
@given(st.lists(st.tuples(st.floats(0.1, 100), st.floats(1, 300)), min_size=4, max_size=4))
def test_its_search_over_limits_ends_whatever_is_measured(name, measured):
    policy = create_policy(name)
    now = problem(power_limits_w=LIMITS, max_power_w=250.0, gpu_count=1, eta_knob=0.5)
    decision = policy.choose(now, [], rng())
    limit, profile = watts(decision.lever), []
    while limit not in {point.power_limit_w for point in profile}:
        assert limit in LIMITS
        profile.append(PowerPoint(limit, *measured[LIMITS.index(limit)]))
        limit = watts(policy.next_lever(now, decision, profile))
    assert len(profile) <= len(LIMITS)


@names
def test_what_does_not_fit_in_memory_is_left_alone_while_something_fits(name):
    now, runs = read_history(problem(), [trial(256, OOM)] * 2)
    assert create_policy(name).choose(now, runs, rng()).global_batch_size < 256


def test_a_batch_size_between_candidates_that_does_not_fit_rules_larger_ones_out():
    """One that adapts may grow to any size."""
    now, runs = read_history(problem(), [trial(200, OOM)] * 2)
    assert build_tally(now, runs).fitting == (16, 32, 64, 128)


@names
def test_many_in_flight_are_no_obstacle(name):
    runs = [run(64, 10), *(flying(arm) for arm in (16, 32, 64, 128, 256))]
    decision = create_policy(name).choose(problem(), runs, rng())
    assert decision.global_batch_size in problem().candidates


@pytest.mark.parametrize("name", ["auto", "zeus", "grid"])
def test_a_failed_batch_size_is_not_repeated_at_once_while_another_is_proven(name):
    runs = [run(arm, 10) for arm in (32, 64, 128) for _ in range(3)]
    runs.append(run(64, 9, status=TrialStatus.STOPPED, recurrence=1000))
    assert create_policy(name).choose(problem(), runs, rng()).global_batch_size != 64


@pytest.mark.parametrize("name", ["auto", "zeus", "grid"])
def test_the_last_attempt_goes_to_what_reaches_the_target_most_reliably(name):
    runs = [run(64, 10), run(32, 12), run(32, 12, status=TrialStatus.STOPPED)]
    runs.append(run(128, 1, status=TrialStatus.STOPPED, recurrence=1000))
    decision = create_policy(name).choose(problem(last_attempt=True), runs, rng())
    assert (decision.global_batch_size, decision.stage) == (64, Stage.RETRY)
    assert "the last attempt allowed" in decision.why


@pytest.mark.parametrize("name", ["auto", "zeus", "grid"])
def test_a_batch_size_that_missed_the_target_on_shared_devices_is_not_repeated_at_once(name):
    missed = run(64, 40, status=TrialStatus.MISSED, recurrence=1000, per_epoch=None, local=False)
    assert create_policy(name).choose(problem(), [missed], rng()).global_batch_size != 64


@names
def test_a_last_attempt_before_anything_has_reached_the_target_is_a_choice_as_any(name):
    runs = [run(64, 40, status=TrialStatus.MISSED, recurrence=1000)]
    policy, now = create_policy(name), problem(last_attempt=True)
    arm = policy.choose(now, runs, rng()).global_batch_size
    assert arm == policy.choose(problem(), runs, rng()).global_batch_size


@names
@pytest.mark.parametrize(
    "point", [(100.0, 1e-300, 1e300), (100.0, 1.0, -4.0), (100.0, 1.0, 0.0), (100.0, -1.0, 10.0)]
)
def test_a_damaged_profile_or_cost_stops_no_submit(name, point):
    odd = {"energy_j": 1e300, "cost_j": 1e300, "max_power_w": 1e300}
    trials = [
        trial(64, recurrence=1, power_profile=(PowerPoint(*point),), whole_steps=50),
        trial(32, recurrence=2, **odd),
        trial(32, recurrence=3),
        trial(128, recurrence=4, power_profile=(PowerPoint(200.0, 1.0, 0.0), PowerPoint(*point))),
    ]
    policy = create_policy(name)
    for eta_knob in (0.0, 0.5, 1.0):
        now = problem(eta_knob=eta_knob, power_limits_w=(100.0, 200.0))
        read = read_history(dataclasses.replace(now, samples_per_epoch=640.0), trials)
        decision = bounded_choice(lambda *asked: policy.choose(*asked, rng()), *read, [])
        bound = decision.bound
        assert bound is None or not math.isnan(bound.cost_j + (bound.epochs or 0.0))
        for belief in policy.explain(*read, rng()):
            assert belief.cost_j is None or not math.isnan(belief.cost_j)


TRIES = pytest.mark.parametrize("name", ["auto", "grid", "zeus"])


def choose_nights(name, crash, nights, **changes):
    """Choose for some nights of two attempts; ``crash`` says how a batch size ends, if it does."""
    policy, trials, chosen = create_policy(name), [], []
    for night in range(nights):
        chosen.append([])
        for _ in range(2):
            asked = problem(recurrence=night, fingerprint={"script": "b"}, **changes)
            now, runs = read_history(asked, trials)
            arm = policy.choose(now, runs, rng()).global_batch_size
            cause = crash(arm, night)
            how = {"status": TrialStatus.FAILED if cause else REACHED, "cause": cause}
            trials.append(trial(arm, recurrence=night, fingerprint={"script": "b"}, **how))
            chosen[-1].append(arm)
            if cause is None:
                break
    return chosen


@TRIES
def test_a_default_that_always_crashes_makes_way_for_another_batch_size(name):
    first, second, *later = choose_nights(name, lambda arm, _: "shape" if arm == 64 else None, 12)
    assert first == [64, 64]
    assert 64 not in second
    assert sum(64 in night for night in later) <= 1  # another one has trained since


@TRIES
def test_a_crash_that_another_batch_size_shows_too_sends_the_choice_back(name):
    nights = choose_nights(name, lambda *_: "no such file", 6)
    assert [arm for night in nights for arm in night if arm != 64] == [nights[1][0]]


@TRIES
def test_each_other_batch_size_is_tried_once_while_all_crash_in_another_way(name):
    nights = choose_nights(name, lambda arm, _: f"shape {arm}", 12)
    every = [arm for night in nights for arm in night]
    assert all(every.count(arm) == 1 for arm in problem().candidates if arm != 64)


@TRIES
def test_a_default_that_crashed_while_the_disk_was_full_is_the_choice_again(name):
    nights = choose_nights(name, lambda _, night: "disk" if night < 1 else None, 9)
    assert nights[0] == [64, 64]
    assert [64] in nights[2:]


@TRIES
def test_an_edit_lifts_what_crashes_have_ruled_out(name):
    crashed = [
        trial(64, TrialStatus.FAILED, cause="shape", fingerprint={"script": "a"}, recurrence=n)
        for n in (1, 2)
    ]
    choices = {}
    for script in "ab":
        now, runs = read_history(problem(fingerprint={"script": script}), crashed)
        choices[script] = create_policy(name).choose(now, runs, rng()).global_batch_size
    assert choices["a"] != 64
    assert choices["b"] == 64


def test_fixed_never_leaves_the_default_and_never_stops_it():
    runs = [run(128, 1), run(64, 40, status=TrialStatus.STOPPED, recurrence=1000)]
    decision = create_policy("fixed").choose(problem(), runs, rng())
    assert (decision.global_batch_size, decision.bound) == (64, None)
    assert decision.why == "64 is the default, and policy fixed never leaves it"


def test_grid_tries_the_default_then_the_others_in_order_then_stays_with_the_cheapest():
    policy, runs, order = create_policy("grid"), [], []
    for _ in range(7):
        arm = policy.choose(problem(), runs, rng()).global_batch_size
        order.append(arm)
        runs.append(run(arm, {32: 5}.get(arm, 10)))
    assert order == [64, 16, 32, 128, 256, 32, 32]


@names
def test_after_a_crash_for_memory_no_larger_arm_follows_in_the_same_recurrence(name):
    past = [trial(arm, REACHED, recurrence=n) for n, arm in enumerate((64, 128, 256), start=1)]
    crash = trial(128, OOM, recurrence=1000)
    now, runs = read_history(problem(recurrence=1000), [*past, crash])
    decision = create_policy(name).choose(now, runs, np.random.default_rng(0))
    if name != "fixed":
        assert decision.global_batch_size < 128
