"""The pattern that ``init --try`` proposes for what a script prints."""

from __future__ import annotations

import re

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from tests.metrics.reading import append, open_source
from zeusrun.jobfile.guess.command import read_command
from zeusrun.jobfile.guess.draft import write_draft
from zeusrun.jobfile.guess.guess import build_guess
from zeusrun.jobfile.guess.script import Script
from zeusrun.jobfile.metrics_section import check_pattern
from zeusrun.metrics.propose_pattern import (
    propose_pattern,
)
from zeusrun.metrics.stdout import split_states

# e: epoch, E: of how many, l: a loss, a: an accuracy in percent, t: seconds.
FORMATS = {
    "Epoch {e}/{E} | train loss: {l:.4f} | val acc: {a:.2f}%": "val_acc",
    "Epoch [{e}/{E}], Train Loss: {l:.4f}, Val Acc: {a:.1f}%, Time: {t:.1f}s": "val_acc",
    "Epoch: {e:03d} Val F1 (macro): {a:.3f}.": "val_f1_macro",
    "epoch={e} loss={l} val_acc={a} lr=1e-3": "val_acc",
    "[{e:>3}/{E}] warm\nEpoch {e:>3} done ({t:.1f}s) Val: loss {l:6.3f}, acc {a:6.2f}": "val_acc",
    "\x1b[32mEpoch {e}\x1b[0m: \x1b[1mval_loss\x1b[0m={l:.3f}, val_acc={a:.2f} (best)": "val_acc",
    "2026-11-23 02:30:{e:02d},123 - root - INFO - Epoch {e}: eval_acc={a:.2f}": "eval_acc",
    "INFO:main:ep {e}\tloss {l:.3f}\ttest_acc {a:.2f}": "test_acc",
    "{{'epoch': {e}, 'train_loss': {l}, 'val_acc': {a}}}": "val_acc",
    '{{"epoch": {e}.0, "eval_f1": {a}, "eval_loss": {l:e}}}': "eval_f1",
    # PyTorch's tutorials
    "Epoch {e}/{E}\n----------\ntrain Loss: {t:.4f} Acc: {t:.4f}\nval Loss: {l:.4f} Acc: {a:.4f}": (
        "val_acc"
    ),
    "Epoch {e}\n-----\nloss: {l:>7f}  [{e:>5d}/60000]\nTest Error: \n Accuracy: {a:>0.1f}%, "
    "Avg loss: {l:>8f} \nVal accuracy is {a}": "val_accuracy",
    "Accuracy of the network on the {E} test images: {a:.0f} %": "accuracy_network_test_images",
    # torchvision's and the ImageNet example's, changed a little
    "Train: [{e}][ 1/ 9]\tLoss {t:.4e} ({t:.4e})\nTest - Epoch: [{e}]  Time {t:6.3f}\tLoss {l:.4e} "
    "({l:.4e})\tAcc@1 {a:6.2f} ({a:6.2f})": "test_acc1",
    # fastai's and others' tables
    "epoch     train_loss  valid_loss  accuracy  time\n"
    "{e:<10}{t:<12.6f}{l:<12.6f}{a:<12.6f}00:04": "accuracy",
    "| epoch | loss | val_acc |\n|-------|------|---------|\n| {e:>5} | {l:.2f} | {a:>7} |": (
        "val_acc"
    ),
    "┃ Epoch ┃ val_loss ┃ val_acc ┃\n┡━━━━╇━━━━╇━━━━┩\n│ {e:>5} │ {l:.2f} │ {a:>7} │": "val_acc",
    "| end of epoch {e:3d} | time: {t:5.2f}s | valid acc {a:5.2f} |": "valid_acc",
    "│ Epoch {e} │ val acc {a:.2f} │": "val_acc",
    # Keras'
    "Epoch {e}/{E}\n12/12 [======] - {t:.0f}s 2ms/step - loss: {t:.4f} - accuracy: {t:.4f} - "
    "val_loss: {l:.4f} - val_accuracy: {a:.4f}": "val_accuracy",
    "Epoch {e}/{E} - {t:.0f}s - loss: {l:.4f} - val_accuracy: {a:.4f}": "val_accuracy",
    # tqdm's
    "Epoch {e}: 100%|███| 12/12 [00:03<00:00,  3.21it/s, loss={l:.3g}, acc={a:.3f}]": "acc",
    "Epoch {e}:   0%|   | 0/12\rEpoch {e}:  50%|█  | 6/12 [00:01<00:01,  3.2it/s, loss={t}]\n"
    "Validation: 100%|███| 3/3 [00:01<00:00, 2.00s/it, acc={a:.4f}]": "validation_acc",
    # others
    "Epoch {e} Train Loss: {t:.3f} Acc: {t:.3f} Val Loss: {l:.3f} Acc: {a:.3f}": "val_acc",
    "[Train] epoch {e} loss {t:.3f} acc {t:.3f}\n[Val] epoch {e} loss {l:.3f} acc {a:.3f}": (
        "val_acc"
    ),
    "epoch {e} train acc {t:.2f}\nepoch {e} valid loss  {l:5.2f} | valid acc {a:8.2f}": "valid_acc",
    ">>> eval loss -> {l:.3f} | eval mAP@0.5: {a:.3f}": "eval_map0_5",
    "[GPU0] run_{E}{E} Epoch{e}: val acc={a:.3f}": "val_acc",
    "epoch_{e} val acc={a:.3f}, resnet50 top-5 val acc {l}": "val_acc",
    "train final score: 49{e}/500 = {t:.2f}% correct\n"  # minGPT's
    "test final score: 48{e}/500 = {a:.2f}% correct": "test_final_score",
    "                Epoch: {e} Acc: {a:.4f}               ": "acc",
    "Epoch {e} finished. Validation accuracy is {a:.1f}%.": "validation_accuracy",
    "第{e}轮 Epoch {e}: val_准确率={a:.3f}": "val_准确率",
}  # fmt: skip
SUMMARIES = """\
┏━━━━┳━━━━━━━━━━┳━━━━━━━━━━━━━━━━━━━━┳━━━━━━━━┓
┃    ┃ Name     ┃ Type               ┃ Params ┃
┡━━━━╇━━━━━━━━━━╇━━━━━━━━━━━━━━━━━━━━╇━━━━━━━━┩
│ 13 │ net      │ Linear             │  8.3 K │
│ 14 │ val_acc  │ MulticlassAccuracy │      1 │
│ 15 │ val_loss │ MeanMetric         │   0.50 │
├─val: 1-1 accuracy 0.5
| 3  | val_acc | MulticlassAccuracy | 7 |
  | Name    | Type               | Params | Mode
3 | val_acc | MulticlassAccuracy | 0      | train
"""
NOISE = """\
Namespace(epochs=1, test_batch_size=1000, val_split=0.1, lr=0.1)
Using 2 GPUs, seed 42, 1.5 GB
Test samples: 1000
Epoch 00000: adjusting learning rate of group 0 to 1.0000e-03.
epoch 1 16 0.2
Epoch 1 took 12.3s
[GPU0] Epoch 1 | Batchsize: 32 | Steps: 60
Saved out/epoch-1-0.87.pt
"""


def lines_of(text):
    return [part for line in text.encode().split(b"\n") for part in split_states(line)]


def text_of(form, epoch, accuracy):
    text = form.format(e=epoch, E=90, l=20.5 / epoch, a=accuracy, t=3.25 * epoch)
    return f"{NOISE}{text}\n"


@pytest.mark.parametrize(("form", "metric"), FORMATS.items())
def test_a_pattern_from_one_epoch_reads_every_other(tmp_path, form, metric):
    shape = propose_pattern(lines_of(text_of(form, 1, 5.0)))
    assert shape is not None
    assert (shape.proposal.metric, shape.proposal.last) == (metric, 5.0)
    section = {"source": "stdout", "pattern": shape.pattern}
    source = open_source(tmp_path, metric, **section)
    accuracies = [5.0, 9.0, 17.0, 66.0, 99.0, 100.0, 5.0, 0.0, 1.0, 12.0, 70.0, 71.0]
    for epoch, accuracy in enumerate(accuracies, 1):
        append(tmp_path / "run" / "logs" / "rank0.log", text_of(form, epoch, accuracy))
    read = [(e.epoch, e.metrics[metric]) for e in source.read(final=True) if metric in e.metrics]
    assert read == [*enumerate(accuracies, 1)]
    assert list(source.warnings) == []


def test_what_is_no_result_has_no_pattern():
    assert propose_pattern(NOISE.splitlines()) is None
    assert propose_pattern(SUMMARIES.splitlines()) is None
    assert propose_pattern(["Epoch 1: val_loss=nan"]) is None
    assert propose_pattern([]) is None


def test_a_pattern_that_would_read_another_line_in_another_way_is_not_proposed():
    lines = ["val acc: 0.5", "val acc: unknown"]
    assert propose_pattern(lines) is None
    assert propose_pattern(lines[:1])


def test_a_column_that_a_table_has_twice_is_read_once():
    shape = propose_pattern(["epoch loss loss epoch acc", "1 0.5 0.6 1 0.7"])
    assert shape.pattern == r"^(?P<epoch>\d+) +(?P<loss>\S+) +\S+ +\S+ +(?P<acc>\S+)"


@pytest.mark.parametrize(
    ("lines", "metric"),
    [
        (["epoch 1 val acc: 0", "epoch 2 val acc: 0"], None),
        (["epoch 1 val acc: 0"], None),
        (["epoch 1 val acc: 0", "epoch 2 val acc: 1"], "val_acc"),
        (["epoch 1 val loss: 0"], "val_loss"),
        # A bar has many states in an epoch.
        (["epoch 1 10% val acc: 0.5", "epoch 1 20% val acc: 0.5"], "val_acc"),
        (["epoch 1 val threshold: 0.5", "epoch 2 val threshold: 0.5"], None),
        (
            ["val threshold: 0.5", "val loss: 2.1", "val threshold: 0.5", "val loss: 1.9"],
            "val_loss",
        ),
    ],
)
def test_what_does_not_vary_like_a_metric_is_none(lines, metric):
    shape = propose_pattern(lines)
    assert (shape and shape.proposal.metric) == metric


@pytest.mark.parametrize("space", ["  ", "\t", "            "])
def test_a_line_that_is_indented_may_be_centred_so_it_is_read_anywhere(space):
    shape = propose_pattern([f"{space}Epoch: 1 Acc: 0.5000"])
    assert shape.pattern == r"^\s*Epoch: *(?P<epoch>\d+) Acc: *(?P<acc>\S+)"


@pytest.mark.parametrize(
    ("train", "validate", "metric"),
    [
        (
            "[Epoch 1] [train] loss: 0.64, acc: 0.62",
            "[Epoch 1] [val] loss: 0.55, acc: 0.7",
            "val_acc",
        ),
        ("Epoch 1 train loss: 0.6 f1: 0.6", "Epoch 1 valid loss: 0.5 f1: 0.7", "valid_f1"),
        ("Epoch 1 train loss 0.6 acc 0.6", "Epoch 1 test loss 0.5 acc 0.7", "test_acc"),
    ],
)
def test_of_two_lines_of_an_epoch_that_of_the_validation_is_read(train, validate, metric):
    shape = propose_pattern([train, validate])
    assert (shape.proposal.metric, shape.line) == (metric, validate)
    assert not re.search(shape.pattern, train)


@pytest.mark.parametrize(
    ("line", "begin"),
    [
        ("Rank {rank}, epoch {epoch}: val acc 0.{epoch}", r"^\bRank +0\b"),
        ("12:30:01 rank {rank}: epoch {epoch} val acc 0.{epoch}", r"rank +0\b"),
        ("epoch {epoch} (rank {rank}) val acc 0.{epoch}", r"^epoch +(?P<epoch>\d+).*?\brank"),
        ("[rank{rank}] epoch {epoch} val acc 0.{epoch}", r"^\[rank0\]"),
    ],
)
def test_of_ranks_that_all_print_one_is_read(line, begin):
    """Else two lines would be two reports of an epoch."""
    lines = [line.format(rank=rank, epoch=epoch) for epoch in (1, 2, 3) for rank in (0, 1)]
    shape = propose_pattern(lines)
    assert shape.pattern.startswith(begin)
    assert [bool(re.search(shape.pattern, each)) for each in lines] == [True, False] * 3


def test_a_bar_may_have_another_width():
    lines = [f"Epoch {epoch} {'━' * 9 * epoch} 25/25 val/acc: 0.{epoch}" for epoch in (1, 2)]
    shape = propose_pattern(lines[:1])
    assert re.search(shape.pattern, lines[1])["val_acc"] == "0.2"


def test_the_usual_metric_is_preferred():
    lines = ["Epoch 1: val_f1=0.5 val_acc=0.6"]
    assert propose_pattern(lines, "val_acc").proposal.metric == "val_acc"


def test_a_line_with_the_epoch_precedes_those_of_steps():
    lines = [*(f"val step {step}: val_acc=0.{step}" for step in range(9)), "Epoch 1 val_acc=0.5"]
    assert propose_pattern(lines).line == "Epoch 1 val_acc=0.5"


words = st.text("abcXYZ_é准'\"\\$#:=|[](){}.*+?^-,;%/@ \t0123456789\x07", max_size=12)


@given(st.lists(words, max_size=4), st.floats(0.001, 99.5), st.sampled_from(["%", ",", "", " )"]))
@example(["", ""], 0.001, "")
def test_whatever_stands_around_it_a_pattern_is_valid_and_reads_its_line(tmp, parts, value, sign):
    line = f"{' '.join(parts[:2])} epoch 3 {' '.join(parts[2:])} val_acc: {value:.3f}{sign}"
    shape = propose_pattern([line])
    if shape is None:
        return
    check_pattern(shape.pattern)
    match = re.search(shape.pattern, line)
    assert match["epoch"] == "3"
    guess = build_guess(read_command(["python", "x.py"]), Script(""), gpus=0, cpus=1)
    guess = type(guess)(**{**vars(guess), "pattern": shape.pattern})
    job = yaml.safe_load(write_draft(guess, ["python", "x.py"], tmp / "x.yaml"))
    assert job["metrics"] == {"source": "stdout", "pattern": shape.pattern}


@given(st.lists(st.text(max_size=80) | words, max_size=6))
def test_no_line_is_too_strange(lines):
    if shape := propose_pattern(lines):
        check_pattern(shape.pattern)


@pytest.fixture(scope="module")
def tmp(tmp_path_factory):
    return tmp_path_factory.mktemp("draft")


def test_what_is_printed_in_each_step_is_no_result():
    lines = [f"[Epoch 0/1] [Batch {n}/32] [D loss: {0.7 - n / 100:.4f}]" for n in range(32)]
    assert propose_pattern(lines).proposal.metric == "d_loss"
    assert propose_pattern(lines, each_step=7) is None
    both = propose_pattern([*lines, "Epoch 0 | val loss: 0.5", "Epoch 1 | val loss: 0.4"], "", 7)
    assert both.proposal.metric == "val_loss"


@pytest.mark.parametrize(
    "text", ["val_acc 57,3 %", "val acc 0,57", "val_acc: 1,234.5", "val_loss=0,5 val_acc=0,9"]
)
def test_no_pattern_reads_a_part_of_a_number(text):
    lines = [f"Epoche {epoch}: {text}" for epoch in (1, 2)]
    assert propose_pattern([*lines, f"Epoche 3: {text.replace('5', '6')}"]) is None


def test_a_value_of_a_batch_gives_no_pattern_and_the_result_behind_it_does():
    batches = [
        f"Test: [{n}/40]\tTime 0.1 (0.2)\tLoss 1.9 (2.{n})\tAcc@1 18.750 ({n}.9)" for n in (0, 20)
    ]
    assert propose_pattern(batches) is None
    results = [[*batches, f"Test result: Acc@1 {value}"] for value in (21.34, 25.12)]
    shape = propose_pattern([line for each in results for line in each])
    assert shape.line.startswith("Test result")
    assert shape.proposal.last == 25.12
    timm = "Test (EMA): [   3/3]  Loss:   1.500 ( 1.700)  Acc@1:  65.000 (60.000)"
    assert propose_pattern([timm]) is None


def test_an_accuracy_without_an_epoch_is_a_result_if_it_is_as_rare_as_evaluations():
    lines = [f" Accuracy: {value}%, Avg loss: 2.29" for value in (14.2, 14.6)]
    assert propose_pattern(lines) is None
    assert propose_pattern(lines, evaluations=1) is None
    assert propose_pattern(lines, evaluations=2).proposal[:3] == ("accuracy", "stdout", "max")
    psnr = propose_pattern(
        ["===> Epoch 1 Complete: Avg. Loss: 0.1712", "===> Avg. PSNR: 13.1279 dB"], evaluations=1
    )
    assert psnr.proposal.metric == "psnr"
    trained = [f"train acc: {value}" for value in (0.5, 0.6)]
    assert propose_pattern(trained, evaluations=2) is None


def test_a_count_of_epochs_is_no_batch():
    lines = [f"Val [{n}/60] val_acc: {n / 9:.3f}" for n in (1, 2, 3)]
    assert propose_pattern(lines).proposal.metric == "val_acc"
