"""The noise curve of a training: over restarts of its ranks, and over several models."""

from __future__ import annotations

from tests.launcher.values import after, report, started
from zeusrun.sidecar.events import Observed, Reported, Watched
from zeusrun.trial.values import NoisePoint

DATA = Observed(100.5, 0, 8, 1, 1, data=100)
METRIC = "accuracy"


def watched(t, samples, value=50.0, *, model=0, parameters=10, low=40.0, **others):
    values = {"noise_scale_low": low, **others}
    if value is not None:
        values |= {"noise_scale": value, "noise_scale_high": 60.0}
    return Watched(t, model, parameters, values, "ranks", samples=samples)


def curve(*events, start=None):
    progress = after(*events) if start is None else after(*events, start=start)
    return [(each.samples, each.epoch) for each in progress.noise_curve]


def test_points_are_against_samples_and_epochs():
    events = [DATA, watched(101, 50), watched(102, 90), watched(103, 150, None)]
    assert after(*events).noise_curve == (
        NoisePoint(90, 0.9, 40.0, 50.0, 60.0),
        NoisePoint(150, 1.5, 40.0, None, None),
    )


def test_of_data_without_a_size_there_are_no_epochs():
    assert curve(watched(101, 50)) == [(50, None)]
    assert curve(Observed(100.5, 0, 8, 1, 1), watched(101, 50)) == [(50, None)]


def test_nothing_is_drawn_without_samples_or_a_lower_bound():
    unknown = Watched(101, 0, 10, {"noise_scale": 2.0}, samples=50)
    assert curve(DATA, watched(101, None), watched(101, 0), unknown) == []
    seen = after(DATA, unknown)
    assert (seen.noise_curve, seen.gradients_of) == ((), "ranks")


def test_a_restart_goes_on_where_the_last_report_was():
    def reported(t, epoch, samples):
        return Reported(t, epoch, {METRIC: 0.1 * epoch}, "report", samples=samples)

    before = after(DATA, watched(101, 90), reported(102, 1, 100), watched(103, 180))
    begun = [started(104, restart=1), DATA]
    # No report has come since the restart, and then one has.
    again = after(*begun, watched(105, 40), start=before)
    assert curve(start=again) == [(90, 0.9), (140, 1.4)]
    more = after(reported(106, 2, 100), watched(107, 110), reported(108, 3, 200), start=again)
    assert curve(watched(109, 170), start=more) == [(90, 0.9), (140, 1.4), (270, 2.7)]


def test_a_restart_from_scratch_before_any_report_begins_again():
    before = after(DATA, watched(101, 90), watched(102, 150))
    assert curve(started(103, restart=1), watched(104, 40), start=before) == [(40, 0.4)]


def test_the_curve_is_of_the_largest_model():
    small, large = watched(101, 90, 1.0), watched(102, 95, 2.0, model=1, parameters=20)
    progress = after(DATA, small, large, watched(103, 190, 3.0))
    assert [each.value for each in progress.noise_curve] == [2.0]
    progress = after(DATA, large, small)
    assert [each.value for each in progress.noise_curve] == [2.0]


def test_of_models_that_are_built_again_the_newest_counts():
    models = [watched(101 + n, 150 + n, 10.0 / 10**n, model=n) for n in range(3)]
    progress = after(DATA, *models)
    assert [each.value for each in progress.noise_curve] == [0.1]
    again = after(watched(105, 90, 7.0), watched(106, 250, 0.2, model=2), start=progress)
    assert [each.value for each in again.noise_curve] == [0.1, 0.2]


def test_a_problem_of_another_rank_changes_no_curve():
    told = Watched(102, 0, 0, {}, problem="out of memory", rank=1)
    assert curve(DATA, watched(101, 50), told, watched(103, 90)) == [(90, 0.9)]


def test_a_last_record_without_a_value_keeps_the_curve():
    progress = after(DATA, watched(101, 50), Watched(102.0, 0, 10, {}))
    assert len(progress.noise_curve) == 1


def test_statistics_are_those_of_a_trial():
    progress = after(DATA, watched(101, 90), report(102, 1, 0.1))
    assert progress.gradients_of == "ranks"
    assert after().gradients_of is None
