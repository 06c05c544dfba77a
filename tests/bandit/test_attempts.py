"""When a recurrence ends without the target, and which attempt is its last."""

from __future__ import annotations

import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import MISSED, OOM, STOPPED, trial
from zeusrun.bandit.attempts import has_failed, is_last_attempt, is_target_in_doubt
from zeusrun.trial import TrialStatus

LOOKED = trial(128, TrialStatus.CANCELLED)


def made(*statuses):
    return [trial(64, status) for status in statuses]


@pytest.mark.parametrize(
    ("trials", "attempts", "last"),
    [
        ([], 1, False),  # the first attempt is free to try something
        (made(MISSED), 2, True),
        (made(MISSED), 3, False),
        (made(STOPPED, OOM), 3, True),
        ([*made(MISSED), LOOKED], 3, False),
        ([LOOKED], 2, False),
        (made(MISSED, MISSED, MISSED), 2, True),  # attempts was lowered in between
    ],
)
def test_the_last_attempt_is_the_last_one_allowed_after_a_failure(trials, attempts, last):
    assert is_last_attempt(trials, attempts) is last


def test_an_arm_has_failed_if_it_did_or_a_smaller_one_did_not_fit():
    trials = [trial(32, MISSED), trial(128, OOM), trial(16, TrialStatus.FAILED), LOOKED]
    failed = [arm for arm in (16, 32, 64, 128, 256) if has_failed(arm, trials)]
    assert failed == [32, 128, 256]
    assert not has_failed(64, [])


def test_a_target_is_in_doubt_once_two_arms_have_missed_what_nothing_ever_reached():
    two = [trial(64, MISSED), trial(32, STOPPED)]
    assert is_target_in_doubt(two, [run(64, 40, status=MISSED)])
    assert not is_target_in_doubt(two, [run(16, 10)])
    assert not is_target_in_doubt([*two[:1], trial(64, MISSED), trial(32, OOM)], [])
