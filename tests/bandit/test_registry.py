from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.bandit.runs import flying, run
from tests.bandit.scripts import MISSED, OOM, first_limit_w, problem, trial, watts
from tests.bandit.test_invariants import histories, unhurried
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.registry import POLICIES, Policy, choose_control, create_policy, explain_next
from zeusrun.bandit.reinterpret import read_history
from zeusrun.errors import ExitCode, UsageError
from zeusrun.lever import power_lever
from zeusrun.trial import PowerPoint, Stage, TrialStatus


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


names = pytest.mark.parametrize("name", POLICIES)
KNOWN = [run(64, 12), run(128, 10), run(128, 10, recurrence=2)]
LIMITS = (100.0, 150.0, 200.0)


def control(runs=KNOWN, made=(), policy="auto", **changes):
    now = problem(**{"control": 10, "recurrence": 20, **changes})
    return choose_control(create_policy(policy), now, runs, made)


@names
@unhurried
@given(histories, st.integers(2, 12), st.integers(995, 1005))
def test_it_is_the_default_in_every_nth_recurrence_unless_that_is_ruled_out(
    name, past, every, recurrence
):
    now, runs = read_history(problem(control=every, recurrence=recurrence), past)
    policy = create_policy(name)
    found = choose_control(policy, now, runs)
    assert choose_control(policy, now, runs) == found
    fits = now.default in gather(now, runs).fitting
    is_first = all(each.recurrence != recurrence for each in runs)
    assert (found is not None) is (fits and is_first and recurrence % every == 0)
    if found is not None:
        assert (found.global_batch_size, found.stage, found.bound) == (64, Stage.CONTROL, None)


def test_it_says_why():
    assert control().why == (
        "one recurrence in 10 runs the default (policy.control), so that what other batch sizes "
        "save stays known"
    )


def test_without_the_setting_there_is_none():
    assert control(control=None) is None


@pytest.mark.parametrize("status", [MISSED, OOM, TrialStatus.FAILED, TrialStatus.CANCELLED])
def test_only_the_first_attempt_is_one_whether_or_not_the_others_teach(status):
    assert control([*KNOWN, run(64, 5, status=status, recurrence=20)]) is None
    assert control(made=[trial(64, status, recurrence=20)]) is None


def test_a_recurrence_that_overlaps_does_not_matter():
    assert control([*KNOWN, flying(64, recurrence=19)]) is not None


def test_memory_and_crashes_rule_the_default_out():
    smaller = run(32, None, status=OOM)
    assert control([smaller]) is None
    crashed = [run(64, None, status=TrialStatus.FAILED, recurrence=n) for n in (3, 4)]
    assert control([run(128, 10), *crashed]) is None
    assert control([run(128, 10), *crashed[:1]]) is not None


@names
def test_its_power_limit_is_the_one_that_the_policy_tries(name):
    now = {"power_limits_w": LIMITS, "max_power_w": 200.0, "gpu_count": 1, "eta_knob": 0.5}
    profiled = run(64, 12, profile=(PowerPoint(200.0, 10.0, 190.0),))
    found = control([profiled], policy=name, **now)
    asked = problem(**now, recurrence=20)
    fixed = create_policy("fixed").choose(asked, [profiled], np.random.default_rng(0))
    sweeps = name in {"zeus", "grid"}
    assert watts(found.lever) == (150.0 if sweeps else watts(fixed.lever))
    if not sweeps:  # the limit of a neighbour is where the walk begins
        near = [profiled._replace(arm=128)]
        limit_w = first_limit_w(asked, near, 64)
        assert control(near, policy=name, **now).lever == power_lever(limit_w)


def test_after_a_control_run_has_missed_the_best_known_follows_and_has_not_failed():
    missed = run(64, 40, status=MISSED, recurrence=20, stage=Stage.CONTROL)
    now = problem(control=10, recurrence=20, attempts_left=2)
    decision = create_policy("auto").choose(now, [*KNOWN, missed], np.random.default_rng(0))
    assert (decision.global_batch_size, decision.stage) == (128, Stage.RETRY)
    assert not gather(now, [*KNOWN, missed]).proven_failed_now


@names
def test_what_is_explained_names_the_control_run_as_the_next(name):
    policy, now = create_policy(name), problem(control=10, recurrence=20)
    beliefs = explain_next(policy, now, KNOWN, np.random.default_rng(0))
    assert {each.global_batch_size: each.chance for each in beliefs if each.chance} == {64: 1.0}
    assert [b.global_batch_size for b in beliefs if b.is_next] == [64]
    usual = replace(now, recurrence=21)
    assert explain_next(policy, usual, KNOWN, np.random.default_rng(0)) == policy.explain(
        usual, KNOWN, np.random.default_rng(0)
    )
