"""How far an attempt may go: whatever the machine does tonight, and whether another may follow."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.runs import run, speed_checked
from tests.bandit.scripts import OOM, STOPPED, problem, trial
from tests.bandit.test_invariants import histories, problems, unhurried
from zeusrun.bandit.auto.policy import Auto
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.stopping import bounded_choice, fit_bound
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

FAILED = TrialStatus.FAILED
TONIGHT = 9
BOUND = Bound(3000.0)


def past(arm, per_epoch=100.0, recurrence=1):
    return run(arm, per_epoch=per_epoch, recurrence=recurrence)


def fitted(arm, *runs):
    bound = fit_bound(problem(recurrence=TONIGHT), runs, arm, BOUND)
    return bound.epochs, bound.cost_j


def test_where_the_speed_is_known_the_bound_is_what_the_cost_usually_pays_for():
    nights = [past(64, 100.0, n) for n in (1, 2, 3)]
    assert fitted(64, *nights) == (30, 3000)
    assert fitted(64, *nights, past(64, 210.0, TONIGHT)) == (30, 3000)


def test_where_it_is_unknown_the_bound_grows_as_known_batch_sizes_are_slower_tonight():
    nights = [past(64, 100.0, n) for n in (1, 2, 3)]
    assert fitted(128, *nights) == (None, 3000)
    assert fitted(128, *nights, past(64, 200.0, TONIGHT)) == (None, pytest.approx(6000))
    assert fitted(128, *nights, past(64, 50.0, TONIGHT)) == (None, 3000)


def test_a_run_that_was_stopped_in_its_first_epoch_shows_no_speed_that_bounds_another():
    stopped = past(128, 20.0)._replace(status=STOPPED, epochs=None)
    assert fitted(128, past(64), stopped) == (None, 3000)
    assert fitted(128, past(64), stopped, past(128, 300.0, 2)) == (10, 3000)


def test_its_own_first_steps_excuse_nothing():
    own = speed_checked(128, 900.0)._replace(recurrence=TONIGHT)
    assert fitted(128, past(64), own) == (None, 3000)


def choose(*arms):
    """Choose these arms in turn, as long as they have not failed tonight."""

    def answer(now, runs):
        failed = [each.arm for each in runs if each.recurrence == now.recurrence]
        left = [arm for arm in arms if arm not in failed] or arms[-1:]
        return Decision(left[0], Stage.EXPLORE, "", bound=BOUND)

    return answer


@pytest.mark.parametrize(
    ("arms", "attempts_left", "bounded"),
    [
        ((64, 32), 5, True),
        ((64,), 5, False),  # it would be a repeat
        ((64, 32), 1, False),  # attempts: 1 included
        ((64, 32), 2, True),
        ((64, 32), None, True),  # nobody counts
    ],
)
def test_a_run_that_no_attempt_could_follow_has_no_bound(arms, attempts_left, bounded):
    now = problem(recurrence=TONIGHT, attempts_left=attempts_left)
    decision = bounded_choice(choose(*arms), now, [past(64)], [])
    assert (decision.global_batch_size, decision.bound is not None) == (64, bounded)


@pytest.mark.parametrize(
    ("against", "left", "asked", "bounded"),
    [
        ({}, 5, 1, True),
        ({}, 1, 1, False),
        (dict.fromkeys((16, 32, 128, 256), FAILED), 5, 2, True),
        (dict.fromkeys((16, 32, 128), FAILED), 5, 1, True),
        ({16: OOM}, 5, 2, True),
        ({32: OOM}, 5, 1, True),
    ],
)
def test_a_policy_that_moves_on_is_asked_what_follows_only_if_nothing_surely_may(
    against, left, asked, bounded
):
    questions = []

    def ask(now, runs):
        questions.append(now.attempts_left)
        return choose(64, 32)(now, runs)

    runs = [past(64), *(past(arm)._replace(status=status) for arm, status in against.items())]
    now = problem(recurrence=TONIGHT, attempts_left=left)
    decision = bounded_choice(ask, now, runs, [], moves_on=True)
    assert (questions, decision.bound is not None) == ([left, left - 1][:asked], bounded)


def test_earlier_failures_of_the_recurrence_count():
    now = problem(recurrence=TONIGHT, attempts_left=4)
    made = [trial(64, STOPPED), trial(128, STOPPED)]
    runs = [past(arm, recurrence=TONIGHT)._replace(status=STOPPED) for arm in (64, 128)]
    assert bounded_choice(choose(64, 128, 32), now, runs, made).bound is None
    assert bounded_choice(choose(64, 128, 32, 16), now, runs, made).bound is not None


@unhurried
@given(problems, histories, st.sampled_from((None, 1, 2, 5)))
def test_whether_auto_is_asked_what_would_follow_changes_no_decision(now, past, left):
    now, runs = read_history(dataclasses.replace(now, attempts_left=left), past)
    made = [each for each in past if each.recurrence == now.recurrence]

    def ask(problem, runs):
        return Auto().choose(problem, runs, np.random.default_rng(0))

    asked = bounded_choice(ask, now, runs, made)
    assert bounded_choice(ask, now, runs, made, moves_on=True) == asked
