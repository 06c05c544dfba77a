"""Two groups of runs side by side."""

from __future__ import annotations

import pytest

from tests.view.report.values import run
from zeusrun.errors import UsageError
from zeusrun.trial import TrialStatus
from zeusrun.view.report.compare import compare, comparison_rows, find_kind, within

JOBS = ["digits", "64", "nightly"]


@pytest.mark.parametrize(
    ("sides", "kind"),
    [
        (("digits", "nightly"), "jobs"),
        (("64", "digits"), "jobs"),
        (("64", "128"), "batch sizes"),
        (("2026-01..2026-03", "2026-04.."), "spans"),
        (("..2025", "2026.."), "spans"),
        (("2026-01-05..2026-01-06", "2026-01-07..2026-01-07"), "spans"),
    ],
)
def test_two_words_name_jobs_batch_sizes_or_spans(sides, kind):
    assert find_kind(sides, JOBS) == kind


@pytest.mark.parametrize(
    "sides",
    [("digits", "128"), ("64", "2026.."), ("..", "2026.."), ("2026-13..", "2026.."), ("a", "b")],
)
def test_anything_else_is_one_clear_sentence(sides):
    with pytest.raises(
        UsageError, match=r"name two jobs, two batch sizes .* known jobs: 64, digits"
    ):
        find_kind(sides, JOBS)


def test_a_span_includes_its_last_day_month_or_year():
    trials = [run(n, 32, started_at=f"2026-0{n}-15T12:00:00+00:00") for n in (1, 2, 3)]

    def months(span):
        return [trial.recurrence for trial in within(trials, span, "spans")]

    assert months("2026-01..2026-02") == [1, 2]
    assert months("2026-02..") == [2, 3]
    assert months("..2026-01-15") == [1]
    assert months("2026..2026") == [1, 2, 3]


def test_medians_decide_and_notes_say_what_differs():
    left = [run(n, 32, cost) for n, cost in enumerate((1.0, 1.0, 50.0), 1)]
    right = [run(4, 64, 0.8), run(5, 64, 0.1, status=TrialStatus.STOPPED)]
    found = compare("job", ("batch size 32", "batch size 64"), left, right)
    assert found.headline == "Batch size 64 costs 20\u00a0% less a run than batch size 32"
    assert (found.better, found.reached) == (True, (3, 1))
    (note,) = found.notes
    assert note.startswith("1 run did not reach the target")
    other = compare("job", ("a", "b"), left, [run(1, 32, 1.0, gpu_model="old", target=0.7)])
    assert other.headline == "b costs the same a run as a"
    assert other.notes[0].startswith("The runs differ in the objective and the hardware")


def test_a_batch_size_may_have_any_number_of_digits():
    trials = [run(1, 32), run(2, 64), run(3, 32, variant="noise-scale")]
    assert within(trials, "0032", "batch sizes") == [trials[0]]
    assert within(trials, "9" * 5000, "batch sizes") == []


def test_columns_have_different_headings_whatever_the_sides_are_called():
    for names in (("64", "64"), ("difference", "of a run")):
        rows = comparison_rows(compare("two jobs", names, [run(1, 64)], [run(2, 64, 2.0)]))
        assert [len(row) for row in rows] == [4] * 6


def test_a_side_without_a_cost_is_said():
    found = compare("job", ("a", "b"), [run(1, 32, status=TrialStatus.MISSED)], [run(1, 32)])
    assert found.headline == "a has no run that reached the target with a known cost"
    assert found.better is None
