"""Whether curves are drawn against epochs or samples, and what a run has of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.view.report.values import run, run_by_samples
from zeusrun.analysis.curves import (
    amount_in,
    counts_reports,
    curve_in,
    curve_unit,
    left_out_text,
)
from zeusrun.trial import CurvePoint, TrialStatus

WHOLE = run(1, 32)


def test_a_job_has_one_unit_that_by_which_its_runs_are_compared():
    assert curve_unit([]) == curve_unit([WHOLE]) == "epochs"
    assert curve_unit([WHOLE, run_by_samples(2, 32), WHOLE]) == "samples"


@pytest.mark.parametrize(
    "changes", [{"forgotten": True}, {"metric": "other"}, {"observed_batch_size": 7}]
)
def test_a_run_that_is_not_compared_changes_the_unit_only_where_it_is_alone(changes):
    odd = run_by_samples(1, 32, **changes)
    assert curve_unit([odd, WHOLE]) == "epochs"
    assert curve_unit([odd]) == "samples"


def test_a_run_that_reports_once_an_epoch_has_the_samples_of_its_epochs():
    curve = curve_in(replace(WHOLE, samples=900), "samples")
    assert [point.epoch for point in curve] == [300, 600, 900]
    from_zero = tuple(point._replace(epoch=point.epoch - 1) for point in WHOLE.curve)
    counted = replace(WHOLE, samples=900, curve=(CurvePoint(0, 0.0, None, 0.1), *from_zero))
    assert [point.epoch for point in curve_in(counted, "samples")] == [0, 300, 600, 900]
    assert [point.epoch for point in curve_in(counted, "epochs")] == [0, 1, 2, 3]


def test_the_samples_of_an_old_record_are_those_of_its_steps_and_else_unknown():
    assert amount_in(replace(WHOLE, samples=None, steps=90), "samples") == 90 * 32
    unknown = replace(WHOLE, samples=None, steps=None)
    assert (curve_in(unknown, "samples"), amount_in(unknown, "samples")) == ((), None)
    assert left_out_text([WHOLE, unknown], "samples").startswith("1 run left out: its number of")
    assert left_out_text([unknown] * 2, "samples").startswith("2 runs left out: their number of")
    assert not left_out_text([unknown], "epochs")


def test_a_run_took_the_samples_up_to_its_target_else_all():
    reached = run_by_samples(1, 32)
    assert (reached.samples, amount_in(reached, "samples")) == (250_000, 200_000)
    assert amount_in(replace(reached, status=TrialStatus.STOPPED), "samples") == 250_000
    assert amount_in(WHOLE, "epochs") == 3


def test_epochs_beyond_the_most_are_no_numbers_of_reports():
    """A loop of the script's own may be longer than ``max_epochs``."""
    long = replace(WHOLE, max_epochs=1)
    assert not counts_reports(long)
    assert counts_reports(replace(WHOLE, by_reports=True))
    assert not counts_reports(replace(run_by_samples(1, 32), by_reports=True))
