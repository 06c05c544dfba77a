"""Costs that move from night to night, and what people are told of it."""

from __future__ import annotations

import dataclasses
import random

from tests.notify.test_notices import trial
from zeusrun.analysis.usual import describe_shifts
from zeusrun.trial import TrialStatus


def nights(*costs, arm=32, epochs=5, start=1):
    return [
        dataclasses.replace(
            trial(n, cost_j=cost, epochs=epochs), global_batch_size=arm, default_batch_size=32
        )
        for n, cost in enumerate(costs, start)
    ]


def test_costs_within_their_spread_are_no_move():
    rng = random.Random(3)
    costs = [100 * 2.718 ** rng.gauss(0, 0.1) for _ in range(60)]
    assert describe_shifts(nights(*costs)) == []
    assert describe_shifts([]) == []


def test_two_dear_nights_are_a_move_and_it_is_told_since_when():
    trials = nights(*[100.0] * 8, *[180.0] * 3)
    assert describe_shifts(trials) == [
        "batch size 32 costs 1.8 times as much since job-9-1: 180 J, before it 100 J in 8 runs"
    ]


def test_one_dear_night_is_told_as_one_and_forgotten_after_a_usual_one():
    trials = nights(*[100.0] * 8, 250.0)
    (sentence,) = describe_shifts(trials)
    assert sentence.startswith("job-9-1 cost 250 J, 2.5 times the usual cost of batch size 32")
    for usual in ([100.0], [100.0] * 3):
        assert describe_shifts(nights(*[100.0] * 8, 250.0, *usual)) == []


def test_costs_that_fall_are_a_move_too():
    assert describe_shifts(nights(*[100.0] * 8, 40.0, 42.0)) == [
        "batch size 32 costs 0.41 times as much since job-9-1: 41.0 J, before it 100 J in 8 runs"
    ]


def test_forgotten_nights_are_no_move():
    moved = nights(*[100.0] * 8) + nights(*[300.0] * 2, epochs=15, start=9)
    forgotten = [dataclasses.replace(each, forgotten=each.recurrence > 8) for each in moved]
    assert describe_shifts(forgotten) == []


def test_each_batch_size_moves_by_itself():
    trials = nights(*[100.0] * 8, *[180.0] * 2) + nights(*[50.0] * 8, arm=64, start=20)
    assert [sentence.split()[2] for sentence in describe_shifts(trials)] == ["32"]
    trials += nights(90.0, 90.0, arm=64, start=30)
    assert [sentence.split()[2] for sentence in describe_shifts(trials)] == ["32", "64"]


def test_another_target_begins_anew():
    trials = [dataclasses.replace(each, target=0.9) for each in nights(*[100.0] * 8)]
    assert describe_shifts(trials + nights(180.0, 180.0, start=9)) == []


def test_a_job_of_failures_has_nothing_to_tell():
    assert describe_shifts([trial(1, TrialStatus.FAILED), trial(2, TrialStatus.LOST)]) == []


def test_costs_that_cannot_be_or_nearly_cannot_break_nothing():
    for strange in (0.0, -5.0, None, 1e-300, 1e308):
        for costs in ((*[100.0] * 5, strange, strange, 100.0), (*[strange] * 5, 100.0)):
            told = " ".join(describe_shifts(nights(*costs)))
            assert not {"nan", "inf"} & set(told.split())
