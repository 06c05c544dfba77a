"""What people read of the choices and beliefs of policy ``auto``."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from zeusrun.bandit.auto.evidence import Luck
from zeusrun.bandit.auto.words import belief_of, why_after_crash, why_incumbent, why_retry, why_try
from zeusrun.bandit.problem import Spread
from zeusrun.trial import Bound

ARMS = (16, 32, 64)


def assess(times=(1.0, 1.0, 1.0), values=(0.5, 0.0, 2.0), *, incumbent=1, cost_j=100.0, **evidence):
    """What is known if 32 is the cheapest, and each arm costs so many times as much."""
    known = {
        "results": {}, "reached": {32: [1]}, "crashed": {}, "outdated": (), "fitting": ARMS,
        "in_flight": (), "failed_since": dict.fromkeys(ARMS, 0), "failed_now": {16}, "ran_now": {16},
        "out_of_memory_now": set(),
        "crashed_now": {64, 16}, "last_reached": 32, "out_of_memory": {}, "speeds": {32: [1]},
        "timed": {}, "freedom": 4.0, "run_sd": 0.1, "speed_sd": 0.05, "speed_freedom": 4.0, "luck": Luck(Spread(0.1), {}, 0.0),
    }  # fmt: skip
    beliefs = SimpleNamespace(
        arms=ARMS, mean=np.log(100.0 * np.array(times)), covariance=np.eye(3) * 0.03,
        run_sd=0.1, incumbent=incumbent, incumbent_cost_j=cost_j,
        log_epochs=np.log([8.0, 10.0, 12.0]), log_misses=np.zeros(3), log_epoch_cost=np.log([12.0, 10.0, 9.0]),
    )  # fmt: skip
    return SimpleNamespace(
        beliefs=beliefs,
        evidence=SimpleNamespace(**{**known, **evidence}),
        values=None if values is None else np.array(values),
        problem=SimpleNamespace(last_attempt=evidence.get("last", False), epoch_limit=40),
    )


@pytest.mark.parametrize(
    ("times", "words"),
    [
        (1.004, "as expensive as"),
        (1.006, "1 % more expensive than"),
        (0.8, "20 % cheaper than"),
        (1.94, "94 % more expensive than"),
        (9.99, "899 % more expensive than"),
        (10.01, "far more expensive than"),
    ],
)
def test_a_batch_size_is_compared_with_the_cheapest_one(times, words):
    assert f" to be {words} 32, " in why_try(assess((times, 1.0, 1.0)), 0, 1)


@pytest.mark.parametrize(
    ("value", "worth"),
    [(0.42, "about 42 % of a run"), (1.04, "104 % of a run"), (1.05, "1.1 runs")],
)
def test_what_a_try_is_worth_is_told_in_runs(value, worth):
    told = why_try(assess(values=(value, 0.0, 0.0)), 0, 1)
    assert f"trying it is expected to save the cost of about {worth.removeprefix('about ')}" in told
    again = assess(values=(value, 0.0, 0.0), results={16: [1]})
    assert "another run of it is expected" in why_try(again, 0, 1)


@pytest.mark.parametrize(
    ("evidence", "why"),
    [
        ({}, "of the batch sizes that have failed least often since then, 64 is nearest to it"),
        ({"reached": {64: [1]}}, "64 has reached the target before"),
        ({"last": True}, "64 is nearest to it; this is the last attempt allowed"),
    ],
)
def test_why_a_batch_size_follows_a_failure_is_told(evidence, why):
    told = why_retry(assess(**evidence), 2)
    assert told.startswith("16 failed in this recurrence; ")
    assert told.endswith(why)


def test_why_the_cheapest_is_run_is_told():
    assert why_incumbent(assess(cost_j=None), 1).endswith("target, and no cost is known yet")
    assert why_incumbent(assess(), 1).startswith("32 is the cheapest batch size so far, 100 J a r")
    alone = assess()
    alone.beliefs.arms = (32,)
    assert why_incumbent(alone, 0) == "32 is the only candidate, 100 J a run"
    told = why_after_crash(assess(), 1)
    assert told.startswith("the script crashed with 16 and 64; 32 has reached the target before")


def test_what_is_believed_of_a_batch_size_is_known_as_far_as_something_was_seen():
    now = assess((2.0, 1.0, 1.0), results={16: [SimpleNamespace(status=None)]})
    belief = belief_of(now, 0, Bound(200.0), None)
    assert (belief.global_batch_size, belief.trials, belief.reached) == (16, 1, 0)
    assert (belief.epochs, belief.epoch_cost_j) == (pytest.approx(8.0), pytest.approx(12.0))
    assert belief.cost_j == pytest.approx(200.0 * math.exp(0.005))
    assert (belief.failure_chance, belief.value_j) == (pytest.approx(0.5), pytest.approx(50.0))
    low, high = belief.cost_range_j
    assert low < 200.0 == high  # the bound
    assert low == pytest.approx(129.8, abs=0.1)  # of a success: its top would be 344
    assert (belief.chance, belief.is_next) == (0.0, False)
    chosen = belief_of(now, 0, Bound(100.0), "because")
    assert (chosen.chance, chosen.verdict) == (1.0, "because")
    assert chosen.failure_chance > 0.9
    never = belief_of(assess(reached={}, speeds={}, cost_j=None), 2, Bound(200.0), "because")
    assert (never.trials, never.epochs, never.epoch_cost_j, never.cost_j) == (0, None, None, None)
    assert (never.cost_range_j, never.failure_chance, never.value_j) == (None, None, None)
    oom = belief_of(assess(out_of_memory={64: 2}), 2, None, "because")
    assert (oom.trials, oom.failure_chance) == (2, None)


@pytest.mark.parametrize(
    ("changes", "index", "verdict"),
    [
        ({}, 1, "the cheapest so far"),
        ({"fitting": (16, 32)}, 2, "out: it, or a smaller one, ran out of memory"),
        (
            {"fitting": (16, 32), "crashed": {64: "its script crashed in 9 recurrences"}},
            *(2, "out: its script crashed in 9 recurrences"),
        ),
        ({"in_flight": (64,)}, 2, "runs now, in another recurrence"),
        ({"incumbent": None}, 2, "may run once another one has failed or reached the target"),
        ({"values": None}, 2, "may run once a cost is known"),
        ({}, 2, "as expensive as 32; worth a try, but less than another"),
        ({"values": (0.0, 0.0, 0.0)}, 2, "as expensive as 32; not worth a try"),
        ({"values": (0.0, 0.0, 1e-9)}, 2, "as expensive as 32; a try would save too little"),
    ],
)
def test_the_state_of_a_batch_size_is_told(changes, index, verdict):
    assert belief_of(assess(**changes), index, None, None).verdict == verdict
