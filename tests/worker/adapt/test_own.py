"""The user's own classes: what they may return, and what happens if they fail."""

from __future__ import annotations

import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from zeusrun.worker.adapt.own import OwnPolicies
from zeusrun.worker.adapt.policies import Seen

SEEN = Seen(64, 64)


@pytest.fixture
def build(monkeypatch):
    """Return policies of a module ``mine`` with the given classes, and the problems they say."""

    def build(**classes):
        monkeypatch.setitem(sys.modules, "mine", SimpleNamespace(**classes))
        said = []
        return OwnPolicies([f"mine:{name}" for name in classes], said.append), said

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
def test_what_is_no_batch_size_is_told_once_and_changes_nothing(build, value, shown):
    policies, said = build(Bad=returns(value))
    policies.call("after_step", SEEN)
    policies.call("after_step", SEEN)
    assert policies.take_wish() is None
    (problem,) = said
    assert problem == (
        f"after_step of mine:Bad returned {shown}, which is no batch size; the batch size stays as "
        "it was, and the class is not called again in this run. Correct it"
    )


def test_the_last_batch_size_asked_for_is_the_wish(build):
    policies, said = build(A=returns(96), B=returns(None), C=returns(128.0))
    policies.call("before_step", SEEN)  # none of them has it
    assert policies.take_wish() is None
    policies.call("after_step", SEEN)  # in the reverse order
    assert policies.take_wish().batch_size == 96
    assert policies.take_wish() is None
    assert said == []


def test_a_number_of_numpy_is_a_batch_size(build):
    policies, said = build(A=returns(np.int64(96)))
    policies.call("after_step", SEEN)
    assert (policies.take_wish().batch_size, said) == (96, [])


def test_a_class_that_calls_sys_exit_does_not_end_the_training(build):
    policies, said = build(Bad=type("Bad", (), {"after_step": lambda _self, _seen: sys.exit(3)}))
    policies.call("after_step", SEEN)
    assert said[0].startswith("after_step of mine:Bad raised SystemExit: 3; the batch size stays")


def test_a_class_that_fails_leaves_the_others(build):
    policies, said = build(Bad=returns("x"), Good=returns(96))
    policies.call("after_step", SEEN)
    policies.call("after_step", SEEN)
    assert policies.take_wish().batch_size == 96
    assert len(said) == 1


@pytest.mark.parametrize(
    ("classes", "name", "why"),
    [
        ({}, "nowhere:Class", "ModuleNotFoundError"),
        ({"Other": object}, "mine:Missing", "AttributeError"),
        ({"Demanding": lambda value: value}, "mine:Demanding", "TypeError"),
        ({"Leaving": sys.exit}, "mine:Leaving", "SystemExit"),
    ],
)
def test_a_class_that_cannot_be_made_is_refused(build, classes, name, why):
    build(**{name: lambda: None for name in classes})
    sys.modules["mine"] = SimpleNamespace(**classes)
    with pytest.raises(RuntimeError, match=rf"{name} cannot be used: {why}"):
        OwnPolicies([name], print)
