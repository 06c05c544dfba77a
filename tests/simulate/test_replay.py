"""Everything is charged, and nobody sees a trial before it ends."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.synthetic import FAMILIES
from tests.simulate.jobs import Scripted, job
from zeusrun.bandit.auto.policy import SPEED_CHECK_S
from zeusrun.bandit.registry import POLICIES, create_policy
from zeusrun.lever import power_lever
from zeusrun.simulate.engine import PROBE_S, LearningCurve, Rate
from zeusrun.simulate.replay import ask_about, replay
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

EIGHT = Decision(8, Stage.EXPLOIT, "")
SIXTEEN = Decision(16, Stage.EXPLORE, "")
MISSES = {8: [LearningCurve(None, ((1, 0.5),))], 16: [LearningCurve(4, ((4, 1.0),))]}


def play(policy, recurrences=1, made=None, **options):
    made = made or job()
    return replay(made, policy, ask_about(made, 0.5, 2.0), recurrences, 0, **options)


def test_a_run_is_charged_its_epochs():
    (played,) = play(Scripted(EIGHT))
    trial = played.trial
    # 2 epochs of 100 s at 100 W of 200 W
    assert (trial.status, trial.epochs) == (TrialStatus.REACHED, 2)
    assert (trial.time_s, trial.energy_j) == (200, 20_000)
    assert trial.cost_j == 0.5 * 20_000 + 0.5 * 200 * 200
    assert (played.start_s, played.end_s) == (0, 200)


def test_the_first_run_pays_for_its_profiling_and_the_second_no_more():
    rates = {8: {100.0: Rate(200.0, 50.0), 200.0: Rate(100.0, 100.0)}}
    made = job(curves={8: [LearningCurve(2, ((2, 1.0),))]}, rates=rates)
    decision = Decision(8, Stage.EXPLOIT, "", power_lever(200.0))
    first, second = (played.trial for played in play(Scripted(decision), 2, made))
    # both limits for 12 s each, then the rest of 2 epochs at the lower one
    fast, slow = PROBE_S / 100, PROBE_S / 200
    rest_s = (2 - fast - slow) * 200
    assert first.time_s == pytest.approx(2 * PROBE_S + rest_s)
    assert first.energy_j == pytest.approx(PROBE_S * 100 + PROBE_S * 50 + rest_s * 50)
    assert [point.power_limit_w for point in first.power_profile] == [200, 100]
    assert second.power_profile in {(), first.power_profile}


def test_a_run_that_is_stopped_is_charged_until_then():
    policy = Scripted(SIXTEEN, EIGHT, stop_after=(16, 1))
    stopped, reached = (played.trial for played in play(policy))
    assert (stopped.status, stopped.epochs, stopped.time_s) == (TrialStatus.STOPPED, 1, 100)
    assert (reached.status, reached.attempt, reached.time_s) == (TrialStatus.REACHED, 2, 200)


def test_a_run_stops_the_moment_its_cost_passes_the_bound():
    bound = Decision(16, Stage.EXPLORE, "", bound=Bound(37_500.0))
    stopped = play(Scripted(bound, EIGHT))[0].trial
    # 150 W of cost: 37.5 kJ are 250 s
    assert stopped.status is TrialStatus.STOPPED
    assert (stopped.cost_j, stopped.time_s) == (37_500, 250)


def test_a_miss_is_retried_at_once_within_the_recurrence():
    first, second = play(Scripted(EIGHT, SIXTEEN), made=job(MISSES))
    assert (first.trial.status, first.trial.epochs) == (TrialStatus.MISSED, 10)
    assert (second.trial.recurrence, second.trial.attempt) == (1, 2)
    assert (second.start_s, second.trial.cost_j) == (first.end_s, 4 * 100 * 150)


FOUR = {arm: [LearningCurve(None, ())] for arm in (4, 8, 16)} | {
    32: [LearningCurve(2, ((2, 1.0),))]
}
FIRST_REACHED = Decision(32, Stage.EXPLORE, "")


def arms_by_recurrence(played):
    return [[p.trial.global_batch_size for p in played if p.trial.recurrence == n] for n in (1, 2)]


def test_a_recurrence_ends_after_its_last_attempt():
    tries = [Decision(arm, Stage.EXPLORE, "") for arm in (4, 8, 16, 32)]
    policy = Scripted(FIRST_REACHED, *tries)
    played = play(policy, 2, job(FOUR, default=32), attempts=3)
    assert arms_by_recurrence(played) == [[32], [4, 8, 16]]
    assert policy.last_attempts == [False, False, False, True]


def test_as_in_a_submit_nothing_that_failed_is_repeated_in_a_recurrence():
    policy = Scripted(FIRST_REACHED, EIGHT, EIGHT)
    assert arms_by_recurrence(play(policy, 2, job(FOUR, default=32))) == [[32], [8]]


def test_as_in_a_submit_two_misses_end_a_recurrence_before_anything_has_reached_the_target():
    policy = Scripted(EIGHT, SIXTEEN, FIRST_REACHED)
    assert arms_by_recurrence(play(policy, 2, job(FOUR, default=32))) == [[8, 16], [32]]


@pytest.mark.parametrize("seed", [0, 1])
def test_a_best_batch_size_that_moves_far_leaves_no_recurrence_without_a_model(seed):
    made = FAMILIES["glide"](np.random.default_rng([seed, 77]))
    played = replay(made, create_policy("auto"), ask_about(made, 0.5, 2.0), 50, seed)
    reached = {p.trial.recurrence for p in played if p.trial.status is TrialStatus.REACHED}
    assert len(reached) == 50


def test_what_is_only_looked_at_is_no_attempt():
    rates = {arm: {200.0: Rate(100.0, 100.0)} for arm in (8, 16)}
    look = Decision(16, Stage.SPEED_CHECK, "", power_lever(200.0))
    policy = Scripted(look, EIGHT, EIGHT)  # asked again with the speed, it goes elsewhere
    looked, reached = play(policy, made=job(rates=rates))
    assert looked.trial.status is TrialStatus.CANCELLED
    assert looked.trial.time_s == pytest.approx(SPEED_CHECK_S)
    assert (reached.trial.attempt, reached.start_s) == (1, looked.end_s)


def test_one_after_the_other_sees_all_that_ended():
    policy = Scripted(EIGHT)
    play(policy, 3)
    assert policy.seen == [
        (1, []),
        (2, [(8, "REACHED")]),
        (3, [(8, "REACHED"), (8, "REACHED")]),
    ]


def test_in_flight_others_are_seen_to_run_until_they_end():
    policy = Scripted(EIGHT, SIXTEEN, EIGHT)
    played = play(policy, 4, in_flight=2)
    assert [(each.trial.recurrence, each.start_s, each.end_s) for each in played] == [
        (1, 0, 200),
        (2, 0, 400),
        (3, 200, 400),
        (4, 400, 600),
    ]
    assert policy.seen == [
        (1, []),
        (2, [(8, "DISPATCHED")]),
        (3, [(8, "REACHED"), (16, "DISPATCHED")]),
        (4, [(8, "REACHED"), (16, "REACHED"), (8, "REACHED")]),
    ]


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("in_flight", [1, 3])
def test_the_same_seed_gives_the_same_replay(name, in_flight):
    runs = [play(create_policy(name), 12, in_flight=in_flight) for _ in range(2)]
    assert runs[0] == runs[1]
    assert {each.trial.recurrence for each in runs[0]} == set(range(1, 13))


@pytest.mark.parametrize(("startup_s", "most", "extra"), [(0.0, 2, 6), (300.0, 2, 1)])
def test_thirty_equal_batch_sizes_make_no_storm_of_speed_checks(startup_s, most, extra):
    """They made up to eleven launches in a recurrence, and 28 more than recurrences."""
    arms = tuple(range(64, 124, 2))
    for seed in range(3):
        rng = np.random.default_rng(seed)
        epochs = {arm: np.maximum(1, rng.normal(15, 1.5, 20).round()).astype(int) for arm in arms}
        curves = {
            arm: [LearningCurve(n, ((n // 2, 0.5), (n, 1.0))) for n in own.tolist()]
            for arm, own in epochs.items()
        }
        rates = {arm: {300.0: Rate(100.0, 200.0)} for arm in arms}
        made = job(curves, rates, default=94, max_epochs=40, max_power_w=300.0)
        problem = replace(ask_about(made, 0.5, 2.0), startup_s=startup_s)
        played = replay(made, create_policy("auto"), problem, 50, seed)
        launches = Counter(each.trial.recurrence for each in played)
        assert max(launches.values()) <= most
        assert len(played) - 50 <= extra
