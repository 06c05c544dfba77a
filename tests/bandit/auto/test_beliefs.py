"""What is believed of every arm."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.bandit.runs import run, speed_checked
from tests.bandit.scripts import problem
from zeusrun.bandit.auto.beliefs import _cheapest, believe
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import SpeedElsewhere
from zeusrun.trial import Hardware, TrialStatus

JOB = problem(max_power_w=50.0)


def beliefs(*runs, **changes):
    now = problem(max_power_w=50.0, **changes)
    return believe(now, gather(now, runs))


def test_of_nothing_little_is_known():
    b = beliefs()
    assert (b.incumbent, b.incumbent_cost_j) == (None, None)
    assert np.all(np.diag(b.covariance) > 10)


def test_the_default_alone_tells_the_level():
    b = beliefs(run(64, 10))
    at = b.arms.index(64)
    assert b.incumbent == at
    assert b.mean[at] == pytest.approx(math.log(1000), abs=0.02)
    assert b.incumbent_cost_j == pytest.approx(1000 * math.exp(b.run_sd**2 / 2), rel=0.02)
    doubt = np.sqrt(np.diag(b.covariance))
    assert doubt[at] == pytest.approx(b.run_sd, rel=0.05)
    assert int(np.argmin(doubt)) == at


def test_the_least_cost_of_reaching_the_target_includes_failures():
    runs = [run(64, 10), run(64, 10), run(64, 40, status=TrialStatus.MISSED), run(128, 30)]
    evidence = gather(problem(), runs)
    chance = evidence.luck.missing[64]
    assert 0.2 < chance < 0.4
    log_cost, share = _cheapest(problem(), evidence, {64: 0.0, 128: 0.0})
    expected = 10 * (1 + chance / (1 - chance) * min(5, evidence.widest[64]))  # of 50 epochs
    assert (math.exp(log_cost), share) == (pytest.approx(expected), pytest.approx(1 / expected))
    assert _cheapest(problem(), evidence, {64: 3.0, 128: 0.0})[1] < 1 / 30
    assert _cheapest(problem(), gather(problem(), []), {}) == (None, 0.0)
    full = gather(problem(), [run(64, 10), *[run(64, None, status=TrialStatus.OOM)] * 2])
    assert full.fitting == (16, 32)
    assert (
        _cheapest(problem(), full, {64: 0.0})[0] is not None
    )  # then what no longer fits is the measure
    unbounded = beliefs(*runs[::2], run(256, 40, status=TrialStatus.MISSED), cost_factor=None)
    assert unbounded.log_epochs[-1] > math.log(40)


def test_doubt_grows_with_the_distance():
    doubt = np.diag(beliefs(run(64, 10), default=16).covariance)
    assert np.all(np.diff(doubt[2:]) > 0)


def test_of_epochs_nothing_is_assumed_but_that_neighbours_are_alike():
    assert np.allclose(beliefs(run(64, 10)).log_epochs, math.log(10), atol=0.01)
    told = beliefs(run(64, 10), run(128, 20)).log_epochs
    assert told[2] < told[3] < told[4]


def test_low_power_promises_cheaper_epochs_for_larger_batches():
    idle, busy = beliefs(run(64, 10, power_w=10.0)), beliefs(run(64, 10, power_w=50.0))
    assert idle.log_epoch_cost[-1] < busy.log_epoch_cost[-1] - 0.1


def test_a_measured_speed_is_all_but_certain():
    b = beliefs(run(64, 10), speed_checked(256, 55.0))
    assert b.log_epoch_cost[-1] == pytest.approx(math.log(55), abs=0.02)


def test_many_runs_are_believed():
    b = beliefs(*[run(64, 10)] * 20, *[run(256, 13)] * 20)
    assert b.log_epochs[-1] == pytest.approx(math.log(13), abs=0.05)
    assert b.run_sd < 0.07


def test_runs_outweigh_the_taste_for_smooth_curves():
    """A needle: 64 takes a quarter of the epochs of its neighbours."""
    needle = [run(arm, 10 if arm == 64 else 40) for arm in JOB.candidates for _ in range(8)]
    assert math.exp(beliefs(*needle).log_epochs[2]) == pytest.approx(10, rel=0.12)


def test_means_are_arithmetic():
    b = beliefs(*[run(64, 4), run(64, 16)] * 30)
    assert b.log_epochs[2] == pytest.approx(math.log(10), abs=0.02)


def test_a_failure_stands_for_its_bound_and_a_fresh_run():
    b = beliefs(*[run(64, 10)] * 30, *[run(256, 5, status=TrialStatus.STOPPED)] * 30)
    assert math.exp(b.log_epochs[-1]) == pytest.approx(10 * b.bound_factor + 10, rel=0.05)


def test_an_arm_of_failures_is_no_incumbent():
    b = beliefs(run(64, 10), run(256, 5, status=TrialStatus.STOPPED, per_epoch=1.0))
    assert b.arms[b.incumbent] == 64


def test_memory_rules_out_an_incumbent():
    crash = run(64, status=TrialStatus.OOM, epochs=None, per_epoch=None)
    b = beliefs(run(64, 10), run(32, 20), crash, crash)
    assert b.arms[b.incumbent] == 32


def test_an_arm_that_is_no_candidate_now_speaks_for_its_neighbours():
    alone, told = beliefs(run(64, 10)), beliefs(run(64, 10), *[run(512, 100)] * 10)
    assert told.log_epochs[-1] > alone.log_epochs[-1] + 0.2
    assert told.arms == JOB.candidates


CUT = TrialStatus.CANCELLED


def test_a_run_cut_short_is_stretched_by_runs_that_went_the_way():
    whole = run(64, 20, pace=((1, 0.3), (10, 0.7), (20, 0.95)))
    cut = run(256, 14, status=CUT, pace=((2, 0.3), (14, 0.7)))
    b = beliefs(*[whole] * 20, *[cut] * 40)
    assert math.exp(b.log_epochs[-1]) == pytest.approx(28, rel=0.05)


@pytest.mark.parametrize(("mode", "far"), [("max", 0.9), ("min", 0.1)])
def test_without_a_whole_run_those_cut_short_are_stretched_by_the_one_that_went_furthest(mode, far):
    furthest = run(64, 20, status=CUT, pace=((10, 0.5), (20, far)))
    short = [run(256, 5, status=CUT, pace=((5, 0.5),)) for _ in range(40)]
    b = beliefs(*[furthest] * 40, *short, mode=mode)
    assert math.exp(b.log_epochs[-1]) == pytest.approx(10, rel=0.05)


def test_a_whole_run_without_a_learning_curve_stretches_none_that_was_cut_short():
    whole = run(64, 20, pace=())
    cut = run(256, 5, status=CUT, pace=((5, 0.5),))
    b = beliefs(*[whole] * 40, *[cut] * 40)
    assert math.exp(b.log_epochs[-1]) == pytest.approx(5, rel=0.1)


def test_a_run_cut_at_once_says_next_to_nothing():
    whole = run(64, 80, pace=((1, 0.3), (80, 0.95)))
    without = beliefs(whole)
    with_it = beliefs(whole, run(256, 1, status=CUT, per_epoch=None, pace=((1, 0.3),)))
    assert with_it.log_epochs[-1] == pytest.approx(without.log_epochs[-1], abs=0.1)


def test_when_the_target_rises_the_order_of_the_arms_is_kept():
    slow = run(64, 20, status=CUT, pace=((10, 0.7), (20, 0.9)))
    quick = run(256, 5, status=CUT, pace=((3, 0.7), (5, 0.9)))
    b = beliefs(*[slow] * 5, *[quick] * 5)
    assert b.incumbent is None
    assert b.log_epochs[-1] == pytest.approx(b.log_epochs[2] - math.log(4), abs=0.15)


def test_other_hardware_keeps_the_epochs_and_learns_the_speed_again():
    there = [run(64, 10, per_epoch=None, local=False, power_w=None)] * 5
    b = beliefs(*there, *[run(256, 12, per_epoch=None, local=False, power_w=None)] * 5)
    assert b.incumbent_cost_j is None
    b = beliefs(*there, speed_checked(64, 70.0))
    assert b.incumbent_cost_j == pytest.approx(700, rel=0.05)


@pytest.mark.parametrize(
    ("cost_factor", "factor"), [(2.0, math.exp(0.28)), (1.2, 1.2), (None, None)]
)
def test_others_are_bounded_by_interest_or_by_the_user(cost_factor, factor):
    assert beliefs(cost_factor=cost_factor).bound_factor == pytest.approx(factor)


def test_the_bound_of_others_leaves_a_whole_epoch():
    """Of runs of 4 epochs, one of 5 is no outlier."""
    short, long = (beliefs(*[run(64, epochs)] * 3, cost_factor=2.0) for epochs in (4, 100))
    assert short.bound_factor - long.bound_factor == pytest.approx(1 / 4 - 1 / 100, abs=0.01)


def elsewhere(arm, epoch_cost_j, hardware=("P100", 2)):
    model, count = hardware
    there = SpeedElsewhere(Hardware(count, model, count), 250.0 * count, epoch_cost_j)
    return run(arm, None, per_epoch=None, status=TrialStatus.CANCELLED, pace=(), elsewhere=there)


def test_other_devices_tell_how_speed_depends_on_the_batch_size():
    there = [elsewhere(arm, 6400 / arm) for arm in (16, 64, 256)]
    b = beliefs(*there, run(64, 10, per_epoch=20.0))
    assert np.exp(b.log_epoch_cost) == pytest.approx([80, 40, 20, 10, 5], rel=0.15)
    told, untold = (np.diag(each.covariance)[0] for each in (b, beliefs(run(64, 10))))
    assert told < 0.7 * untold  # the doubt about epochs stays


def test_of_other_devices_the_newest_count():
    older = [elsewhere(arm, arm, ("K80", 2)) for arm in (16, 64, 256)]
    newer = [elsewhere(arm, 6400 / arm) for arm in (16, 64, 256)]
    assert np.allclose(beliefs(*older, *newer).mean, beliefs(*newer).mean)


def test_of_other_devices_one_training_counts():
    """An edit that changes the speed is no slope."""
    edited = [elsewhere(64, 400.0)._replace(differs="script:1"), elsewhere(128, 50.0)]
    assert np.allclose(beliefs(*edited).mean, beliefs(edited[-1]).mean)


def test_one_speed_on_other_devices_makes_nothing_less_certain():
    known = run(64, 10)
    more, less = (
        np.diag(beliefs(*runs).covariance) for runs in ([elsewhere(64, 9), known], [known])
    )
    assert np.all(more < less + 0.005)


def test_with_another_number_of_ranks_the_same_work_for_a_rank_is_compared():
    eight = [elsewhere(arm, 6400 / arm, ("V100", 8)) for arm in (64, 256, 1024)]
    two = [elsewhere(arm, 1600 / arm) for arm in (16, 64, 256)]
    assert np.allclose(beliefs(*eight).log_epoch_cost, beliefs(*two).log_epoch_cost)


def test_costs_of_any_size_are_believed():
    dear = [
        run(64, 10**9, per_epoch=1e300),
        run(32, 10, per_epoch=1e-6, status=TrialStatus.STOPPED),
    ]
    assert math.isfinite(beliefs(*dear).incumbent_cost_j)
    swapped = [
        run(64, 10**9, per_epoch=1e300, status=TrialStatus.STOPPED),
        run(32, 1, per_epoch=1e308),
    ]
    assert math.isfinite(beliefs(*swapped).incumbent_cost_j)
