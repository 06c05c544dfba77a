"""One trial, second by second: every sum here can be done by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.simulate.jobs import Scripted, job
from zeusrun.bandit.auto.policy import SPEED_CHECK_S
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.lever import power_lever
from zeusrun.simulate.engine import PROBE_S, LearningCurve, Rate, Setting, run_trial
from zeusrun.simulate.replay import ask_about
from zeusrun.trial import Bound, CurvePoint, Decision, Stage, TrialStatus

# Of 200 W at most; with an eta_knob of 0.5 a second costs 150 J under 200 W and 125 J under 100 W.
RATES = {100.0: Rate(200.0, 50.0), 200.0: Rate(100.0, 100.0)}
FOUR = LearningCurve(4, ((4, 1.0),))
LOOK = Decision(16, Stage.SPEED_CHECK, "", power_lever(200.0))


def run(decision, *, then=None, rates=RATES, curve=FOUR):
    made = job(rates={8: rates, 16: rates})
    problem = ask_about(made, 0.5, 2.0)
    play = Setting(made, Scripted(then or decision), problem, [], np.random.default_rng(0))
    trial = run_trial(play, decision, curve, attempt=1, name="t")
    assert trial.cost_j == pytest.approx(0.5 * trial.energy_j + 0.5 * 200 * trial.time_s)
    return trial, read_trial(problem, trial)


def at(rate):
    """Rates of one power limit: there is nothing to look for."""
    return {200.0: rate}


def bounded(cost_j, limit_w=None):
    return Decision(16, Stage.EXPLORE, "", power_lever(limit_w), Bound(cost_j))


def spent(trial):
    return (trial.status.value, trial.time_s, trial.energy_j, trial.epochs)


def test_a_stop_in_a_probe_learns_nothing_of_its_limit():
    trial, read = run(bounded(6 * 150.0, 200.0))
    assert spent(trial) == ("STOPPED", 6, 600, 0)
    assert (trial.power_profile, trial.curve, trial.cost_j) == ((), (), 900)
    assert read.epoch_cost_j == 900  # an epoch costs more than this


def test_a_stop_in_the_second_probe_keeps_the_first():
    trial, _ = run(bounded(PROBE_S * 150 + 4 * 125, 200.0))
    assert spent(trial) == ("STOPPED", PROBE_S + 4, PROBE_S * 100 + 4 * 50, 0)
    assert [point.power_limit_w for point in trial.power_profile] == [200]


def test_a_stop_within_an_epoch_leaves_its_curve_at_the_last_whole_one():
    trial, read = run(bounded(250 * 150.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == ("STOPPED", 250, 25_000, 2)
    assert trial.curve == (CurvePoint(2, 200, 20_000, None),)
    assert read.epoch_cost_j == 100 * 150  # the half epoch is charged, and makes none dearer


def test_a_bound_below_the_first_second():
    trial, _ = run(bounded(75.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == ("STOPPED", 0.5, 50, 0)


def test_a_bound_of_exactly_the_cost_is_not_passed():
    trial, _ = run(bounded(400 * 150.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == ("REACHED", 400, 40_000, 4)


def test_a_look_that_ends_is_charged_what_it_took():
    elsewhere = Decision(8, Stage.EXPLOIT, "")
    trial, read = run(LOOK, then=elsewhere)
    assert spent(trial) == ("CANCELLED", SPEED_CHECK_S, SPEED_CHECK_S * 100, 0)
    (point,) = trial.power_profile
    assert (point.power_limit_w, point.power_w) == (200, 100)
    assert read.epoch_cost_j == pytest.approx(100 * 150)


def test_a_look_that_goes_on_was_training():
    trial, _ = run(LOOK, then=bounded(1e9, 200.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == ("REACHED", pytest.approx(400), pytest.approx(40_000), 4)
    assert (trial.stage, len(trial.power_profile)) == (Stage.EXPLORE, 1)


def test_a_look_that_goes_on_probes_what_it_has_not_seen():
    trial, _ = run(LOOK, then=bounded(1e9, 200.0))
    left = 4 - SPEED_CHECK_S / 100 - PROBE_S / 200  # epochs, once the other limit is measured, too
    assert trial.time_s == pytest.approx(SPEED_CHECK_S + PROBE_S + left * 200)
    assert [point.power_limit_w for point in trial.power_profile] == [200, 100]


def test_a_look_that_goes_on_keeps_to_its_new_bound():
    trial, _ = run(LOOK, then=bounded(40 * 150.0, 200.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == ("STOPPED", pytest.approx(40), pytest.approx(4000), 0)
    trial, _ = run(LOOK, then=bounded(10 * 150.0, 200.0), rates=at(Rate(100.0, 100.0)))
    assert spent(trial) == (
        "STOPPED",
        SPEED_CHECK_S,
        SPEED_CHECK_S * 100,
        0,
    )  # it was passed before it was set


def test_a_look_stops_at_its_bound():
    trial, _ = run(replace(LOOK, bound=Bound(15 * 150.0)))
    assert spent(trial) == ("STOPPED", 15, 1500, 0)


def test_a_look_reaches_over_the_end_of_a_short_epoch():
    epoch_s = SPEED_CHECK_S * 2 / 3
    elsewhere = Decision(8, Stage.EXPLOIT, "")
    trial, read = run(LOOK, then=elsewhere, rates=at(Rate(epoch_s, 100.0)))
    assert spent(trial) == ("CANCELLED", SPEED_CHECK_S, SPEED_CHECK_S * 100, 1)
    assert [(point.epoch, point.time_s) for point in trial.curve] == [(1, epoch_s)]
    assert read.epoch_cost_j == pytest.approx(epoch_s * 150)


def test_a_run_may_end_before_its_look():
    trial, _ = run(LOOK, rates=at(Rate(SPEED_CHECK_S / 8, 100.0)))
    assert spent(trial) == ("REACHED", SPEED_CHECK_S / 2, SPEED_CHECK_S / 2 * 100, 4)
    assert (trial.status, trial.power_profile) == (TrialStatus.REACHED, ())
