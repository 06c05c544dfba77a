"""Runs whose ranks crash and are restarted, or that lose what they did: who is charged for it."""

from __future__ import annotations

import json
import signal

import pytest

from tests.runs import only_trial
from tests.test_preemption import job, preempt

TIME_ALONE = {"eta_knob": 0}  # the training sleeps, so no energy can be estimated


def expected(zeusrun, submitted):
    """Return what the policy expects of the one batch size that ran."""
    beliefs = json.loads(zeusrun("explain", submitted, "--json").stdout)
    return next(each for each in beliefs if each["global_batch_size"] == 32)


def sheet(zeusrun, columns="100"):
    return zeusrun("show", "job-1-1", COLUMNS=columns).stdout


def crashing(zeusrun, *args):
    given = ("--crashes-in", "5", "--reaches", "7", "--epoch-s", "0.1", "--lost-s", "4", *args)
    return job(zeusrun, *given, objective=TIME_ALONE, launch={"max_restarts": 1})


@pytest.mark.long  # 6 s; bandit/test_proof.py has the rule
def test_a_crash_that_goes_on_from_a_checkpoint_is_not_charged_to_the_batch_size(zeusrun):
    submitted = crashing(zeusrun)
    code, result, _ = zeusrun.submit(submitted)
    trial = only_trial(result)
    assert (code, trial["status"], trial["epochs"]) == (0, "REACHED", 7)
    ((at_s, epochs),) = trial["interruptions"]
    assert (epochs, at_s > 4.4) == (4, True)
    assert trial["cost_j"] == pytest.approx(trial["max_power_w"] * trial["time_s"])
    belief = expected(zeusrun, submitted)
    assert (belief["reached"], belief["epochs"]) == (1, pytest.approx(7, rel=0.2))
    assert belief["cost_j"] < 0.5 * trial["cost_j"]
    assert belief["epoch_cost_j"] < 0.2 * trial["max_power_w"]


def test_a_crash_from_which_the_training_begins_anew_teaches_its_speed_and_costs_are_shown(zeusrun):
    submitted = crashing(zeusrun, "--forgets")
    code, result, _ = zeusrun.submit(submitted)
    trial = only_trial(result)
    assert (code, trial["status"], trial["epochs"]) == (0, "REACHED", 7)
    belief = expected(zeusrun, submitted)
    assert (belief["reached"], belief["epochs"]) == (0, None)
    assert belief["epoch_cost_j"] < 0.2 * trial["max_power_w"]
    told = " ".join(zeusrun("explain", submitted).stdout.split())
    assert "1 run began anew after an interruption: kept for its speed" in told
    told = sheet(zeusrun, "80")
    own = [line for line in told.splitlines() if "uninterrupted" in line or "in epoch" in line]
    assert max(map(len, own)) <= 80
    told = " ".join(told.split())
    assert " J without interruptions: the ranks were restarted in epoch 5" in told
    (warning,) = zeusrun.history()[0]["warnings"][:1]
    assert warning == "the ranks were restarted once"


@pytest.mark.long
def test_a_preempted_run_without_a_checkpoint_is_not_charged_for_what_was_thrown_away(zeusrun):
    given = ("--forgets", "--epoch-s", "0.3", "--reaches", "12", "--again")
    submitted = job(zeusrun, *given, objective=TIME_ALONE)
    code, _ = preempt(zeusrun, submitted, signal.SIGTERM, 8)
    (cut,) = zeusrun.history()
    assert (code, cut["status"], cut["interruptions"]) == (75, "PREEMPTED", [])
    code, result, _ = zeusrun.submit(submitted)
    trial = only_trial(result)
    assert (code, trial["status"], trial["epochs"]) == (0, "REACHED", 12)
    assert trial["interruptions"] == [[cut["time_s"], cut["epochs"]]]
    assert trial["cost_j"] > cut["cost_j"]
    belief = expected(zeusrun, submitted)
    assert (belief["reached"], belief["epochs"]) == (0, None)
    assert belief["epoch_cost_j"] * 12 < 0.8 * trial["cost_j"]
    told = " ".join(sheet(zeusrun).split())
    where = f"it was preempted in epoch {cut['epochs'] + 1}, and it began anew"
    assert f" J without interruptions: {where}" in told
