"""What the two words after ``--compare`` name."""

from __future__ import annotations

import pytest

from tests.view.report.values import run
from zeusrun.errors import UsageError
from zeusrun.view.report.sides import find_kind, within

JOBS = ["digits", "64", "nightly"]


@pytest.mark.parametrize(
    ("sides", "kind"),
    [
        (("digits", "nightly"), "jobs"),
        (("64", "digits"), "jobs"),
        (("64", "128"), "batch sizes"),
        (("2025", "2026"), "batch sizes"),
        (("2026-01..2026-03", "2026-04.."), "spans"),
        (("..2025", "2026.."), "spans"),
        (("2026-01-05..2026-01-06", "2026-01-07"), "spans"),
        (("2025", "2026-01"), "spans"),
    ],
)
def test_two_words_name_jobs_batch_sizes_or_spans(sides, kind):
    assert find_kind(sides, JOBS) == kind


@pytest.mark.parametrize(
    ("sides", "said"),
    [
        (("digits", "128"), "both sides must be alike: name two jobs"),
        (("64", "2026.."), "both sides must be alike"),
        (("digits", "nosuch"), "'nosuch' is no job, no batch size and no span of time: name two"),
        (("a", "b"), "'a' is no job, no batch size and no span of time"),
        (("digits", ".."), "'..' is no job, no batch size and no span of time"),
        (("2026-13..", "2026.."), "'2026-13..' is no job, no batch size and no span of time"),
        (("2025", "2026-02-30"), "'2026-02-30' is no job, no batch size and no span of time"),
        (("2026-11..2026-10", "2025.."), "'2026-11..2026-10' is no job, no batch size and no"),
        (("2026..2026", "2026-11-23"), "the spans share days"),
        (("2026-01..", "..2026-01"), "the spans share days"),
        (("2026-01", "2026-01"), "both sides are the same; name two different spans"),
        (("128", "0128"), "both sides are the same; name two different batch sizes"),
        (("digits", "digits"), "both sides are the same; name two different jobs"),
    ],
)
def test_anything_else_is_one_sentence_that_names_the_wrong_part(sides, said):
    with pytest.raises(UsageError) as caught:
        find_kind(sides, JOBS)
    assert str(caught.value).startswith(f"--compare {' '.join(sides)}: {said}")


def test_a_span_includes_its_last_day_month_or_year():
    trials = [run(n, 32, started_at=f"2026-0{n}-15T12:00:00+00:00") for n in (1, 2, 3)]

    def months(span):
        return [trial.recurrence for trial in within(trials, span, "spans")]

    assert months("2026-01..2026-02") == [1, 2]
    assert months("2026-02..") == [2, 3]
    assert months("..2026-01-15") == [1]
    assert months("2026..2026") == months("2026") == [1, 2, 3]
    assert months("2026-02") == months("2026-02-15") == [2]


def test_a_batch_size_may_have_any_number_of_digits():
    trials = [run(1, 32), run(2, 64), run(3, 32, variant="noise-scale")]
    assert within(trials, "0032", "batch sizes") == [trials[0]]
    assert within(trials, "9" * 5000, "batch sizes") == []
