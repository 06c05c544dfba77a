"""Which source counts, and with what batch size a training was seen to train."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.launcher.values import GOAL, after
from zeusrun.metrics import seen as seen_module
from zeusrun.metrics.progress import settle
from zeusrun.metrics.seen import (
    Ranks,
    Seen,
    describe_steps,
    find_batch_size,
    list_names,
    names_an_evaluation,
)
from zeusrun.sidecar.events import Applied, Hooked, Observed, Reported, Started

METRIC = GOAL.metric


def said(t, epoch, value, source):
    return Reported(t, epoch, {METRIC: value}, source)


def values(progress):
    return [(point.epoch, point.value) for point in progress.curve]


def test_a_report_of_the_script_counts_before_a_hook_and_replaces_what_it_reported():
    progress = after(
        said(101, 1, 0.1, "tensorboard"),
        said(102, 2, 0.2, "tensorboard"),
        said(103, 2, 0.3, "report"),
        said(104, 3, 0.9, "tensorboard"),
    )
    assert (progress.source, values(progress)) == ("report", [(2, 0.3)])
    assert progress.best_value == 0.3
    assert progress.reached is None


@pytest.mark.parametrize(
    ("first", "second", "kept"),
    [
        ("wandb", "transformers", "transformers"),
        ("transformers", "wandb", "transformers"),
        ("stdout", "mlflow", "mlflow"),
        ("csv", "jsonl", "csv"),
    ],
)
def test_of_two_sources_of_the_metric_the_one_that_comes_first_in_the_order_counts(
    first, second, kept
):
    assert after(said(101, 1, 0.1, first), said(102, 1, 0.2, second)).source == kept


def test_what_was_reached_by_another_source_is_not_reached():
    printed = said(101, 1, 0.95, "stdout")
    assert settle(after(printed), final=True).reached is not None
    assert after(printed, said(101.1, 1, 0.1, "report")).reached is None
    assert after(printed, said(101.1, 1, 0.9, "report")).reached.value == 0.9


def test_a_source_that_the_job_file_names_counts_before_all_others():
    start = replace(after(), preferred="csv")
    progress = after(said(101, 1, 0.1, "report"), said(102, 1, 0.2, "csv"), start=start)
    assert progress.source == "csv"


def test_two_sources_that_differ_are_remembered_once_and_rounding_is_no_difference():
    progress = after(
        said(101, 1, 0.123456789, "transformers"), said(102, 1, 0.1234568, "tensorboard")
    )
    assert progress.differs is None
    progress = after(said(103, 1, 0.2, "wandb"), said(104, 1, 0.3, "mlflow"), start=progress)
    assert progress.differs == ("wandb", 0.2, 0.123456789)


def test_values_of_different_steps_of_an_epoch_are_no_difference():
    both = ("accelerate", "tensorboard")
    progress = after(*(said(101, 1, 0.1, source) for source in both))
    progress = after(*(said(102, 1, 0.2, source) for source in reversed(both)), start=progress)
    assert progress.differs is None


def test_a_library_that_is_hooked_again_is_listed_once():
    assert len(after(*(Hooked(t, "lightning", "2.6", None) for t in (101, 102))).hooks) == 1


def test_each_metric_is_remembered_with_its_source_and_its_first_and_last_value():
    progress = after(
        Reported(101, 1, {"loss": 2.0, METRIC: 0.1}, "lightning"),
        Reported(102, 2, {"loss": 1.0}, "lightning"),
        Reported(103, 2, {"loss": 1.5}, "csv"),
    )
    assert progress.seen == {
        ("loss", "lightning"): Seen(2.0, 1.0, 2, 1.0, 2.0),
        (METRIC, "lightning"): Seen(0.1, 0.1, 1, 0.1, 0.1),
        ("loss", "csv"): Seen(1.5, 1.5, 1, 1.5, 1.5),
    }
    assert progress.seen_metrics == {"loss", METRIC}


def test_a_script_that_reports_under_ever_new_names_is_remembered_in_part(monkeypatch):
    monkeypatch.setattr(seen_module, "_NAMES", 3)
    many = Reported(101, 1, {f"loss {number}": 1.0 for number in range(9)})
    seen = after(many, said(102, 1, 0.1, "report"), replace(many, t=103.0)).seen
    assert [name for name, _ in seen] == ["loss 0", "loss 1", "loss 2", METRIC]
    assert seen["loss 2", "report"].times == 2


def test_names_in_a_sentence_are_short_and_on_one_line():
    assert list_names({"b\n\tc", "a" * 10**6}) == f"{'a' * 50}, b c"
    assert list_names({str(number) for number in range(10, 99)}).endswith("18, 19")


def test_a_training_loss_of_a_library_is_no_epoch_without_the_metric_and_an_evaluation_is():
    progress = after(
        Reported(101, 1, {"loss": 2.0, "learning_rate": 0.1}, "transformers"),
        Reported(102, 2, {"value_loss": 2.0}, "wandb"),
        Reported(103, 3, {"eval_loss": 2.0}, "transformers"),
        Reported(104, 4, {"Loss/val": 2.0}, "tensorboard"),
        Reported(105, 5, {"loss": 2.0}),
    )
    assert progress.other_epochs == {3, 4, 5}


@pytest.mark.parametrize("name", ["val_acc", "eval/loss", "test accuracy", "Validation-F1"])
def test_names_of_evaluations(name):
    assert names_an_evaluation({name: 1.0})
    assert not names_an_evaluation({f"{name}_step": 1.0, "train_loss": 1.0})


def test_hooks_and_what_they_saw_and_changed_are_remembered():
    hooked = Hooked(101, "transformers", "5.0", None)
    seen = Observed(102, 1, 16, 1, 2, (0.1,))
    applied = Applied(103, "batch_size", 16, 32, "train.py:7")
    progress = after(hooked, replace(seen, samples=8), seen, applied)
    assert (progress.hooks, progress.applied) == ((hooked,), (applied,))
    assert progress.observed == {1: seen}
    assert progress.asked == {"batch_size"}


def ranks(*samples, replicas=None, alone=False):
    return {r: Observed(0, r, n, 1, replicas, alone=alone) for r, n in enumerate(samples)}


def test_records_of_different_steps_are_not_added_up():
    """As a training adapts its batch size, one rank is seen with the new one first."""
    mixed = [Observed(0, 0, 32, 1, step=450), Observed(0, 1, 14, 1, step=225)]
    assert find_batch_size(dict(enumerate(mixed)), Ranks(2)) is None
    assert find_batch_size({0: mixed[0], 1: Observed(0, 1, 14, 1, step=450)}, Ranks(2)) == 46


@pytest.mark.parametrize(
    ("observed", "world_size", "found"),
    [
        (ranks(32), 1, 32),
        (ranks(16, 16), 2, 32),
        (ranks(16, 16, replicas=2), 2, 32),
        # Two ranks share a model: each pair loads the same data.
        (ranks(16, 16, 16, 16, replicas=2), 4, 32),
        # Each trains a model of its own.
        (ranks(16, 16, alone=True), 2, 16),
        (ranks(16), 2, None),
        (ranks(16, None), 2, None),
        ({**ranks(16, 16), 1: Observed(0, 1, 16, 1, 2)}, 2, None),
        ({}, 1, None),
    ],
)
def test_the_batch_size_is_known_once_every_rank_has_said_its_share(observed, world_size, found):
    assert find_batch_size(observed, Ranks(world_size)) == found


@pytest.mark.parametrize(
    ("observed", "text"),
    [
        ([Observed(0, 0, 32, 1)], "32"),
        ([Observed(0, 0, 32, 4)], "4 batches of 8"),
        ([Observed(0, r, 16, 2) for r in (0, 1)], "2 ranks x 2 batches of 8"),
        ([Observed(0, r, 16, 1, alone=True) for r in (0, 1)], "16 on each rank alone"),
    ],
)
def test_how_the_samples_of_a_step_come_about(observed, text):
    assert describe_steps(observed) == text


def test_reports_within_an_epoch_make_a_curve_by_samples():
    def looked(t, epoch, value, samples):
        return Reported(t, epoch, {METRIC: value}, "tensorboard", samples=samples)

    once = after(looked(101, 1, 0.1, 320), looked(102, 2, 0.2, 640))
    assert (once.samples, once.by_samples) == (640, ())
    again = after(looked(103, 2, 0.3, 800), looked(103.5, 2, 0.3, 800), start=once)
    assert [(each.epoch, each.value) for each in again.by_samples] == [
        (320, 0.1),
        (640, 0.2),
        (800, 0.3),
    ]
    assert values(again) == [(1, 0.1), (2, 0.3)]
    assert again.is_beyond(once)


def test_a_curve_by_samples_goes_on_after_a_restart_with_all_that_was_consumed():
    def looked(t, value, samples):
        return Reported(t, 1, {METRIC: value}, "tensorboard", samples=samples)

    before = after(looked(101, 0.1, 100), looked(102, 0.2, 200))
    again = after(
        Started(103, 0, 9, restart=1), looked(104, 0.1, 100), looked(105, 0.1, 200), start=before
    )
    assert [(each.epoch, each.value) for each in again.by_samples] == [
        (100, 0.1),
        (200, 0.2),
        (300, 0.1),
        (400, 0.1),
    ]
    assert again.samples == 400


def test_a_restart_is_no_second_report_of_an_epoch():
    def looked(t, epoch, value, samples):
        return Reported(t, epoch, {METRIC: value}, "report", samples=samples)

    before = after(looked(101, 1, 0.1, 100), looked(102, 2, 0.2, 200))
    again = after(Started(103, 0, 9, restart=1), looked(104, 2, 0.2, 100), start=before)
    assert (again.samples, again.by_samples) == (300, ())
