"""How many ranks a training wants, by a schedule or a class, and what follows their number."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.factories import CHILDREN
from zeusrun.elastic.rank.sizes import RankSchedule, RanksObservation, RanksPolicy, Scale


def take(at, text):
    """Return what is due in some steps."""
    schedule = RankSchedule(text)
    return [size for size in map(schedule.take, at) if size is not None]


def test_each_entry_of_a_schedule_is_taken_once():
    assert take(range(130), "10:2,100:1,120:0") == [2, 1, 0]
    assert take(range(130), None) == []


def test_an_entry_whose_step_was_passed_over_is_taken_and_those_before_it_are_not():
    assert take([150], "10:2, 100:1") == [1]


@pytest.fixture
def children(monkeypatch):
    monkeypatch.syspath_prepend(str(CHILDREN))
    yield
    sys.modules.pop("elastic_policy", None)


def ask(at, name):
    """Return what a class wants in some steps, and the warnings."""
    said = []
    policy = RanksPolicy(name, said.append)
    seen = [RanksObservation(2, step, 1, 32 * step, float(step)) for step in at]
    return [ranks for each in seen if (ranks := policy.ask(each)) is not None], said


def test_a_class_of_the_user_wants_what_it_returns_once(children):
    assert ask(range(30), "elastic_policy:Grows") == ([3], [])
    assert ask(range(30), None) == ([], [])


def test_a_class_that_fails_is_not_called_again(children):
    wanted, (text,) = ask(range(30), "elastic_policy:Fails")
    assert wanted == [0, 1]
    assert text.startswith("wanted_ranks of elastic_policy:Fails raised ZeroDivisionError")


def test_a_class_that_is_not_there_is_an_error(children):
    with pytest.raises(RuntimeError, match="elastic_policy:Nobody cannot be used: AttributeError"):
        ask([1], "elastic_policy:Nobody")


@pytest.mark.parametrize(
    ("rule", "factors"),
    [("none", [1, 1, 1]), ("linear", [1, 2, 0.5]), ("sqrt", [1, 2**0.5, 0.5**0.5])],
)
def test_a_batch_size_that_is_scaled_follows_the_ranks_and_the_learning_rate_follows_it(
    rule, factors
):
    environment = SimpleNamespace(world_size=2)
    given = {"batch_size": "scaled", "learning_rate": rule, "ranks": 2}
    scale, seen = Scale(given, environment), []
    for ranks in (2, 4, 1):
        environment.world_size = ranks
        seen.append((scale.follow(), scale.apply(48), scale.rates.factor))
    whys = ["there are 2 ranks", "there are 4 ranks", "there is one rank"]
    assert seen == list(zip(whys, [48, 96, 24], map(pytest.approx, factors), strict=True))


def test_a_batch_size_that_is_kept_stays():
    scale = Scale({"batch_size": "kept", "ranks": 2}, SimpleNamespace(world_size=4))
    assert (scale.apply(48), scale.follow(), scale.rates) == (48, None, None)
