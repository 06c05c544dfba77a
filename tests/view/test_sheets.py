"""The two costs of a run that was not undisturbed: what was paid, and what one training costs."""

from __future__ import annotations

import dataclasses

import pytest

from tests.analysis.test_usual import interrupted
from tests.notify.test_notices import trial
from tests.view.report.values import run_by_samples
from tests.view.test_tables import render, widest
from zeusrun.metrics.progress import TrainingSummary
from zeusrun.metrics.seen import Seen
from zeusrun.trial import CurvePoint, Interruption
from zeusrun.view.sheets import metrics_table, trial_rows, trial_sheet, undisturbed_text

TWICE = (Interruption(7.0, 1), Interruption(100.0, 2))
IN_ALL = tuple(Interruption(time_s, n) for n, time_s in enumerate((1.0, 6.0, 50.0, 106.0)))
WHOLE = interrupted(1)
ANEW = dataclasses.replace(WHOLE, curve=WHOLE.curve[2:], epochs=3)
FOR_ONE = "200 J without interruptions: "
RESTARTED = "the ranks were restarted in epoch"
UNTOLD = "whether it began anew or went on cannot be told"


@pytest.mark.parametrize(
    ("run", "preemptions", "told"),
    [
        (trial(1), 0, None),
        (interrupted(1), 0, f"{FOR_ONE}{RESTARTED} 3"),
        (interrupted(1), 1, f"{FOR_ONE}it was preempted in epoch 3"),
        (interrupted(1, interruptions=TWICE), 0, f"{FOR_ONE}{RESTARTED}s 2, 3"),
        (
            interrupted(1, interruptions=TWICE),
            1,
            f"{FOR_ONE}it was preempted, or {RESTARTED.replace(' in', ', in')}s 2, 3",
        ),
        (
            ANEW,
            0,
            f"150 J without interruptions: {RESTARTED} 3, and it began anew",
        ),
        (
            dataclasses.replace(ANEW, unclear=True),
            0,
            f"unknown without interruptions: {RESTARTED} 3; {UNTOLD}",
        ),
        (
            interrupted(1, interruptions=IN_ALL),
            0,
            f"no epoch without an interruption: {RESTARTED}s 1, 2, 3, 4",
        ),
        (interrupted(1, interruptions=(), shared=True), 0, None),
    ],
)
def test_both_costs_are_told_where_they_differ_and_why(run, preemptions, told):
    run = dataclasses.replace(run, preemptions=preemptions)
    assert undisturbed_text(run) == told


def test_an_interruption_that_cost_nothing_is_not_spoken_of():
    cheap = dataclasses.replace(interrupted(1), cost_j=200.2)
    assert undisturbed_text(cheap) is None
    assert undisturbed_text(dataclasses.replace(cheap, cost_j=150.0)) is None


def test_the_second_cost_follows_the_first_within_80_columns():
    run = dataclasses.replace(interrupted(1, interruptions=TWICE), preemptions=1)
    lines = render(trial_sheet(run, None, run_dir_exists=True)).splitlines()
    (at,) = [n for n, line in enumerate(lines) if line.startswith("cost ")]
    assert lines[at].split()[:3] == ["cost", "1.10", "kJ"]
    assert "(maximum power)" in lines[at + 1]
    assert lines[at + 2].split()[:3] == ["200", "J", "without"]
    assert widest("\n".join(lines)) <= 80


def test_a_run_is_counted_in_reports_only_if_nothing_else_says_how_far_it_went():
    long = dataclasses.replace(trial(1, epochs=3), max_epochs=1)  # by a loop of the script's own
    for own, name in (
        (long, "epochs"),
        (dataclasses.replace(long, by_reports=True), "reports"),
        (dataclasses.replace(run_by_samples(1, 32), by_reports=True), "samples"),
    ):
        names = [label for label, _ in trial_rows(own)]
        assert [each for each in ("epochs", "reports", "samples") if each in names] == [name]


def test_a_run_that_reports_within_epochs_is_shown_with_samples_and_its_whole_curve():
    run = run_by_samples(1, 32, progress=4.0)
    text = render(trial_sheet(run, None, run_dir_exists=True))
    assert "samples     200,000 (4 epochs)" in text
    assert "\n            ▁▂▅▇█\n" in text
    assert "of at most" not in text


def test_of_a_run_that_trained_on_after_its_target_it_is_said_which_amount_ends_there():
    short = dataclasses.replace(trial(1), epochs=2, steps=250, time_s=10.0, max_epochs=12)
    curve = tuple(CurvePoint(n, 5.0 * n, 50.0 * n, 0.6) for n in (1, 2, 3, 4))
    whole = {"whole_epochs": 4, "whole_steps": 500, "whole_time_s": 20.0}
    run = dataclasses.replace(short, curve=curve, **whole)
    text = render(trial_sheet(run, None, run_dir_exists=True))
    assert "epochs      2 to the target, 4 done of at most 12\n" in text
    assert "steps       250 to the target, 500 in all\n" in text
    text = render(
        trial_sheet(dataclasses.replace(run, whole_time_s=10.0), None, run_dir_exists=True)
    )
    assert "epochs      2 of at most 12\nsteps       250\n" in text
    sampled = run_by_samples(1, 32, progress=4.0)
    on = dataclasses.replace(sampled, time_s=1.0, whole_time_s=2.0)
    text = render(trial_sheet(on, None, run_dir_exists=True))
    assert " to the target, " in text
    assert "samples     200,000 (4 epochs) to the target, 250,000 in all\n" in text


@pytest.mark.parametrize(
    ("width", "last"), [(104, "how"), (80, "range"), (60, "last"), (30, "last")]
)
def test_metrics_leave_out_columns_before_they_cut_a_name(width, last):
    seen = Seen(0.70393, 0.0073301, 30, low=0.0073301, high=0.70393, each_step=True)
    sight = TrainingSummary(None, (("val/accuracy", "tensorboard", seen),), (), None, None, (), ())
    text = render(metrics_table(sight, "val/auc", width), width)
    assert text.splitlines()[0].split()[-1] == last
    assert "val/accuracy " in text
    assert widest(text) <= width
