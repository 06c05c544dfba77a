"""Why a metric is proposed, and which printed line agrees."""

from __future__ import annotations

import pytest

from zeusrun.metrics.audit import describe_choice, find_agreeing, is_alike
from zeusrun.metrics.propose import Proposal
from zeusrun.metrics.seen import Seen


@pytest.mark.parametrize(
    ("value", "line"),
    [
        (0.9583333, "val_accuracy   : 0.9583"),
        (0.9583333, "Test accuracy: 95.8%"),
        (95.83, "Test accuracy: 95.8"),
        (0.9583333, "epoch 3 | val acc 95.83"),
    ],
)
def test_a_rounded_value_agrees(value, line):
    assert find_agreeing(["val_accuracy: 0.12", line], "accuracy/valid", value) == line


@pytest.mark.parametrize(
    "line", ["val_accuracy: 0.97", "epoch 1", "seed 0.9583", "took 0.9583 s", "momentum 0.9583"]
)
def test_other_numbers_do_not_agree(line):
    assert find_agreeing([line], "accuracy/valid", 0.9583333) is None


def test_a_choice_says_how_it_is_logged_and_what_is_no_result():
    seen = {
        ("accuracy/valid", "tensorboard"): Seen(0.2, 0.9583, 3, 0.2, 0.97, parts=66),
        ("loss/train", "tensorboard"): Seen(2.0, 1.0, 90, each_step=True),
    }
    proposal = Proposal("accuracy/valid", "tensorboard", "max", 0.96, 0.9583)
    chosen, others, agrees = describe_choice(proposal, seen, ["val_accuracy: 0.958"])
    assert "reported by tensorboard, in 3 records" in chosen
    assert "66 values in an evaluation, and their mean counts" in chosen
    assert others.endswith("loss/train.")
    assert agrees == "It agrees with the printed line: val_accuracy: 0.958"


def test_a_printed_metric_stands_for_what_is_logged_by_parts():
    assert is_alike("accuracy/valid", "val_accuracy")
    assert not is_alike("accuracy/valid", "train_accuracy")
    assert not is_alike("accuracy/valid", "val_loss")
