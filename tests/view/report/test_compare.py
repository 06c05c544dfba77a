"""Two groups of runs side by side."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from tests.view.report.values import run
from zeusrun.errors import UsageError
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.report.compare import compare, comparison_rows, find_sizes, of_size


def test_medians_decide_and_notes_say_what_differs():
    left = [run(n, 32, cost) for n, cost in enumerate((1.0, 1.0, 1.05), 1)]
    right = [run(4, 64, 0.5), run(5, 64, 0.5), run(6, 64, 0.1, status=TrialStatus.STOPPED)]
    found = compare("job", ("batch size 32", "batch size 64"), left, right)
    start, end = (
        "Batch size 64 saves 50\u00a0% of the cost of a run (",
        "\u00a0%) against batch size 32",
    )
    assert found.headline.startswith(start)
    assert found.headline.endswith(end)
    assert (found.better, found.reached) == (True, (3, 2))
    (note,) = found.notes
    assert note == (
        "1 run did not reach the target, shared a GPU or the CPU, changed the training or the "
        "number of ranks, began anew or may have, or has no "
        "known cost; medians and dots leave it out."
    )
    assert found.differ is None


def test_one_lucky_run_shows_no_difference():
    left = [run(1, 32, 1.0), run(2, 32, 1.0)]
    found = compare("job", ("batch size 32", "batch size 64"), left, [run(3, 64, 0.8)])
    assert found.better is None
    assert (
        "Batch size 64 against batch size 32: no difference in cost can be shown yet"
        in found.headline
    )


@pytest.mark.parametrize(
    "sd", [0.05, *(pytest.param(sd, marks=pytest.mark.long) for sd in (0.14, 0.25))]
)
def test_groups_that_do_not_differ_are_said_to_in_one_of_ten_comparisons(sd):
    rng = np.random.default_rng(0)
    shown = []
    for left, right in itertools.product((1, 2, 3, 8, 30), repeat=2):
        for _ in range(10 if sd == 0.05 else 40):
            costs = rng.lognormal(0, sd, left + right)
            runs = [run(n, 32, cost) for n, cost in enumerate(costs, 1)]
            cost = compare("job", ("a", "b"), runs[:left], runs[left:]).measures[0]
            shown.append(cost.saved.is_shown)
    assert np.mean(shown) < 0.14


def test_a_headline_on_runs_that_differ_is_neither_good_nor_bad():
    left = [run(1, 32, 1.0)]
    other = compare("job", ("a", "b"), left, [run(2, 32, 2.0, gpu_model="old", target=0.7)])
    assert other.headline.startswith("b costs 100\u00a0% more a run (")
    assert other.better is None
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


def test_measured_and_estimated_joules_are_never_compared():
    guess = [run(n, 64, 0.5, energy_source=EnergySource.ESTIMATED) for n in (3, 4, 5)]
    found = compare("job", ("a", "b"), [run(1, 32), run(2, 32)], guess)
    assert (found.headline, found.better) == ("b and a cannot be compared", None)
    assert "the kind of energy" in found.differ
    saved = {measure.name: measure.saved for measure in found.measures}
    assert saved["cost"] is saved["energy"] is None
    assert saved["time"] is not None


def test_short_times_that_differ_look_different():
    found = compare("job", ("a", "b"), [run(1, 32, time_s=0.3)], [run(2, 64, time_s=0.304)])
    row = next(row for row in comparison_rows(found) if row["of a run"] == "time")
    assert list(row.values()) == [
        "time",
        "0.3 s",
        "0.304 s",
        "+1\u00a0% (\N{MINUS SIGN}31 to 49\u00a0%)",
    ]


def test_columns_have_different_headings_whatever_the_sides_are_called():
    for names in (("64", "64"), ("difference", "of a run")):
        rows = comparison_rows(compare("two jobs", names, [run(1, 64)], [run(2, 64, 2.0)]))
        assert [len(row) for row in rows] == [4] * 6


def test_a_side_without_a_cost_is_said():
    found = compare("job", ("a", "b"), [run(1, 32, status=TrialStatus.MISSED)], [run(1, 32)])
    assert found.headline == "a has no run that reached the target with a known cost"
    assert found.better is None


JOBS = ["digits", "64", "nightly"]


@pytest.mark.parametrize(
    ("sides", "sizes"),
    [
        (("digits", "nightly"), None),
        (("64", "digits"), None),
        (("64", "128"), ("64", "128")),
        (("064", "9" * 5000), ("64", "9" * 5000)),
        (("00", "64"), ("0", "64")),
    ],
)
def test_two_words_name_jobs_or_batch_sizes(sides, sizes):
    assert find_sizes(sides, JOBS) == sizes


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("digits", "128"), "they must be alike; name two jobs"),
        (("digits", "nosuch"), "'nosuch' is no job and no batch size; name two jobs, or two batch"),
        (("a", "b"), "'a' is no job and no batch size"),
        (("64", "2026.."), "'2026..' is no job and no batch size"),
        (("64", "-64"), "'-64' is no job and no batch size"),
        (("64", "٦٤"), "'٦٤' is no job and no batch size"),
        (("128", "0128"), "both sides are the same; name two different batch sizes"),
        (("digits", "digits"), "both sides are the same; name two different jobs"),
    ],
)
def test_anything_else_is_one_sentence_that_names_the_wrong_part(sides, said):
    with pytest.raises(UsageError) as caught:
        find_sizes(sides, JOBS)
    assert str(caught.value).startswith(f"--compare {' '.join(sides)}: {said}")


def test_a_run_whose_batch_size_adapted_is_of_none():
    trials = [run(1, 32), run(2, 64), run(3, 32, variant="noise-scale")]
    assert of_size(trials, "32") == [trials[0]]
