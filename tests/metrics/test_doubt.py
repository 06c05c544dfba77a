"""Values that meet the target and cannot be the metric."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.factories import REACHED, build_trial
from tests.launcher.values import GOAL, after, report
from zeusrun.metrics.progress import settle
from zeusrun.metrics.seen import Known, find_doubt, find_known
from zeusrun.trial import TrialStatus


def doubt(value, metric="score", target=0.9, *, mode="max", known=None, best=None):
    trial = replace(GOAL, metric=metric, target=target, mode=mode)
    return find_doubt(value, trial, None if known is None else Known(*known), best)


@pytest.mark.parametrize(
    ("value", "metric"), [(20.0, "acc"), (93.5, "val/Accuracy"), (1.5, "f1"), (35.0, "mIoU")]
)
def test_a_share_above_1_is_no_share(value, metric):
    told = doubt(value, metric)
    assert "its name says that it is a share" in told
    assert "only runs with the same one" not in told


@pytest.mark.parametrize(
    ("value", "metric", "target"),
    [
        (1.0, "acc", 0.9),
        (1.0 + 1e-8, "acc", 1.0),  # float32
        (93.5, "acc", 90.0),  # both are in percent
        (35.0, "reward", 0.9),
        (1.2, "loss_accuracy", 0.9),  # a loss
        (0.5, "acc", 0.9),  # does not meet it
    ],
)
def test_other_values_are_not_doubted(value, metric, target):
    assert doubt(value, metric, target) is None


def test_percent_are_told_by_earlier_runs_that_had_a_share():
    assert "at most 0.93" in doubt(2.5, known=(0.7, 0.93))
    assert "target: 90" in doubt(35.0, known=(0.7, 0.93))
    assert doubt(1.1, known=(0.7, 0.93)) is None  # a reward may be
    assert doubt(35.0, known=(0.7, 3.0)) is None
    assert doubt(35.0, known=(-5.0, 0.9)) is None


@pytest.mark.parametrize(
    ("value", "known", "best", "mode", "doubted"),
    [
        (0.0, (0.4, 0.6), None, "min", True),
        (0.003, (0.4, 0.6), None, "min", True),
        (0.1, (0.4, 0.6), None, "min", False),
        (0.0, (0.4, 0.6), 0.001, "min", True),
        (0.0001, (0.4, 0.6), 0.001, "min", False),  # this run came near it
        (-3.0, (0.4, 0.6), None, "min", False),
        (0.0, (0.0, 0.6), None, "min", False),
        (0.0, None, None, "min", False),
        (3000.0, (12.0, 20.0), None, "max", True),
        (1500.0, (12.0, 20.0), None, "max", False),
        (3000.0, (12.0, 20.0), 900.0, "max", False),
        (11.0, (0.01, 0.02), None, "max", False),  # earlier runs were far from the target
        (0.4, (90.0, 100.0), None, "min", False),
    ],
)
def test_a_value_beyond_all_others_by_two_orders_is_doubted(value, known, best, mode, doubted):
    target = 0.5 if mode == "min" else 10.0
    assert (doubt(value, "foo", target, mode=mode, known=known, best=best) is not None) == doubted


def test_only_runs_with_the_same_objective_are_a_measure():
    runs = [
        build_trial(1).finish(replace(REACHED, best_metric=0.96)),
        build_trial(2).finish(replace(REACHED, status=TrialStatus.MISSED, best_metric=0.7)),
        build_trial(3, target=0.99).finish(replace(REACHED, best_metric=0.995)),
        build_trial(4, metric="f1").finish(replace(REACHED, best_metric=0.1)),
        build_trial(5),
    ]
    assert find_known(runs[0], runs) == Known(0.7, 0.96)
    assert find_known(build_trial(6, mode="min"), runs) is None


def test_a_forgotten_run_and_a_lost_one_are_no_measure():
    right, wrong = (
        build_trial(number).finish(replace(REACHED, best_metric=best))
        for number, best in ((1, 0.6), (2, 35.0))
    )
    lost = replace(wrong, status=TrialStatus.LOST)
    assert find_known(right, [right, wrong.forget(forgotten=True), lost]) == Known(0.6, 0.6)


def test_what_is_doubted_neither_reaches_the_target_nor_is_the_best_value():
    progress = settle(after(report(101.0, 1, 35.0)), final=True)
    assert (progress.reached, progress.best_value, progress.curve) == (None, None, ())
    assert "accuracy 35 meets the target" in progress.doubt


def test_what_is_read_rightly_beside_it_counts():
    progress = after(report(101.0, 1, 35.0), report(102.0, 2, 0.96))
    assert (progress.reached.epoch, progress.best_value) == (2, 0.96)


def test_after_the_target_nothing_is_doubted():
    progress = after(report(101.0, 1, 0.96), report(102.0, 2, 97.0))
    assert (progress.doubt, progress.reached.epoch) == (None, 1)
