"""Snippets for a model card or a paper."""

from __future__ import annotations

import json

from tests.view.report.values import run
from zeusrun.view.report.compare import compare
from zeusrun.view.report.facts import JobReport, build_facts
from zeusrun.view.report.snippet import (
    comparison_json,
    comparison_snippet,
    job_snippet,
    reports_json,
)

TRIALS = [run(1, 32, price=0.31, currency="EUR", carbon_g=400.0), run(2, 64, 0.5)]


def test_markdown_is_a_table_that_no_name_breaks():
    text = job_snippet(build_facts("a_job|<b>", TRIALS), "md")
    lines = text.splitlines()
    assert lines[0] == r"### a\_job\|\<b\>"
    assert "| Energy of all runs | 1.50 kWh |" in lines
    assert "| Carbon of all runs | at least 400 g CO2e |" in lines
    assert "| Price of all runs | at least 0.31 EUR |" in lines
    rows = [line for line in lines if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") == 3 for line in rows)


def test_latex_escapes_what_has_a_meaning():
    trials = [run(1, 32, metric="a_b%$\\", gpu_model="~^{}&#", target=0.5)]
    text = job_snippet(build_facts("job", trials), "latex")
    assert r"a\_b\%\$\textbackslash{} $\geq$ 0.5 \\" in text
    assert r"1 x \textasciitilde{}\textasciicircum{}\{\}\&\# \\" in text
    assert text.count(r"\begin") == text.count(r"\end") == 2


def test_an_estimate_and_what_is_unknown_are_marked():
    from zeusrun.trial import EnergySource

    trials = [run(1, 32, energy_source=EnergySource.ESTIMATED), run(2, 32, None, cost_j=None)]
    text = job_snippet(build_facts("job", trials), "md")
    assert "at least 1.00 kWh, estimated" in text


def test_a_text_of_any_bytes_can_be_written():
    trials = [run(1, 32, metric="a\ud800\x1b[31m", gpu_model="\udcff", reason="\ud800" * 9)]
    facts = build_facts("job", trials)
    for text in (job_snippet(facts, "md"), job_snippet(facts, "latex")):
        assert b"a?" in text.encode()
    assert json.loads(reports_json([JobReport(facts)]).encode())["jobs"][0]["metric"][:2] == "a?"


def test_json_has_everything():
    report = JobReport(build_facts("job", TRIALS))
    found = json.loads(reports_json([report]))
    (job,) = found["jobs"]
    assert job["saves"] is True
    assert [each["recurrence"] for each in job["recurrences"]] == [1, 2]
    assert job["net"]["energy_j"] == 0.5 * 3.6e6
    assert job["sizes"][0]["label"] == "32"


def test_a_comparison_is_a_snippet_too():
    found = compare("job", ("a", "b"), TRIALS[:1], TRIALS[1:])
    text = comparison_snippet(found, "md")
    assert "| cost | 3.60 MJ | 1.80 MJ | −50 % |".replace("−", "\N{MINUS SIGN}") in text  # noqa: RUF001
    assert r"cost & 3.60 MJ & 1.80 MJ & $-$50 \% \\" in comparison_snippet(found, "latex")
    assert json.loads(comparison_json(found))["comparison"]["names"] == ["a", "b"]
