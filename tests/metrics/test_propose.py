"""Which metric and which target ``init --try`` proposes."""

from __future__ import annotations

import pytest

from zeusrun.metrics.propose import Proposal, describe_choice, propose, propose_target
from zeusrun.metrics.seen import Seen
from zeusrun.target import meets_target


def seen(source, **values):
    return {(name, source): Seen(value, value) for name, value in values.items()}


@pytest.mark.parametrize(
    ("reported", "expected"),
    [
        # As the libraries report them.
        (
            seen(
                "transformers",
                loss=0.7,
                grad_norm=1.0,
                learning_rate=0.1,
                eval_loss=0.69,
                eval_accuracy=0.613,
                eval_runtime=3.0,
                eval_samples_per_second=20.0,
                train_runtime=9.0,
            ),
            ("eval_accuracy", "max", 0.66),
        ),
        (seen("transformers", loss=0.7, eval_loss=0.6931), ("eval_loss", "min", 0.62)),
        (seen("lightning", train_loss=0.3, val_loss=0.4, val_acc=0.8), ("val_acc", "max", 0.82)),
        (
            seen("trl", token_accuracy=0.4, eval_token_accuracy=0.3),
            ("eval_token_accuracy", "max", 0.33),
        ),
        (seen("tensorboard", **{"train/acc": 0.9, "loss": 2.31}), ("loss", "min", 2.0)),
        (seen("wandb", train_loss=1.234), ("train_loss", "min", 1.1)),
        (seen("report", done=3.0), ("done", None, 3.0)),
        (seen("lightning", val_acc=0.0, val_loss=0.4, train_acc=0.8), ("val_loss", "min", 0.36)),
        (seen("lightning", val_acc=0.0, train_acc=0.8), ("val_acc", "max", 0.01)),
        (
            seen("tensorboard", **{"losses/explained_variance": 0.2, "charts/episodic_return": 30}),
            ("charts/episodic_return", "max", 33.0),
        ),
        (
            seen("tensorboard", **{"train/loss": 0.2, "rollout/ep_rew_mean": -50.0}),
            ("rollout/ep_rew_mean", "max", -45.0),
        ),
        (seen("report", val_loss=float("nan"), accuracy=0.5), ("accuracy", "max", 0.55)),
        (seen("stdout", kl=0.3, recon=2.0, total_loss=2.31), ("total_loss", "min", 2.0)),
        (seen("stdout", kl_loss=0.3, recon_loss=2.0, loss=2.31), ("loss", "min", 2.0)),
        (seen("stdout", avg_loss=2.31, mse=0.4), ("avg_loss", "min", 2.0)),
        (seen("stdout", kl_loss=0.3, running_loss=2.31), ("running_loss", "min", 2.0)),
        (seen("stdout", valKL=0.3, valLoss=2.31), ("valLoss", "min", 2.0)),
        ({}, None),
        (seen("transformers", epoch=1.0, eval_runtime=3.0), None),
    ],
)
def test_an_evaluation_precedes_a_loss_and_a_loss_what_is_no_metric(reported, expected):
    proposal = propose(reported)
    assert (proposal and (proposal.metric, proposal.mode, proposal.target)) == expected


def test_a_name_that_says_nothing_has_no_mode():
    falls = {("val_foo", "lightning"): Seen(5.0, 4.0, 5, 4.0, 5.0)}
    assert propose(falls)[:3] == ("val_foo", "lightning", None)


def test_a_known_loss_of_an_evaluation_precedes_an_unknown_name():
    assert propose(seen("lightning", val_foo=5.0, val_loss=0.4))[:3] == (
        *("val_loss", "lightning", "min"),
    )
    assert propose(seen("lightning", val_SMAPE=0.44, val_loss=0.4)).mode == "min"


def test_what_the_script_monitors_precedes_all_others_and_has_the_mode_that_it_says():
    reported = seen("lightning", val_acc=0.5, val_foo=2.0, val_loss=0.4)
    assert propose(reported, monitor=("val_foo", "min"))[:3] == ("val_foo", "lightning", "min")
    assert propose(reported, monitor=("val_loss", None))[:3] == ("val_loss", "lightning", "min")
    assert propose(reported, monitor=("val_bar", "min")).metric == "val_acc"


def test_the_metric_that_is_usual_in_such_scripts_precedes_its_like():
    reported = seen("stdout", acc5=99.0, acc1=70.0, loss=0.3)
    assert propose(reported)[0] == "acc5"
    assert propose(reported, "acc1")[0] == "acc1"
    assert propose(reported, "absent")[0] == "acc5"
    assert propose(seen("transformers", eval_loss=0.7, eval_f1=0.6), "eval_loss")[0] == "eval_f1"


@pytest.mark.parametrize(
    ("value", "mode", "target"),
    [
        (95.75, "max", 95.7), (0.9575, "max", 0.957), (0.3123, "max", 0.31), (1.0, "max", 1.0),
        (0.3123, "min", 0.32), (312.3, "min", 320.0), (0.95, "max", 0.95), (0.0, "min", 0.0),
    ],
)  # fmt: skip
def test_a_target_of_a_whole_training_is_reached_by_the_same_training_again(value, mode, target):
    assert propose_target(value, mode, better=False) == target
    assert meets_target(value, target, mode)


def test_of_several_sources_the_one_that_counts_is_named():
    reported = {**seen("wandb", accuracy=0.4), **seen("report", accuracy=0.5)}
    assert propose(reported)[:2] == ("accuracy", "report")
    assert propose(dict(reversed(reported.items())))[:2] == ("accuracy", "report")


@pytest.mark.parametrize(
    ("value", "mode", "target"),
    [
        (0.391667, "max", 0.44),
        (0.8, "max", 0.82),
        (0.991, "max", 0.9919),
        (0.95, "max", 0.955),
        (1.0, "max", 1.0),
        (97.43, "max", 97.7),
        (72.1, "max", 75.0),
        (100.0, "max", 100.0),
        (431.0, "max", 480.0),
        (-0.5, "max", -0.45),
        (0.6931, "min", 0.62),
        (0.7, "min", 0.63),
        (24.7, "min", 22.0),
        (-1.25, "min", -1.4),
        (0.0, "min", 0.0),
        (0.0, "max", 0.01),
        (1.2e-05, "min", 1e-05),
    ],
)
def test_a_target_is_a_tenth_better_and_can_be_reached(value, mode, target):
    assert propose_target(value, mode, better=True) == target


def test_a_choice_says_how_it_is_logged_and_what_is_no_result():
    seen = {
        ("accuracy/valid", "tensorboard"): Seen(0.2, 0.9583, 3, 0.2, 0.97, parts=66),
        ("loss/train", "tensorboard"): Seen(2.0, 1.0, 90, each_step=True),
    }
    proposal = Proposal("accuracy/valid", "tensorboard", "max", 0.96, 0.9583)
    chosen, others = describe_choice(proposal, seen)
    assert chosen.endswith("reported by tensorboard (mean of 66 values).")
    assert others.endswith("loss/train.")
