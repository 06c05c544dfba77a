"""What the policy is asked of the next attempt."""

from __future__ import annotations

import pytest

from tests.factories import build_trial, load_job
from zeusrun.bandit.registry import create_policy
from zeusrun.history.memory import MemoryHistory
from zeusrun.launcher.choose import build_problem
from zeusrun.launcher.context import Submission
from zeusrun.trial import TrialStatus

MISSED, LOOKED = TrialStatus.MISSED, TrialStatus.CANCELLED


@pytest.fixture
def submission(tmp_path):
    return Submission(
        spec=load_job(tmp_path, attempts=3),
        history=MemoryHistory(),
        policy=create_policy("auto"),
        devices=(),
        world_size=1,
        torchrun=None,
        home=tmp_path,
        environment={},
    )


@pytest.mark.parametrize(
    ("endings", "last"),
    [((), False), ((MISSED,), False), ((MISSED, LOOKED), False), ((MISSED, LOOKED, MISSED), True)],
)
def test_the_policy_is_told_that_an_attempt_is_the_last_one(submission, endings, last):
    earlier = [build_trial(1, n, status=MISSED) for n in (1, 2)]
    now = [build_trial(2, n, status=status) for n, status in enumerate(endings, 1)]
    assert build_problem(submission, [*earlier, *now], 2).last_attempt is last
    assert not build_problem(submission, [*earlier, *now]).last_attempt  # of the next recurrence
