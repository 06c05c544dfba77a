"""The points of the plots in the terminal."""

from __future__ import annotations

from dataclasses import replace

from tests.factories import DONE, REACHED, build_trial
from zeusrun.analysis.plots import MOST_CURVES, arms_plot, cost_plot, curves_plot, power_plot
from zeusrun.trial import CurvePoint, EnergySource, TrialStatus

ESTIMATED = "energy is estimated from CPU time"
STOPPED = replace(DONE, status=TrialStatus.STOPPED, cost_j=70.0)


def points(plot):
    return {series.label: list(series.points) for series in plot.series if series.points}


def test_a_recurrence_costs_what_all_its_attempts_cost():
    trials = [
        build_trial(1).finish(DONE),
        build_trial(2, global_batch_size=64).finish(replace(DONE, cost_j=80.0)),
        build_trial(3, 1, global_batch_size=64).finish(STOPPED),
        build_trial(3, 2).finish(DONE),
        build_trial(4).finish(STOPPED),
        build_trial(5),
        build_trial(6).finish(replace(DONE, cost_j=None)),
    ]
    plot = cost_plot("job", trials)
    assert points(plot) == {
        "reached with the default": [(1, 100.0), (3, 170.0)],
        "reached with another batch size": [(2, 80.0)],
        "target missed": [(4, 70.0)],
    }
    name, level = plot.level
    assert name.startswith("expected of batch size 32, the default: ")
    assert level > 0
    assert plot.notes == ["left out: 1 recurrence without a known cost", ESTIMATED]


def test_an_attempt_that_never_trained_costs_nothing():
    crashed = replace(DONE, status=TrialStatus.FAILED, cost_j=None, time_s=None)
    trials = [build_trial(1, 1).finish(crashed), build_trial(1, 2).finish(DONE)]
    assert points(cost_plot("job", trials)) == {"reached with the default": [(1, 100.0)]}


def test_batch_sizes_are_rows_with_the_runs_that_can_be_compared():
    trials = [
        build_trial(1, target=0.9).finish(DONE),  # another objective
        build_trial(2).finish(DONE),
        build_trial(3).finish(replace(DONE, cost_j=300.0)),
        build_trial(4, global_batch_size=64).finish(STOPPED),
        build_trial(5, forgotten=True).finish(DONE),
        build_trial(6).finish(replace(DONE, status=TrialStatus.CANCELLED)),
        build_trial(7).finish(replace(DONE, cost_j=1e300)),  # damage
    ]
    plot = arms_plot("job", trials)
    assert plot.rows == ["32 ×3", "64 ×1"]  # noqa: RUF001
    assert points(plot) == {
        "target reached": [(100.0, 1), (300.0, 1)],
        "not reached: cost so far": [(70.0, 2)],
        "median": [(300.0, 1)],
    }
    assert plot.notes == ["left out: 2 runs forgotten or under other conditions", ESTIMATED]


def test_a_single_run_is_a_dot_and_no_median():
    assert points(arms_plot("job", [build_trial(1).finish(DONE)])) == {
        "target reached": [(100.0, 1)]
    }


def test_costs_and_power_are_called_estimated_only_if_they_are():
    metered = replace(DONE, energy_source=EnergySource.COUNTER)
    time_only = build_trial(1, eta_knob=0.0).finish(DONE)
    for trial in (build_trial(1).finish(metered), time_only):
        assert not cost_plot("job", [trial]).notes
        assert not arms_plot("job", [trial]).notes
    for source, notes in (
        (EnergySource.ESTIMATED, ["power is estimated from CPU time"]),
        (EnergySource.COUNTER, []),
        (None, []),
    ):
        assert power_plot("job-1-1", [0.0], [50.0], [None], source).notes == notes


def test_adaptive_runs_have_a_row_of_their_own():
    trials = [build_trial(1).finish(DONE), build_trial(2, variant="noise-scale").finish(DONE)]
    assert arms_plot("job", trials).rows == ["32 ×1", "32 noise-scale ×1"]  # noqa: RUF001


def test_without_a_cost_there_are_no_rows():
    assert points(arms_plot("job", [build_trial(1)])) == {}


def test_curves_are_of_the_newest_run_with_each_batch_size():
    newer = replace(REACHED, curve=(CurvePoint(1, 1.0, None, 0.5), CurvePoint(2, 2.0, None, 0.6)))
    trials = [
        build_trial(1).finish(REACHED),
        build_trial(2, global_batch_size=16).finish(REACHED),
        build_trial(3, metric="loss").finish(newer),
        build_trial(4).finish(newer),
        build_trial(5, global_batch_size=16),  # has no curve yet
    ]
    plot = curves_plot("job", trials)
    assert plot.title == "job: accuracy of the newest run with each batch size"
    assert points(plot) == {"16 (2-1)": [(1, 0.8)], "32 (4-1)": [(1, 0.5), (2, 0.6)]}
    assert plot.level == ("target 0.5", 0.5)


def test_the_curves_of_a_job_by_samples_are_all_drawn_against_them():
    curve = tuple(CurvePoint(100 * n, 1.0 * n, None, 0.1 * n) for n in (1, 2))
    trials = [
        build_trial(1, global_batch_size=8).finish(replace(REACHED, steps=None)),
        build_trial(2, global_batch_size=16).finish(replace(REACHED, samples=600)),
        build_trial(3).finish(replace(REACHED, samples=200, by_samples=curve)),
    ]
    plot = curves_plot("job", trials)
    assert plot.x == ("samples", "samples")
    assert points(plot) == {"16 (2-1)": [(300, 0.8)], "32 (3-1)": [(100, 0.1), (200, 0.2)]}
    assert plot.notes == ["1 run left out: its number of samples is unknown"]


def test_there_are_never_more_curves_than_marks():
    trials = [build_trial(n, global_batch_size=n).finish(REACHED) for n in range(1, 12)]
    labels = [series.label for series in curves_plot("job", trials).series]
    assert len(labels) == MOST_CURVES
    assert labels[-1] == "11 (11-1)"


def test_power_has_the_limits_where_they_are_known():
    plot = power_plot("job-1-1", [0.0, 1.0], [50.0, 60.0], [None, 70.0])
    assert points(plot) == {
        "power, all devices": [(0.0, 50.0), (1.0, 60.0)],
        "power limit": [(1.0, 70.0)],
    }
