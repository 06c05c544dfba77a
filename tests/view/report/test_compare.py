"""Two groups of runs side by side."""

from __future__ import annotations

from tests.view.report.values import run
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.report.compare import compare, comparison_rows


def test_medians_decide_and_notes_say_what_differs():
    left = [run(n, 32, cost) for n, cost in enumerate((1.0, 1.0, 50.0), 1)]
    right = [run(4, 64, 0.8), run(5, 64, 0.1, status=TrialStatus.STOPPED)]
    found = compare("job", ("batch size 32", "batch size 64"), left, right)
    assert found.headline == "Batch size 64 costs 20\u00a0% less a run than batch size 32"
    assert (found.better, found.reached) == (True, (3, 1))
    (note,) = found.notes
    assert note == (
        "1 run did not reach the target, shared a GPU or the CPU, changed or began anew, or has no "
        "known cost; medians and dots leave it out."
    )
    assert found.differ is None


def test_a_headline_on_runs_that_differ_is_neither_good_nor_bad():
    left = [run(1, 32, 1.0)]
    other = compare("job", ("a", "b"), left, [run(2, 32, 2.0, gpu_model="old", target=0.7)])
    assert (other.headline, other.better) == ("b costs 100\u00a0% more a run than a", None)
    assert other.differ.startswith("The runs differ in the objective and the hardware")


def test_estimated_energy_is_marked_on_its_side():
    guess = {"energy_source": EnergySource.ESTIMATED}
    left = [run(1, 32, **guess), run(2, 32)]
    rows = comparison_rows(compare("job", ("a", "b"), left, [run(3, 64, **guess)]))
    row = next(row for row in rows if row["of a run"] == "energy")
    assert (row["a"], row["b"]) == (
        "3.60 MJ (3.60 MJ to 3.60 MJ), partly estimated",
        "3.60 MJ, estimated",
    )


def test_short_times_that_differ_look_different():
    found = compare("job", ("a", "b"), [run(1, 32, time_s=0.3)], [run(2, 64, time_s=0.304)])
    row = next(row for row in comparison_rows(found) if row["of a run"] == "time")
    assert list(row.values()) == ["time", "0.3 s", "0.304 s", "+1\u00a0%"]


def test_columns_have_different_headings_whatever_the_sides_are_called():
    for names in (("64", "64"), ("difference", "of a run")):
        rows = comparison_rows(compare("two jobs", names, [run(1, 64)], [run(2, 64, 2.0)]))
        assert [len(row) for row in rows] == [4] * 6


def test_a_side_without_a_cost_is_said():
    found = compare("job", ("a", "b"), [run(1, 32, status=TrialStatus.MISSED)], [run(1, 32)])
    assert found.headline == "a has no run that reached the target with a known cost"
    assert found.better is None
