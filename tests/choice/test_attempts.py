"""Which preempted trial the next submit continues, and whether it can."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import build_trial, load_job
from zeusrun.bandit.registry import create_policy
from zeusrun.choice.attempts import find_preempted, why_no_other, why_not_continued
from zeusrun.choice.problem import Chooser, Forced, Machine
from zeusrun.reasons import ReasonCode
from zeusrun.trial import CurvePoint, Decision, Hardware, Interruption, Stage, TrialStatus

PREEMPTED, REACHED = TrialStatus.PREEMPTED, TrialStatus.REACHED


def trial(number, status=PREEMPTED, allocation=None, **changes):
    return replace(build_trial(number), status=status, allocation=allocation, **changes)


A, B = "slurm:1", "slurm:2"
LOCAL, OF_A, OF_B = trial(1), trial(2, allocation=A), trial(3, allocation=B)
NEWER, DONE = trial(3, allocation=A), trial(4, REACHED)


@pytest.mark.parametrize(
    ("trials", "allocation", "reserved", "found"),
    [
        # a submit in no allocation, or in a new one
        ([LOCAL, OF_A], None, (), LOCAL),
        ([OF_A, OF_B], None, {A, B}, None),
        ([OF_A, OF_B], None, {A}, OF_B),
        ([OF_A, OF_B], None, (), OF_A),  # both jobs have ended
        ([OF_A, OF_B], "slurm:3", {A, B}, None),
        ([OF_A, OF_B, DONE], None, (), None),
        ([LOCAL, replace(build_trial(1, 2), status=REACHED)], None, (), None),
        ([LOCAL, OF_A], None, {A}, LOCAL),
        # a batch step that has started again
        ([OF_A, OF_B], B, {A}, OF_B),
        ([LOCAL, OF_A], A, (), OF_A),
        ([OF_A, DONE], A, (), OF_A),  # another submit has overtaken it
        ([OF_A, DONE], B, {A}, None),
        ([OF_A, NEWER], A, (), NEWER),  # it could not continue the older one
        ([LOCAL, replace(OF_A, forgotten=True)], A, (), LOCAL),
        ([replace(OF_A, status=REACHED), OF_B], A, {B}, None),
        ([replace(OF_A, status=TrialStatus.DISPATCHED), OF_B], A, {B}, None),
        # nothing is reserved by its own name
        ([OF_A], A, {A}, OF_A),
        ([], A, {A}, None),
    ],
)
def test_a_submit_continues_the_trial_of_its_allocation_first(trials, allocation, reserved, found):
    assert find_preempted(trials, allocation, reserved) is found


CRASHED = TrialStatus.FAILED
USAGE, CANNOT_IMPORT = ReasonCode.USAGE_ERROR, ReasonCode.CANNOT_IMPORT
LOW = {"best_metric": 0.3, "curve": (CurvePoint(1, 3.0, 30.0, 0.3),), "epochs": 5}


def failed(number, size, status=TrialStatus.MISSED, **changes):
    return build_trial(1, number, global_batch_size=size, status=status, **{**LOW, **changes})


@pytest.mark.parametrize(
    ("made", "chosen", "why"),
    [
        ([failed(1, 32)], 64, None),
        (
            [failed(n, size, TrialStatus.OOM, best_metric=None) for n, size in ((1, 32), (2, 16))],
            *(16, "no batch size is left that may fit in memory (32, 16 did not); add smaller"),
        ),
        (
            [failed(1, 32), failed(2, 16, TrialStatus.OOM)],
            *(
                16,
                "no other batch size is left to try for accuracy 0.5 (best 0.3); correct objective.",
            ),
        ),
        (
            [failed(1, 32, TrialStatus.STOPPED), failed(2, 16, TrialStatus.OOM)],
            *(
                16,
                "no other batch size is left to try for accuracy 0.5 (best 0.3); correct objective.",
            ),
        ),
        (
            [failed(1, 32), failed(2, 16)],
            *(
                64,
                "nothing has reached accuracy 0.5 yet (best: 0.3 with batch size 32, 0.3 with batc",
            ),
        ),
        (
            [failed(1, 32), failed(2, 16, best_metric=None)],
            *(64, "nothing has reached accuracy 0.5 yet (best: 0.3 with batch size 32). After two"),
        ),
        # without another batch size or another environment, the same error would occur
        ([failed(1, 32, CRASHED, cause="x", reason_code=USAGE)], 32, "there is no second attempt"),
        ([failed(1, 32, CRASHED, cause="x", reason_code=USAGE)], 64, None),
        ([failed(1, 32, CRASHED, cause="x", reason_code=CANNOT_IMPORT)], 64, "there is no second"),
        ([failed(1, 32, CRASHED, cause="x")], 32, None),
        (
            [failed(1, 32, CRASHED, cause="x"), failed(2, 32, CRASHED, cause="x", reason="it is")],
            *(32, "the same error again, so there is no other attempt: it is"),
        ),
        # another batch size shows whether that is the cause, once
        ([failed(n, 32, CRASHED, cause="x") for n in (1, 2)], 16, None),
        (
            [failed(n, size, CRASHED, cause="x") for n, size in ((1, 32), (2, 32), (3, 16))],
            *(64, "the same error again, so there is no other attempt"),
        ),
        (
            [failed(1, 32, CRASHED, cause="x"), failed(2, 32, CRASHED, cause="y")],
            *(16, None),
        ),
    ],
)
def test_why_no_other_attempt_follows(tmp_path, made, chosen, why):
    decision = Decision(chosen, Stage.EXPLORE, "")
    found = why_no_other(load_job(tmp_path, attempts=4), made, decision, [], made)
    assert (found or "")[: len(why or "")] == (why or "")
    assert (found is None) is (why is None)


@pytest.mark.parametrize(
    ("changes", "in_doubt"),
    [
        ({}, False),
        ({"target": 0.5}, True),
        ({"metric": "f1"}, True),
        ({"mode": "min"}, True),
        ({"status": TrialStatus.MISSED}, True),
        ({"interruptions": ()}, True),  # then the policy has counted it
    ],
)
def test_a_run_that_began_anew_and_reached_the_target_of_today_takes_the_doubt_away(
    tmp_path, changes, in_doubt
):
    values = {"target": 0.6, "status": REACHED, "time_s": 4.0, "epochs": 2, **changes}
    values.setdefault("interruptions", (Interruption(2.0, 2),))
    curve = (CurvePoint(1, 3.0, None, 0.1), CurvePoint(2, 4.0, None, 0.7))
    anew = build_trial(9, curve=curve, **values)
    spec = load_job(tmp_path, attempts=4, objective={"target": 0.6})
    made, decision = [failed(1, 32), failed(2, 16)], Decision(64, Stage.EXPLORE, "")
    assert (why_no_other(spec, made, decision, [], [anew, *made]) is not None) is in_doubt


def test_of_runs_that_were_stopped_for_their_cost_the_cost_factor_is_named(tmp_path):
    made = [failed(1, 32, TrialStatus.STOPPED), failed(2, 16, TrialStatus.OOM)]
    found = why_no_other(
        load_job(tmp_path, attempts=4), made, Decision(16, Stage.EXPLORE, ""), [], made
    )
    assert "raise early_stop.cost_factor (it was stopped for its cost), objective.max_" in found


def test_a_policy_of_one_batch_size_has_no_other_to_try(tmp_path):
    spec = load_job(tmp_path, policy={"name": "fixed"})
    decision = Decision(32, Stage.EXPLORE, "")
    found = why_no_other(spec, [failed(1, 32)], decision, [], [])
    assert found.startswith("32 has not reached accuracy 0.5 (best 0.3), and policy fixed tries no")


@pytest.fixture
def asked(tmp_path):
    """Return why a trial of an allocation is not continued by a submit in another one."""

    def ask(then, now, forced=None, **changes):
        chooser = Chooser(load_job(tmp_path), create_policy("auto"), forced)
        machine = Machine(hardware=Hardware(), allocation=now)
        values = {"world_size": 1, "allocation": then, **changes}
        cut = trial(1, **values)
        return why_not_continued(chooser, machine, cut, has_files=True)

    return ask


@pytest.mark.parametrize(
    ("then", "now", "forced", "continued"),
    [
        (A, A, None, True),
        (A, B, None, True),
        (None, None, None, True),
        (A, A, 32, True),  # it was chosen so for this job, which has only started again
        (A, A, 16, False),
        (A, B, 32, False),
        (None, None, 32, False),  # no allocation is no common one
        (A, None, 32, False),
    ],
)
def test_a_chosen_batch_size_starts_a_new_run_but_for_a_job_that_starts_again(
    asked, then, now, forced, continued
):
    choice = None if forced is None else Forced(forced, "chosen by --batch-size")
    why = asked(then, now, choice, global_batch_size=32)
    assert why == (None if continued else "a chosen batch size starts a new run")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"global_batch_size": 16}, None),
        ({"global_batch_size": 48}, "48 is no longer a candidate"),
        ({"metric": "loss"}, "the objective has changed"),
        ({"mode": "min"}, "the objective has changed"),
        ({"target": 0.6}, "the objective has changed"),
        ({"eta_knob": 0.6}, "the objective has changed"),
        ({"max_epochs": 6}, "the objective has changed"),
        ({"variant": "noise-scale"}, "adapt or sync has changed"),
        ({"learning_rate": 0.1}, "the learning rate has changed"),
    ],
)
def test_a_preempted_trial_is_continued_only_as_it_began(asked, changes, why):
    assert asked(None, None, **changes) == why


def test_a_job_that_starts_again_on_other_devices_starts_a_new_run(asked):
    assert asked(A, A, world_size=4) == "it ran on other devices"
