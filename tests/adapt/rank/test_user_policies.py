"""The user's own classes: what they may return, and what happens if they fail."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from zeusrun.adapt.rank.policies import Limits, PolicyRunner, TrainingObservation

OBSERVATION = TrainingObservation(64, 64)
LIMITS = Limits(1, 1000)


@pytest.fixture
def build(monkeypatch):
    """Return policies of a module ``mine`` with the given classes, and their warnings."""

    def build(**classes):
        monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(**classes))
        warnings = []
        return PolicyRunner([f"mine:{name}" for name in classes], warnings.append), warnings

    return build


def returns(value):
    return type("Policy", (), {"after_step": lambda _self, _seen: value})


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("many", "'many'"),
        (math.nan, "nan"),
        (math.inf, "inf"),
        (-3, "-3"),
        (0, "0"),
        (True, "True"),
        ([64], "[64]"),
    ],
)
def test_a_value_that_is_no_batch_size_is_reported_once_and_changes_nothing(build, value, shown):
    policies, warnings = build(Bad=returns(value))
    policies.call("after_step", lambda: OBSERVATION)
    policies.call("after_step", lambda: OBSERVATION)
    assert policies.propose(OBSERVATION, LIMITS) is None
    (problem,) = warnings
    assert problem == (
        f"after_step of mine:Bad returned {shown}, which is no batch size; the batch size stays as "
        "it was, and the class is not called again in this run. Correct it"
    )


def test_the_last_batch_size_returned_is_the_proposal(build):
    policies, warnings = build(A=returns(96), B=returns(None), C=returns(128.0))
    policies.call("before_step", lambda: OBSERVATION)  # none of them has it
    assert policies.propose(OBSERVATION, LIMITS) is None
    policies.call("after_step", lambda: OBSERVATION)  # in the reverse order
    assert policies.propose(OBSERVATION, LIMITS).batch_size == 96
    assert policies.propose(OBSERVATION, LIMITS) is None
    assert warnings == []


def test_a_number_of_numpy_is_a_batch_size(build):
    policies, warnings = build(A=returns(np.int64(96)))
    policies.call("after_step", lambda: OBSERVATION)
    assert (policies.propose(OBSERVATION, LIMITS).batch_size, warnings) == (96, [])


def test_a_class_that_calls_sys_exit_does_not_end_the_training(build):
    policies, warnings = build(
        Bad=type("Bad", (), {"after_step": lambda _self, _seen: sys.exit(3)})
    )
    policies.call("after_step", lambda: OBSERVATION)
    assert warnings[0].startswith(
        "after_step of mine:Bad raised SystemExit: 3; the batch size stays"
    )


def test_a_class_that_fails_leaves_the_others(build):
    policies, warnings = build(Bad=returns("x"), Good=returns(96))
    policies.call("after_step", lambda: OBSERVATION)
    policies.call("after_step", lambda: OBSERVATION)
    assert policies.propose(OBSERVATION, LIMITS).batch_size == 96
    assert len(warnings) == 1


@pytest.mark.parametrize(
    ("classes", "name", "why"),
    [
        ({}, "nowhere:Class", "ModuleNotFoundError"),
        ({"Other": object}, "mine:Missing", "AttributeError"),
        ({"Demanding": lambda value: value}, "mine:Demanding", "TypeError"),
        ({"Leaving": sys.exit}, "mine:Leaving", "SystemExit"),
    ],
)
def test_a_class_that_cannot_be_created_is_refused(build, classes, name, why):
    build(Idle=returns(None))
    sys.modules["mine"] = SimpleNamespace(**classes)
    with pytest.raises(RuntimeError, match=rf"{name} cannot be used: {why}"):
        PolicyRunner([name], print)


def test_a_class_with_none_of_the_methods_is_refused(build):
    with pytest.raises(RuntimeError, match=r"mine:Idle has none of the methods .* after_step"):
        build(Idle=type("Idle", (), {"after_epochs": print}))
