"""Whatever the history, some things hold."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.bandit.scripts import (
    DISPATCHED,
    MISSED,
    OOM,
    REACHED,
    STOPPED,
    bound_j,
    choose,
    problem,
    trial,
)
from zeusrun.bandit.differences import describe_kept
from zeusrun.bandit.reinterpret import read_history
from zeusrun.bandit.tally import build_tally
from zeusrun.bandit.zeus.policy import Zeus, plan_step, prune
from zeusrun.trial import Stage, TrialStatus

# A busy machine must not fail a test of what is true.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

ARMS = (16, 32, 64, 128, 256)
costs = st.none() | st.floats(0, 1e9)


@st.composite
def trials(draw, statuses=tuple(TrialStatus), arms=(*ARMS, 48)):
    status = draw(st.sampled_from(statuses))
    changes = {
        "recurrence": draw(st.sampled_from((1, 2, 999, 1000))),
        "stage": draw(st.sampled_from(Stage)),
    }
    if status is not DISPATCHED:
        changes["epochs"] = draw(st.sampled_from((None, 5, 40, 60)))
        changes["time_s"] = draw(costs)
    return trial(draw(st.sampled_from(arms)), status, draw(costs), **changes)


# Mostly reached, or no history would ever come to Thompson sampling.
likely = trials((REACHED,) * 12 + (MISSED, STOPPED, OOM, DISPATCHED), ARMS)
histories = st.lists(trials(), max_size=12) | st.lists(likely, max_size=40)
problems = st.builds(
    problem,
    default=st.sampled_from(ARMS),
    eta_knob=st.sampled_from((0.0, 0.5, 1.0)),
    window=st.sampled_from((None, 1, 3)),
    max_epochs=st.sampled_from((40, 50)),
    energy_measured=st.sampled_from((None, True)),
    last_attempt=st.booleans(),
)


@unhurried
@given(problems, histories)
def test_the_choice_is_a_candidate_that_is_not_pruned_or_else_the_default(problem, past):
    decision = choose(problem, past)
    arm, step = (
        decision.global_batch_size,
        plan_step(problem, build_tally(*read_history(problem, past))),
    )
    assert arm in problem.candidates
    if decision.stage is not Stage.RETRY:  # the last attempt may go to an arm that was pruned
        assert arm not in step.out or (not step.survivors and arm == problem.default)


@unhurried
@given(problems, histories)
def test_an_arm_beyond_memory_runs_only_as_the_last_resort(problem, past):
    crashed = [t.global_batch_size for t in past if t.status is OOM]
    twice = [arm for arm in problem.candidates if crashed.count(arm) >= 2]
    if twice and (arm := choose(problem, past).global_batch_size) >= min(twice):
        assert arm == problem.default


@unhurried
@given(problems, histories)
def test_an_arm_whose_first_run_failed_never_runs_again_but_as_the_last_resort(problem, past):
    past = [
        t for t in past if t.max_epochs >= problem.max_epochs and t.eta_knob == problem.eta_knob
    ]
    decision = choose(problem, past)
    arm = decision.global_batch_size
    own = [t.status for t in past if t.global_batch_size == arm]
    results = [status for status in own if status in (REACHED, MISSED, STOPPED)]
    if results and results[0] is not REACHED and decision.stage is not Stage.RETRY:
        assert arm == problem.default


@unhurried
@given(problems, histories)
def test_a_failure_is_not_repeated_in_its_recurrence_while_another_arm_survives(problem, past):
    arm = choose(problem, past).global_batch_size
    failed = {
        run.arm
        for run in read_history(problem, past)[1]
        if run.recurrence == problem.recurrence and run.status in (MISSED, STOPPED, OOM)
    }
    if arm in failed:  # then the walk that passes over them must come to nothing
        tally = build_tally(*read_history(problem, past))
        others = set(prune(tally.fitting, problem.default, tally.results, failed).survivors)
        assert others & set(plan_step(problem, tally).survivors) <= failed


@unhurried
@given(problems, histories, st.integers(0, 2**32))
def test_equal_input_gives_equal_output_and_stays_as_it_was(problem, past, seed):
    before = list(past)
    first = choose(problem, past, seed)
    assert choose(problem, tuple(past), seed) == first
    assert past == before


@unhurried
@given(problems, histories, histories)
def test_the_numbers_of_a_run_that_failed_change_nothing(problem, past, others):
    numbers = {
        "energy_j": 1e-9,
        "max_power_w": 1e-9,
        "cost_j": 1e-9,
        "best_metric": 0.1,
    }
    changed = [  # a time that becomes known would show that the run had begun to train
        t
        if t.status in (REACHED, DISPATCHED)
        else dataclasses.replace(t, time_s=t.time_s and 1e-9, **numbers)
        for t in past
    ]
    assert choose(problem, changed) == choose(problem, past)
    assert bound_j(problem, changed) == bound_j(problem, past)


@unhurried
@given(problems, histories, trials((DISPATCHED,)), st.integers(0, 40))
def test_a_trial_in_flight_never_crashes_it(problem, past, flying, place):
    busy = [*past[:place], flying, *past[place:]]
    assert choose(problem, busy).global_batch_size in problem.candidates


@unhurried
@given(problems, histories)
def test_explain_covers_every_arm_and_its_chances_add_up(problem, past):
    beliefs = Zeus().explain(*read_history(problem, past), np.random.default_rng(0))
    assert tuple(b.global_batch_size for b in beliefs) == problem.candidates
    assert sum(b.chance for b in beliefs) == pytest.approx(1)
    assert all(b.reached <= b.trials and b.verdict for b in beliefs)
    assert all((b.cost_j is None) == (b.cost_range_j is None) for b in beliefs)


@unhurried
@given(problems, histories)
def test_the_bound_is_positive_or_unknown_and_every_reason_is_a_sentence(problem, past):
    bound = bound_j(problem, past)
    assert bound is None or bound >= 0
    assert all(sentence[0].isdigit() for sentence in describe_kept(problem, past))
