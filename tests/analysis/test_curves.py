"""Whether curves are drawn against epochs or samples, and what a run has of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.view.report.values import run, run_by_samples
from zeusrun.analysis.curves import (
    amount_in,
    build_curves,
    build_noise,
    curve_in,
    curve_unit,
    left_out_text,
    newest_curves,
)
from zeusrun.trial import CurvePoint
from zeusrun.trial.values import NoisePoint

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
    for left_out in ({"curve": ()}, {"metric": "a third"}):
        assert curve_unit([replace(WHOLE, **left_out), odd]) == "samples"


def test_a_run_that_reports_once_an_epoch_has_the_samples_of_its_epochs():
    curve = curve_in(replace(WHOLE, whole_samples=900), "samples")
    assert [point.epoch for point in curve] == [300, 600, 900]
    from_zero = tuple(point._replace(epoch=point.epoch - 1) for point in WHOLE.curve)
    counted = replace(WHOLE, whole_samples=900, curve=(CurvePoint(0, 0.0, None, 0.1), *from_zero))
    assert [point.epoch for point in curve_in(counted, "samples")] == [0, 300, 600, 900]
    assert [point.epoch for point in curve_in(counted, "epochs")] == [0, 1, 2, 3]


def test_the_samples_of_an_old_record_are_those_of_its_steps_and_else_unknown():
    assert amount_in(replace(WHOLE, samples=None, whole_steps=90), "samples") == 90 * 32
    unknown = replace(WHOLE, samples=None, whole_steps=None)
    assert (curve_in(unknown, "samples"), amount_in(unknown, "samples")) == ((), None)
    assert left_out_text([WHOLE, unknown], "samples").startswith("1 run left out: its number of")
    assert left_out_text([unknown] * 2, "samples").startswith("2 runs left out: their number of")
    assert not left_out_text([unknown], "epochs")


def test_the_newest_runs_of_each_batch_size_are_drawn_oldest_first():
    trials = [run(n, 32 if n < 4 else 16) for n in range(1, 7)]
    trials[4] = replace(trials[4], metric="other")
    trials[0] = replace(trials[0], curve=())
    assert newest_curves([], 2) == []
    for most, numbers in ((1, [3, 6]), (2, [2, 3, 4, 6]), (9, [2, 3, 4, 6])):
        assert [each.recurrence for each in newest_curves(trials, most)] == numbers


def curve(*points):
    return replace(WHOLE, curve=tuple(CurvePoint(*point) for point in points))


@pytest.mark.parametrize("by_energy", [True, False])
def test_a_curve_has_what_was_taken_up_to_each_value_that_is_known(by_energy):
    whole = curve((1, 2.0, 20.0, 0.1), (2, 3.0, 30.0, None), (3, 4.0, 40.0, 0.3))
    (found,) = build_curves([whole, curve((1, 2.0, 20.0, 0.1))], "epochs", by_energy=by_energy)
    assert (found.trial, found.size, found.status) == (WHOLE.trial, "32", WHOLE.status.value)
    assert (found.best, found.epochs, found.values) == (WHOLE.best_metric, (1, 3), (0.1, 0.3))
    assert found.taken == ((20.0, 40.0) if by_energy else (2.0, 4.0))
    damaged = curve((1, 2.0, 20.0, 0.1), (2, 3.0, 30.0, 1e300), (3, 4.0, None, 0.2))
    assert len(list(build_curves([damaged], "epochs", by_energy=by_energy))) == (not by_energy)


def test_a_long_curve_is_thinned_and_keeps_its_end():
    for length, drawn in ((150, 150), (151, 76), (301, 101)):
        whole = curve(*((n, float(n), None, 0.1) for n in range(1, length + 1)))
        (found,) = build_curves([whole], "epochs", by_energy=False)
        assert (len(found.epochs), found.epochs[0], found.epochs[-1]) == (drawn, 1, length)


def noisy(number, size, *points):
    return replace(run(number, size), noise_curve=points)


def test_the_noise_is_that_of_the_newest_run_of_each_batch_size_the_smallest_first():
    points = (NoisePoint(900, 1.0, 0.5, 0.9, 2.0), NoisePoint(1800, 2.0, 50.0, None, None))
    broken = NoisePoint(2700, 3.0, 50.0, 70.0, 1e300)
    trials = [
        noisy(1, 64, *points),
        noisy(2, 16, *points[:1]),
        noisy(3, 32, *points, broken),
        noisy(4, 32, *points, broken),
        run(5, 32),
    ]
    found = list(build_noise(trials, "epochs"))
    assert [(each.trial, each.size, each.at, each.points) for each in found] == [
        *(("job-4-1", "32", (1, 2), points), ("job-1-1", "64", (1, 2), points)),
    ]
    assert [each.at for each in build_noise(trials, "samples")] == [(900, 1800)] * 2


def test_a_run_took_the_samples_up_to_its_target_else_all():
    reached = run_by_samples(1, 32)
    assert (reached.whole_samples, amount_in(reached, "samples")) == (250_000, 200_000)
    assert curve_in(reached, "samples") == reached.by_samples
    assert amount_in(replace(reached, samples=None), "samples") is None
    assert amount_in(WHOLE, "epochs") == 3
