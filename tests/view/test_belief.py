"""The first sentences of ``explain``: a reader who knows nothing of policies understands them."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest

from tests.bandit.runs import run
from tests.bandit.scripts import PROBLEM
from tests.factories import build_trial, load_job
from zeusrun.bandit.problem import ArmBelief
from zeusrun.choice.problem import build_problem
from zeusrun.commands.compose import compose
from zeusrun.trial import Bound, Decision, Stage, TrialStatus
from zeusrun.view.belief import describe_choice, lead


def belief(size, cost_j=None, *, reached=0, chance=0.0, range_j=None):
    return ArmBelief(
        global_batch_size=size,
        trials=reached,
        reached=reached,
        cost_j=cost_j,
        cost_range_j=range_j,
        chance=chance,
        verdict="a verdict",
    )


def chosen(size, stage=Stage.EXPLOIT, why="128 is the cheapest so far", bound_j=None):
    return Decision(size, stage, why, bound=None if bound_j is None else Bound(bound_j))


CHEAPEST = belief(128, 450.0, reached=4, chance=1.0, range_j=(400.0, 500.0))
DEFAULT = belief(64, 500.0, reached=3)


def test_the_cheapest_is_compared_with_the_default_and_with_what_would_replace_it():
    beliefs = [DEFAULT, CHEAPEST, belief(256, 480.0)]
    assert lead("auto", chosen(128, bound_j=900.0), beliefs, PROBLEM, retry=chosen(64)) == [
        "the next run uses batch size 128",
        "128 is the cheapest so far.",
        (
            "It is expected to cost 450 J (400–500 J in nine runs of ten); a run of the "  # noqa: RUF001
            "default, 64, is expected to cost 500 J. The run is stopped if it costs more than 900 J."
        ),
        (
            "If 128 is expected to cost more than 64 (500 J), 64 is used. If the next "
            "run misses the target, 64 follows at once."
        ),
    ]


def test_a_try_says_what_its_result_decides():
    tried = belief(256, 520.0, chance=1.0)
    told = lead("auto", chosen(256, Stage.EXPLORE, "why"), [DEFAULT, tried], PROBLEM)
    assert "cost 520 J; a run of the default, 64, is expected to cost 500 J." in told[2]
    assert told[3] == (
        "Once 256 has reached the target at a lower expected cost than 64 (500 J), it replaces "
        "64 as the cheapest so far. If the next run misses the target, no attempt follows."
    )


def test_a_try_that_would_cost_more_than_its_bound_says_what_it_costs_at_most():
    tried = belief(256, 1300.0, chance=1.0, range_j=(300.0, 900.0))
    told = lead("auto", chosen(256, Stage.EXPLORE, "why", 900.0), [DEFAULT, tried], PROBLEM)
    assert told[2] == "It is expected to need 1.30 kJ to the target, but is stopped at about 900 J."


def test_without_any_run_it_says_what_comes_after_the_first_success():
    first = belief(64, chance=1.0)
    told = lead("auto", chosen(64, Stage.EXPLORE), [first, belief(128)], PROBLEM, retry=chosen(128))
    assert told[2:] == [
        "What it costs is not known yet.",
        (
            "Once a run has reached the target, batch sizes that may be cheaper are tried. If the "
            "next run misses the target, 128 follows at once."
        ),
    ]


@pytest.mark.parametrize(
    ("policy", "chance", "words"),
    [
        ("fixed", 1.0, "policy fixed never uses another batch size; set policy.name to auto"),
        (
            "zeus",
            0.62,
            "(the policy draws at random; the probability of this was 62\N{NO-BREAK SPACE}%)",
        ),
        ("zeus", 0.62, "every result changes the probabilities"),
        ("auto", 1.0, "no other batch size has reached the target yet, so what they cost is a"),
    ],
)
def test_other_policies_promise_nothing_that_they_do_not_do(policy, chance, words):
    own = belief(64, 500.0, reached=3, chance=chance)
    told = " ".join(lead(policy, chosen(64), [own, belief(128, 450.0)], PROBLEM))
    assert words.lower() in told.lower()
    assert "and is the default" in told


@pytest.mark.parametrize("policy", ["auto", "fixed"])
def test_where_nothing_else_can_be_tried_none_is_promised(policy):
    told = " ".join(lead(policy, chosen(64), [belief(64, chance=1.0)], PROBLEM))
    assert "It is the only candidate; add others to batch_size.candidates to try them." in told


def test_a_success_of_unknown_cost_is_not_taken_for_none():
    told = lead("zeus", chosen(64), [belief(64, chance=1.0), belief(128, reached=1)], PROBLEM)
    assert told[3].startswith("What other batch sizes cost is not known yet.")


@pytest.mark.parametrize(
    ("epochs", "unit", "told"),
    [
        (9.63, None, "9 epochs"),
        (1.9, None, "1 epoch"),
        (0.7, None, "less than 1 epoch"),
        (12.1, None, None),  # after 12 the run ends anyway
        (12.1, 84175, "1,020,000 samples"),
    ],
)
def test_a_bound_is_told_in_whole_epochs_if_it_is_within_those_of_the_run(epochs, unit, told):
    bounded = Decision(64, Stage.EXPLOIT, "why", bound=Bound(900.0, epochs=epochs))
    own = belief(64, 500.0, reached=3, chance=1.0)
    sentence = lead("auto", bounded, [own, DEFAULT], replace(PROBLEM, max_epochs=12, unit=unit))[2]
    assert sentence == "It is expected to cost 500 J, and is the default" + (
        "." if told is None else f". The run is stopped if it needs more than {told}."
    )


def test_crashes_of_the_newest_runs_are_told_before_the_cost(tmp_path, monkeypatch):
    monkeypatch.setenv("ZEUSRUN_HOME", str(tmp_path / "home"))
    crashed = [run(arm, status=TrialStatus.FAILED) for arm in (64, 32, 64)]
    flying = run(64, status=TrialStatus.DISPATCHED)
    submission = compose(load_job(tmp_path, batch_size={"default": 64, "candidates": [32, 64]}))
    with contextlib.closing(submission):
        problem = build_problem(submission.spec, submission.measure(), [], 1)
        own = belief(64, chance=1.0)
        told = describe_choice(submission.chooser, problem, [run(64), *crashed, flying], [own])
        assert told[2] == (
            "The script crashed in the last 3 runs, with batch sizes 32, 64; `zeusrun show job` "
            "says why."
        )
        told = describe_choice(submission.chooser, problem, [*crashed, run(64)], [own])
        assert "crashed" not in " ".join(told)


def test_equal_runs_have_no_range_and_an_adaptive_run_only_begins_with_its_batch_size():
    own = belief(64, 500.0, reached=3, chance=1.0, range_j=(500.0, 500.0))
    told = lead("auto", chosen(64), [own, belief(128)], PROBLEM, adapts=True)
    assert told[0] == "the next run adapts its batch size, from 64"
    assert told[2] == "It is expected to cost 500 J, and is the default."


def test_a_preempted_run_comes_first():
    preempted = build_trial(7, global_batch_size=32)
    told = lead("auto", chosen(128), [CHEAPEST], PROBLEM, continued=preempted)
    assert told == [
        "the next submit continues job-7-1 with batch size 32",
        "It continues job-7-1, which was preempted. Without that: 128 is the cheapest so far.",
    ]


def test_a_plugin_that_does_not_describe_its_choice_still_gives_its_reason():
    told = lead("largest", chosen(512, why="512 is the largest"), [CHEAPEST], PROBLEM)
    assert told == ["the next run uses batch size 512", "512 is the largest."]
