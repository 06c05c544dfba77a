"""What trainings print: with a pattern of one's own, and as known scripts do."""

from __future__ import annotations

import signal

import pytest

from tests.contracts.source import MetricSourceContract
from tests.metrics.reading import append, open_source, values_of
from zeusrun.metrics import stdout
from zeusrun.sidecar.events import SIDECAR_NAME, Ended, encode_event
from zeusrun.sidecar.step_clock import StepClock

PATTERN = r"epoch (?P<epoch>\d+) acc (?P<accuracy>\S+)( loss (?P<loss>\S+))?"


def log(folder, rank=0):
    return folder / "run" / "logs" / f"rank{rank}.log"


class TestStdout(MetricSourceContract):
    @pytest.fixture
    def source(self, tmp_path):
        return open_source(tmp_path, source="stdout", pattern=PATTERN)

    @pytest.fixture(autouse=True)
    def prints_something(self, source, tmp_path):
        append(log(tmp_path), "epoch 0 acc\n")

    @pytest.fixture
    def report(self, tmp_path):
        return lambda epoch, **metrics: append(log(tmp_path), self.line(epoch, metrics))

    @staticmethod
    def line(epoch, metrics):
        loss = f" loss {metrics['loss']}" if "loss" in metrics else ""
        return f"epoch {epoch} acc {metrics['accuracy']}{loss}\n"

    @pytest.fixture
    def begin_report(self, tmp_path):
        def begin(epoch, **metrics):
            line = self.line(epoch, metrics)
            append(log(tmp_path), line[:-3])
            return lambda: append(log(tmp_path), line[-3:])

        return begin

    @pytest.fixture
    def spoil(self, tmp_path):
        return lambda: append(log(tmp_path), "epoch 1 acc unknown\n")

    misses_its_file = True  # no line has matched


TORCHVISION = """\
Epoch: [0]  [   0/1251]  eta: 0:21:46  lr: 0.1  img/s: 36.9  loss: 7.0 (7.0)  acc1: 0.0 (0.0)
Epoch: [0] Total time: 0:09:51
Test:   [  0/391]  eta: 0:03:01  loss: 4.1 (4.1)  acc1: 21.9 (21.9)  acc5: 50.0 (50.0)
Test:  Total time: 0:00:43
Test:  Acc@1 18.250 Acc@5 41.000
Test: EMA Acc@1 20.500 Acc@5 44.000
Epoch: [1]  [   0/1251]  eta: 0:21:46  lr: 0.1  img/s: 36.9  loss: 4.5 (4.4)  acc1: 9.0 (9.0)
Test:  Acc@1 31.500 Acc@5 58.000
"""
EXAMPLES = """\
Epoch: [1][  1/100]\tTime  0.8 ( 0.8)\tData  0.5 ( 0.5)\tLoss 6.9e+00 (6.9e+00)\tAcc@1   0.00 (  0.00)
Test: [ 0/10]\tTime  0.9 ( 0.9)\tLoss 6.8e+00 (6.8e+00)\tAcc@1   1.00 (  1.00)
 *   Acc@1 12.500 Acc@5 25.000
"""
NANOGPT = """\
number of parameters: 10.65M
step 0: train loss 4.2874, val loss 4.2823
iter 0: loss 4.2654, time 36044.70ms, mfu -100.00%
iter 10: loss 3.2420, time 144.26ms, mfu 2.58%
step 250: train loss 1.9650, val loss 2.0625
"""
TORCHTITAN = (
    "[rank0]:[titan] 2025-06-01 12:00:00,000 - root - INFO - \x1b[31mstep:  1  \x1b[32mloss: "
    "12.24213  \x1b[38;2;180;60;0mgrad_norm:  1.5  \x1b[0m\n"
    "[titan] 2025-06-01 12:00:09,000 - root - INFO - \x1b[33mvalidate step: 10  \x1b[32mloss:  "
    "7.5000  \x1b[38;2;54;234;195mmemory: 10GiB(11%)\x1b[0m\n"
)
MNIST = """\
Train Epoch: 1 [0/60000 (0%)]\tLoss: 2.300000
Train Epoch: 1 [640/60000 (1%)]\tLoss: 1.700000

Test set: Average loss: 0.0500, Accuracy: 9830/10000 (98%)

"""
LANGUAGE = """\
| epoch   2 |   200/ 2983 batches | lr 20.00 | ms/batch  9.10 | loss  5.12 | ppl   167.34
-----------------------------------------------------------------------------------------
| end of epoch   2 | time: 31.20s | valid loss  5.10 | valid ppl   164.02
"""


@pytest.mark.parametrize("automatic", [True, False])
@pytest.mark.parametrize(
    ("name", "text", "values"),
    [
        ("torchvision", TORCHVISION, ("acc1", [(0, 18.25), (1, 31.5)])),
        ("torchvision", TORCHVISION, ("ema_acc1", [(0, 20.5)])),
        ("torchvision", EXAMPLES, ("acc5", [(1, 25.0)])),
        ("torchvision", EXAMPLES.replace(" Acc@5 25.000", ""), ("acc1", [(1, 12.5)])),
        ("nanogpt", NANOGPT, ("val_loss", [(0, 4.2823), (1, 2.0625)])),
        ("torchtitan", TORCHTITAN, ("val_loss", [(1, 7.5)])),
        ("torchtitan", TORCHTITAN, ("loss", [(1, 12.24213)])),
        ("pytorch_examples", MNIST, ("accuracy", [(1, 98.0)])),
        ("pytorch_examples", MNIST, ("test_loss", [(1, 0.05)])),
        ("pytorch_examples", LANGUAGE, ("val_loss", [(2, 5.1)])),
    ],
)
def test_the_lines_of_known_scripts_are_read(tmp_path, name, text, values, automatic):
    metric, values = values
    section = {"source": "auto"} if automatic else {"source": "stdout", "pattern": name}
    source = open_source(tmp_path, metric, **section)
    append(log(tmp_path), text)
    events = source.read()
    assert [(e.epoch, e.metrics[metric]) for e in events if metric in e.metrics] == values
    assert {event.source for event in events} == {"stdout"}
    assert list(source.warnings) == []


def test_the_states_of_a_progress_bar_are_lines_and_colours_are_none(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=r"^acc=(?P<accuracy>[\d.]+)")
    append(log(tmp_path), "  0%|\rloss=1\r\x1b[1macc=0.5\x1b[0m, 100%|\nnot acc=0.9\n")
    assert values_of(source) == [(1, 0.5)]


def test_a_value_may_be_followed_by_a_sign(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=r"acc (?P<accuracy>\S+)")
    append(log(tmp_path), "acc 91.5%, best\nacc 0.5, next\nacc nan\n")
    assert str(values_of(source)) == "[(1, 91.5), (2, 0.5), (3, nan)]"


@pytest.mark.parametrize("pattern", [r"acc (?P<acc>\S+)", r"acc (?P<acc>[\d.]+)"])
@pytest.mark.parametrize(("target", "value"), [(0.9, 0.15), (1.0, 0.15), (90.0, 15.0)])
def test_a_percentage_is_a_share_if_the_target_is_one(tmp_path, pattern, target, value):
    source = open_source(tmp_path, "acc", target=target, source="stdout", pattern=pattern)
    append(log(tmp_path), "acc 15.0%, best\nacc 0.5 of 100%\n")
    assert values_of(source, "acc") == [(1, pytest.approx(value)), (2, 0.5)]


@pytest.mark.parametrize(
    "text",
    ["acc: 35 %", "acc: 35\u00a0%", "acc: 35\u202f%", "acc: 35\uff05", "acc: 35 percent", "acc (%): 35",
     "acc[%] 35", "acc % = 35", "acc%: 35 of 100"],
)  # fmt: skip
def test_a_percent_sign_may_stand_apart_or_before(tmp_path, text):
    pattern = r"acc\W*(?P<acc>[\d.]+)"
    source = open_source(tmp_path, "acc", target=0.7, source="stdout", pattern=pattern)
    append(log(tmp_path), f"{text}\n")
    assert values_of(source, "acc") == [(1, pytest.approx(0.35))]


@pytest.mark.parametrize("text", ["100%| acc: 0.35", "50% acc 0.35  12%|##", "acc: 0.35, 5 %"])
def test_the_percent_sign_of_another_number_is_none_of_the_metric(tmp_path, text):
    pattern = r"acc\W*(?P<acc>[\d.]+)"
    source = open_source(tmp_path, "acc", target=0.7, source="stdout", pattern=pattern)
    append(log(tmp_path), f"{text}\n")
    assert values_of(source, "acc") == [(1, 0.35)]


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"acc=(?P<acc>[\d.]+)", "acc=0,91"),
        (r"acc=(?P<acc>[\d.]+).*", "acc=0,91 loss=3"),
        (r"(?P<acc>\d+) %", "acc 57,3 %"),
        (r"acc\D*(?P<acc>[\d.]+)", "acc 1,234.5"),
        (r"acc\D*(?P<acc>[\d.]+)", "acc -0.5"),
        (r"acc\D*(?P<acc>[\d.]+)", "acc=\u22120.5"),
        (r"acc (?P<acc>[\d.]+)", "acc 1.5e-05"),
        (r"acc (?P<acc>\d+)", "acc 57.3"),
        (r"acc (?P<acc>\d)", "acc 57"),
        (r"(?P<acc>\d\.\d+)", "acc 10.5"),
    ],
)
def test_a_part_of_a_number_is_no_value_and_is_named(tmp_path, pattern, text):
    source = open_source(tmp_path, "acc", source="stdout", pattern=pattern)
    append(log(tmp_path), f"{text}\n")
    assert values_of(source, "acc") == []
    (warning,) = source.warnings
    assert f"a part of a number, for acc from {text!r}" in warning


@pytest.mark.parametrize(
    ("pattern", "text", "value"),
    [
        (r"^(?P<epoch>\d+),(?P<acc>[\d.]+)", "1,0.91", 0.91),
        (r"^(?P<epoch>\d+)\D(?P<acc>[\d.]+)", "1,0.91", 0.91),
        (r"acc (?P<acc>[\d.]+)", "acc 0.91,0.82", 0.91),
        (r"acc (?P<acc>[\d.]+)", "acc 0.91, 5", 0.91),
        (r"loss,acc (?P<l>\d+),(?P<acc>\d+)", "loss,acc 3,57", 57),
        (r"acc (?P<acc>0\.\d\d)", "acc 0.912", 0.91),
        (r"acc -(?P<acc>[\d.]+)", "acc -0.5", 0.5),
        (r"top-(?P<acc>[\d.]+)", "top-0.5", 0.5),
        (r"ep (?P<epoch>\d+)\S* acc (?P<acc>\S+)", "ep 1.0 acc 1.5e-05", 1.5e-05),
    ],
)
def test_a_number_beside_another_one_is_whole(tmp_path, pattern, text, value):
    source = open_source(tmp_path, "acc", source="stdout", pattern=pattern)
    append(log(tmp_path), f"{text}\n")
    assert values_of(source, "acc") == [(1, value)]
    assert list(source.warnings) == []


def test_a_line_that_a_full_disk_cut_is_not_read(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=r"acc (?P<accuracy>[\d.]+)")
    append(log(tmp_path), "acc 0.25\nacc 0.9 41 bytes or more are missing: the disk was full")
    append(log(tmp_path), " (zeusrun)\nacc 0.5\n")
    assert [value for _, value in values_of(source)] == [0.25, 0.5]


def test_several_patterns_are_looked_for(tmp_path):
    patterns = [r"^Epoch (?P<epoch>\d+)/\d+$", r"^val: (?P<val>\S+)"]
    source = open_source(tmp_path, source="stdout", pattern=patterns, name="val")
    append(log(tmp_path), "Epoch 7/9\nval: 0.5\n")
    assert values_of(source) == [(7, 0.5)]


def test_what_a_continued_run_printed_before_is_ignored(tmp_path):
    section = {"source": "stdout", "pattern": PATTERN}
    open_source(tmp_path, **section)
    append(log(tmp_path), "epoch 1 acc 0.9\n")
    source = open_source(tmp_path, **section)
    append(log(tmp_path), "epoch 2 acc 0.25\n")
    assert values_of(source) == [(2, 0.25)]


def test_a_pattern_that_matches_nothing_is_named_at_the_end_and_a_guess_is_not(tmp_path):
    for section in ({"source": "stdout", "pattern": PATTERN}, {"source": "auto"}):
        source = open_source(tmp_path, **section)
        append(log(tmp_path), "nothing of the kind\n")
        assert source.read(final=True) == []
        named = ["metrics.source stdout: no line of rank 0 has matched metrics.pattern"]
        assert list(source.warnings) == (named if section["source"] == "stdout" else [])


def test_no_line_of_a_traceback_should_have_matched(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    lines = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>']
    append(log(tmp_path), "\n".join([*lines, "ValueError: loss is 3.5, which is not finite", ""]))
    source.read(final=True)
    (warning,) = source.warnings
    assert warning.endswith("has matched metrics.pattern")


def test_the_warning_shows_printed_lines_that_the_pattern_should_have_matched(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    append(log(tmp_path), "epoch 1: loss 0.5\x1b[0m, accuracy 0.9\nno number\nsaved 12 files\n")
    source.read()
    source.read(final=True)
    (warning,) = source.warnings
    shown = "'epoch 1: loss 0.5, accuracy 0.9' or 'saved 12 files'"
    assert warning.endswith(f"has matched metrics.pattern; should it match {shown}?")


def test_a_pattern_that_misses_three_results_is_named_while_the_training_goes_on(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    for epoch in (1, 2, 3):
        assert list(source.warnings) == []
        append(log(tmp_path), f"step {epoch} loss 0.5\nepoch {epoch}: val_acc 0.9{epoch}\n")
        source.read()
    (warning,) = source.warnings
    assert "should it match 'epoch 3: val_acc 0.93' or" in warning
    source.read(final=True)
    assert list(source.warnings) == [warning]


def test_a_script_that_was_ended_before_its_first_result_is_not_told_about_the_pattern(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    sidecar = tmp_path / "run" / SIDECAR_NAME
    append(sidecar, encode_event(Ended(1.0, 0, 143)).decode())
    (tmp_path / "run" / "clock").mkdir()
    StepClock(str(tmp_path / "run" / "clock" / "rank0")).tick()
    append(log(tmp_path), "(4): Linear(in_features=512, out_features=10, bias=True)\n")
    source.read(final=True)
    assert list(source.warnings) == []


def test_a_pattern_that_matches_has_no_such_warning(tmp_path):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    append(log(tmp_path), "saved 12 files\nepoch 1 acc 0.9\nsaved 13 files\n")
    assert values_of(source, final=True) == [(1, 0.9)]
    assert list(source.warnings) == []


@pytest.mark.parametrize(("code", "warned"), [(1, False), (0, True)])
def test_a_script_that_failed_before_its_first_step_is_not_told_about_the_pattern(
    tmp_path, code, warned
):
    source = open_source(tmp_path, source="stdout", pattern=PATTERN)
    append(tmp_path / "run" / SIDECAR_NAME, encode_event(Ended(1.0, 0, code)).decode())
    assert source.read(final=True) == []
    assert bool(source.warnings) == warned


def test_a_pattern_that_takes_for_ever_is_named_and_no_longer_used(tmp_path, monkeypatch):
    monkeypatch.setattr(stdout, "_MAX_S", 0.05)
    slow = r"^(?P<accuracy>(a+)+)$"
    source = open_source(tmp_path, source="stdout", pattern=[PATTERN, slow])
    append(log(tmp_path), "epoch 1 acc 0.5\n" + "a" * 60 + "!\n")
    assert values_of(source) == [(1, 0.5)]
    append(log(tmp_path), "epoch 2 acc 0.6\n")
    assert values_of(source, final=True) == []
    (warning,) = source.warnings
    assert repr(slow) in warning
    assert "no more lines are read in this run" in warning
    assert signal.getsignal(signal.SIGVTALRM) is signal.SIG_DFL


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [(4000, 0, [(1, 0.5)]), (9000, 4000, [(1, 0.5)]), (4080, 9000, [(1, 0.5)]), (9000, 9000, [])],
)
def test_both_ends_of_a_long_line_are_read_and_that_is_told(tmp_path, before, after, found):
    source = open_source(
        tmp_path, source="stdout", pattern="acc (?P<accuracy>\\S+)", name="accuracy"
    )
    append(log(tmp_path), "." * before + " acc 0.5 " + "." * after + "\n")
    assert values_of(source, final=True) == found
    told = "characters; only the first and the last 4,096 of a line are searched"
    assert (told in "".join(source.warnings)) == (before + after > 4096)
