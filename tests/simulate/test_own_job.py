"""Building a job to simulate from a history: what is known, left out and refused.

The trials follow a law: epochs are 8 (1 + batch size / 64), and an epoch takes 10 (1 + 32 / batch
size) seconds.
"""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from tests.factories import DONE, build_trial
from zeusrun.analysis.savings import find_savings
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.registry import create_policy
from zeusrun.bandit.reinterpret import read_history
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import best_arm, expected
from zeusrun.simulate.own_job import draw_job, learn
from zeusrun.simulate.replay import forecast
from zeusrun.trial import CurvePoint, EnergySource, Hardware, PowerPoint, Stage, TrialStatus

PROBLEM = Problem(
    candidates=(16, 32, 64, 128, 256),
    default=32,
    metric="accuracy",
    mode="max",
    target=0.5,
    max_epochs=60,
    eta_knob=0.5,
    cost_factor=2.0,
    recurrence=9,
    hardware=Hardware(2),
    max_power_w=100.0,
    energy_measured=True,
)
POWER_W = 60.0


def law(size):
    return 8 * (1 + size / 64), 10 * (1 + 32 / size)


def ran(
    number, size, *, scale=1.0, status=TrialStatus.REACHED, watts=POWER_W, epoch_s=None, **changes
):
    epochs, by_law_s = law(size)
    epoch_s = epoch_s or by_law_s
    epochs = max(1, round(epochs * scale))
    reached = status is TrialStatus.REACHED
    curve = tuple(
        CurvePoint(
            n, n * epoch_s, watts and n * epoch_s * watts, (0.5 if reached else 0.4) * n / epochs
        )
        for n in range(1, epochs + 1)
    )
    last = curve[-1]
    outcome = replace(
        DONE,
        status=status,
        time_s=last.time_s,
        energy_j=last.energy_j,
        energy_source=None if watts is None else EnergySource.COUNTER,
        max_power_w=100.0,
        cost_j=None,
        epochs=epochs,
        curve=curve,
        whole_steps=epochs * 6400 // size,
    )
    return build_trial(
        number, global_batch_size=size, max_epochs=60, default_batch_size=32, **changes
    ).finish(outcome)


KNOWN = [ran(n, size, scale=s) for n, (size, s) in enumerate([(32, 0.9), (32, 1.1), (32, 1.0), (64, 0.9), (64, 1.1), (64, 1.0)], 1)]  # fmt: skip


# Runs that passed their target by more than they had to.
LUCKY = [replace(t, curve=(*t.curve[:-1], t.curve[-1]._replace(value=0.6))) for t in KNOWN]


def trained_on(trial, epochs):
    last = trial.curve[-1]
    more = [last._replace(epoch=last.epoch + n, value=0.6) for n in range(1, epochs + 1)]
    return replace(trial, curve=(*trial.curve, *more))


def test_a_run_that_trained_on_shows_a_harder_target():
    asked = replace(PROBLEM, target=0.55)
    assert learn("job", asked, [trained_on(t, 3) for t in KNOWN]).reached == len(KNOWN)
    with pytest.raises(UsageError, match="an easier target do not count"):  # it only noticed late
        learn("job", asked, [trained_on(t, 1) for t in KNOWN])


def test_what_ran_is_known_and_what_did_not_is_left_out():
    model = learn("job", PROBLEM, KNOWN)
    assert [(arm.batch_size, arm.runs) for arm in model.arms] == [(32, 3), (64, 3)]
    assert (model.reached, model.left_out) == (6, (16, 128, 256))
    assert model.problem.candidates == (32, 64)
    for arm in model.arms:
        epochs, epoch_s = law(arm.batch_size)
        assert math.exp(arm.log_epochs) == pytest.approx(epochs, rel=0.06)
        (rate,) = arm.rates.values()
        assert rate.epoch_s == pytest.approx(epoch_s, rel=0.01)
        assert rate.power_w == pytest.approx(POWER_W)


def test_runs_before_an_edit_count_as_far_as_the_policy_believes_them():
    old = [ran(n, 64 if n % 2 else 32, scale=0.4, fingerprint={"script": "a"}) for n in range(8)]
    new = [ran(n, 32, fingerprint={"script": "b"}) for n in (8, 9)]
    (arm,) = (each for each in learn("job", PROBLEM, [*old, *new]).arms if each.batch_size == 32)
    assert math.exp(arm.log_epochs) == pytest.approx(law(32)[0], rel=0.15)


def test_runs_without_a_known_energy_still_show_their_speed():
    half = [ran(n, 32, watts=None) for n in (7, 8, 9)]
    never = [ran(n, 128, watts=None) for n in (10, 11)]
    for arm in learn("job", PROBLEM, [*KNOWN, *half, *never]).arms:
        assert [rate.power_w for rate in arm.rates.values()] == [pytest.approx(POWER_W)]


def test_what_ran_out_of_memory_is_left_out_with_all_larger_ones():
    crashed = replace(ran(7, 128), status=TrialStatus.OOM, curve=(), epochs=None)
    model = learn("job", PROBLEM, [ran(0, 16), *KNOWN, crashed])
    assert [arm.batch_size for arm in model.arms] == [16, 32, 64]
    assert model.left_out == (128, 256)


def test_a_batch_size_that_only_missed_the_target_never_reaches_it():
    missed = [ran(n, 256, status=TrialStatus.MISSED) for n in (7, 8)]
    problem = replace(PROBLEM, max_epochs=40)
    model = learn("job", problem, [*KNOWN, *missed])
    job = draw_job(model, 0)
    assert all(curve.epochs is None for curve in job.curves(256, 1))
    assert best_arm(job, 0.5, 1) != 256


@pytest.mark.parametrize(
    ("trials", "changes", "words"),
    [
        (KNOWN[:1], {}, "has 1 run that reached accuracy 0.5 .* needs 5"),
        (KNOWN, {"target": 0.9}, "has 0 runs that reached accuracy 0.9 .* an easier target do not"),
        (LUCKY, {"target": 0.51}, "has 0 runs that reached accuracy 0.51 "),
        (
            KNOWN,
            {"hardware": Hardware(8)},
            "no run of job shows what its default batch size, 32, takes",
        ),
        ([ran(n, 64) for n in range(1, 7)], {}, "what its default batch size, 32, takes"),
        (
            [
                *KNOWN,
                *(
                    replace(ran(n, 16), status=TrialStatus.OOM, curve=(), epochs=None)
                    for n in (7, 8)
                ),
            ],
            {},
            "memory or a crash rules out the default batch size of job, 32; set batch_size.default to",
        ),
        ([ran(n, s, watts=None) for n, s in enumerate([32, 64] * 3, 1)], {}, "only eta_knob 0"),
        (KNOWN, {"max_power_w": None}, "only eta_knob 1 can be simulated"),
    ],
)
def test_too_little_history_is_refused_in_one_sentence(trials, changes, words):
    with pytest.raises(UsageError, match=words) as refused:
        learn("job", replace(PROBLEM, **changes), trials)
    assert "\n" not in str(refused.value)


def test_the_same_seed_gives_both_settings_the_same_luck():
    before = learn("job", PROBLEM, KNOWN)
    after = learn("job", replace(PROBLEM, eta_knob=1.0, candidates=(16, 32, 64)), KNOWN)
    one, other = (draw_job(model, 3) for model in (before, after))
    assert one.curves(64, 1) == other.curves(64, 1)
    assert one.curves(64, 1) != draw_job(before, 4).curves(64, 1)


def level(model, size, seed):
    """Return the mean log epochs that a batch size has in a draw."""
    curves = draw_job(model, seed).curves(size, 1)
    return np.mean([math.log(curve.epochs or 60) for curve in curves])


def test_a_forecast_finds_the_best_batch_size_and_what_it_costs():
    model = learn("job", PROBLEM, KNOWN)
    found = forecast(model, create_policy("auto"), recurrences=20, seeds=range(4), attempts=5)
    assert {32, 64} & set(found.batch_sizes)  # they cost the same
    epochs, epoch_s = law(64)
    assert np.median(found.cost_j) == pytest.approx(epochs * epoch_s * 80, rel=0.25)
    assert found.unreached == (0, 0, 0, 0)


def test_a_forecast_makes_control_runs_and_says_what_they_cost():
    slow = replace(PROBLEM, default=256, recurrence=40)
    trials = [ran(n, size) for n, size in enumerate([64, 256] * 6, 1)]
    costs_j = []
    for control in (None, 5):
        model = learn("job", replace(slow, control=control), trials)
        found = forecast(model, create_policy("auto"), recurrences=20, seeds=[0, 1], attempts=5)
        costs_j.append(found.control_j)
    assert costs_j[0] == (0.0, 0.0)
    (one_j, other_j) = (math.prod(law(size)) * 80 for size in (256, 64))
    assert np.median(costs_j[1]) == pytest.approx(4 * (one_j - other_j), rel=0.5)


def test_a_job_that_has_learned_explores_no_more():
    learned = [ran(n, 64) for n in range(1, 31)]
    others = [ran(30 + n, size) for n, size in enumerate((32, 128, 16, 256) * 2, 1)]
    model = learn("job", replace(PROBLEM, recurrence=40), [*others, *learned])
    found = forecast(model, create_policy("auto"), recurrences=10, seeds=range(3), attempts=5)
    one_run_j = expected(draw_job(model, 0), 64, 0.5, 1).cost_j
    assert abs(np.median(found.exploring_j)) < one_run_j / 2


def test_measured_power_limits_are_simulated():
    points = tuple(PowerPoint(watts, 4 * share, watts) for watts, share in [(50, 0.8), (90, 1.0)])
    trials = [replace(each, power_profile=points, power_limit_w=90.0) for each in KNOWN]
    model = learn("job", PROBLEM, trials)
    slow, fast = (model.arms[1].rates[limit] for limit in (50.0, 90.0))
    assert fast.epoch_s == pytest.approx(law(64)[1], rel=0.01)  # evaluations included
    assert slow.epoch_s == pytest.approx(fast.epoch_s / 0.8)


def test_a_forecast_believes_what_the_history_says_a_batch_size_saves():
    scales = [1.0, 1.2, 0.9, 1.1, 1.0, 1.3]
    trials = [
        replace(
            (each := ran(n, size, scale=scale, epoch_s=20.0)),
            default_batch_size=32,
            stage=Stage.EXPLORE,
            cost_j=each.energy_j,
        )
        for n, (size, scale) in enumerate(itertools.product((32, 64), scales), 1)
    ]
    arms = {arm.batch_size: arm for arm in learn("job", PROBLEM, trials).arms}
    saved = 1 - np.exp(arms[64].drawn - arms[32].drawn)
    told = find_savings(trials).share
    assert np.median(saved) == pytest.approx(told.value, abs=0.02)
    assert told.low - 0.02 < np.quantile(saved, 0.05) < told.value < np.quantile(saved, 0.95)


@pytest.mark.parametrize("size", [64, 128])
def test_the_usual_seeds_give_a_run_what_runs_have_cost(size):
    """They had bad luck: a forecast was 6 to 9 % below the runs, in every job."""
    scales = np.exp(0.25 * np.array([0.3, -1.3, 0.7, 0.0, -0.7, 1.3, -0.3]))
    trials = [
        ran(n, own, scale=scale, epoch_s=20.0)
        for n, (own, scale) in enumerate(itertools.product((64, 128), scales), 1)
    ]
    problem = replace(PROBLEM, candidates=(64, 128), default=size)
    model, policy = learn("job", problem, trials), create_policy("fixed")
    found = forecast(model, policy, recurrences=2, seeds=range(20), attempts=1)
    mean_j = statistics.fmean(t.energy_j for t in trials if t.global_batch_size == size)
    assert statistics.median(found.energy_j) == pytest.approx(mean_j, rel=0.02)


def test_a_batch_size_that_only_one_setting_knows_leaves_the_luck_of_the_others():
    trials = [*KNOWN, ran(90, 256)]
    before, after = (learn("job", replace(PROBLEM, max_epochs=n), trials) for n in (60, 20))
    assert {arm.batch_size for arm in before.arms if arm.drawn is not None} != {
        arm.batch_size for arm in after.arms if arm.drawn is not None
    }
    smallest = min(arm.batch_size for arm in before.arms if arm.runs)
    levels = [[level(model, smallest, seed) for seed in range(12)] for model in (before, after)]
    assert np.corrcoef(levels)[0, 1] > 0.9


def test_a_batch_size_that_ran_only_on_other_devices_is_left_out():
    elsewhere = [replace(ran(n, 16), gpu_model="old", gpu_count=2) for n in range(1, 7)]
    here = [ran(n, 32) for n in range(7, 13)]
    model = learn("job", PROBLEM, [*elsewhere, *here])
    assert [arm.batch_size for arm in model.arms] == [32]
    assert 16 in model.left_out


def test_a_forecast_has_as_many_misses_as_the_policy_expects():
    missed = [ran(90 + n, 32, scale=5.0, status=TrialStatus.MISSED) for n in range(2)]
    trials = [*KNOWN, *missed]
    problem, runs = read_history(PROBLEM, trials)
    luck = gather(problem, runs).luck
    arms = {arm.batch_size: arm for arm in learn("job", PROBLEM, trials).arms}
    assert arms[32].missing == pytest.approx(luck.missing_of(32), abs=0.01)
    assert 0.05 < arms[64].missing == pytest.approx(luck.missing_of(64), abs=0.01)
