from __future__ import annotations

import pytest

from zeusrun.bandit.registry import POLICIES, Policy, create_policy
from zeusrun.errors import ExitCode, UsageError


@pytest.mark.parametrize("name", POLICIES)
def test_every_name_makes_a_policy(name):
    policy: Policy = create_policy(name)
    assert policy.name == name


def test_a_misspelt_name_is_refused_with_a_suggestion():
    with pytest.raises(UsageError, match="did you mean 'zeus'") as caught:
        create_policy("zues")
    assert caught.value.exit_code is ExitCode.BAD_INPUT


def test_an_unlike_name_is_refused_with_the_list():
    with pytest.raises(UsageError, match="there are auto, zeus, fixed, grid"):
        create_policy("q")
