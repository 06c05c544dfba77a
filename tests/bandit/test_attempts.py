"""When a recurrence ends without the target, and which attempt is its last."""

from __future__ import annotations

import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import MISSED, OOM, STOPPED, trial
from zeusrun.bandit.stopping import count_attempts_left, is_repeat, is_target_in_doubt
from zeusrun.trial import Bound, Decision, Stage, TrialStatus

LOOKED = trial(128, TrialStatus.CANCELLED)


def made(*statuses):
    return [trial(64, status) for status in statuses]


@pytest.mark.parametrize(
    ("trials", "attempts", "left"),
    [
        ([], 1, 1),
        (made(MISSED), 2, 1),
        (made(MISSED), 3, 2),
        (made(STOPPED, OOM), 3, 1),
        ([*made(MISSED), LOOKED], 3, 2),
        ([LOOKED], 2, 2),
        (made(MISSED, TrialStatus.PREEMPTED), 3, 2),  # it may be continued
        (made(MISSED, MISSED, MISSED), 2, 1),  # attempts was lowered in between
    ],
)
def test_attempts_that_failed_are_no_longer_left(trials, attempts, left):
    assert count_attempts_left(trials, attempts) == left


def repeats(trials, bound=None):
    tries = [Decision(arm, Stage.RETRY, "", bound=bound) for arm in (16, 32, 64, 128, 256)]
    return [each.global_batch_size for each in tries if is_repeat(each, trials)]


def test_what_missed_or_did_not_fit_or_is_larger_than_that_is_a_repeat():
    trials = [trial(32, MISSED), trial(128, OOM), trial(16, TrialStatus.FAILED), LOOKED]
    assert repeats(trials) == repeats(trials, Bound(9.0)) == [32, 128, 256]
    assert repeats([]) == []


def test_what_was_stopped_for_its_cost_may_run_again_without_a_bound():
    trials = [trial(32, STOPPED), trial(64, MISSED)]
    assert repeats(trials, Bound(9.0)) == [32, 64]
    assert repeats(trials) == [64]


def test_a_target_is_in_doubt_once_two_arms_have_missed_what_nothing_ever_reached():
    two = [trial(64, MISSED), trial(32, STOPPED)]
    assert is_target_in_doubt(two, [run(64, 40, status=MISSED)])
    assert not is_target_in_doubt(two, [run(16, 10)])
    assert not is_target_in_doubt([*two[:1], trial(64, MISSED), trial(32, OOM)], [])
