"""How many ranks a training wants: schedules, and classes of the user."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from tests.factories import CHILDREN
from zeusrun.elastic.rank.sizes import RanksObservation, Scale, Sizes


class Orders(list):
    def order(self, size, by):
        self.append((size, by))


def follow(at, *, is_head=True, warn=None, **given):
    """Return what is ordered in some steps."""
    said = []
    sizes, orders = Sizes(given, (warn or said.append)), Orders()
    for step in at:
        seen = RanksObservation(2, step, 1, 32 * step, float(step))
        sizes.follow(seen, orders, is_head=is_head)
    return orders, said


@pytest.fixture
def children(monkeypatch):
    monkeypatch.syspath_prepend(str(CHILDREN))
    yield
    sys.modules.pop("elastic_policy", None)


def test_each_entry_of_a_schedule_is_ordered_once():
    orders, _ = follow(range(130), steps="10:2,100:1,120:0")
    assert orders == [(2, "the schedule"), (1, "the schedule"), (0, "the schedule")]


def test_an_entry_whose_step_was_passed_over_is_ordered_and_those_before_it_are_not():
    assert follow([150], steps="10:2, 100:1")[0] == [(1, "the schedule")]


def test_only_rank_0_orders():
    assert follow(range(130), is_head=False, steps="10:2")[0] == []


def test_a_class_of_the_user_orders_what_it_returns(children):
    orders, said = follow(range(30), policy="elastic_policy:Grows")
    assert (orders, said) == ([(3, "a policy")], [])


def test_a_class_that_fails_is_not_called_again(children):
    orders, (text,) = follow(range(30), policy="elastic_policy:Fails")
    assert orders == [(0, "a policy"), (1, "a policy")]
    assert text.startswith("wanted_ranks of elastic_policy:Fails raised ZeroDivisionError")


def test_a_class_that_is_not_there_is_an_error(children):
    with pytest.raises(RuntimeError, match="elastic_policy:Nobody cannot be used: AttributeError"):
        follow([1], policy="elastic_policy:Nobody")


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
