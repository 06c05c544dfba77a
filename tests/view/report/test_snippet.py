"""Snippets for a model card."""

from __future__ import annotations

import json

from tests.view.report.values import run
from zeusrun.trial import EnergySource, TrialStatus
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
    text = job_snippet(build_facts("a_job|<b>", TRIALS))
    lines = text.splitlines()
    assert lines[0] == r"### a\_job\|\<b\>"
    assert "| Energy of all runs | 1.50 kWh |" in lines
    assert "| Carbon of all runs | at least 400 g CO2e, known for 1 of 2 runs |" in lines
    assert "| Price of all runs | at least 0.31 EUR, known for 1 of 2 runs |" in lines
    rows = [line for line in lines if line.startswith("|")]
    assert all(line.replace(r"\|", "").count("|") == 3 for line in rows)


def test_an_estimate_and_what_is_unknown_are_marked():
    trials = [run(1, 32, energy_source=EnergySource.ESTIMATED), run(2, 32, None, cost_j=None)]
    text = job_snippet(build_facts("job", trials))
    assert "| at least 1.00 kWh, estimated, known for 1 of 2 runs |" in text
    assert "| Energy of a run (median) | 1.00 kWh, estimated |" in text
    assert text.endswith("\n\nEnergy is estimated from CPU time. Recorded by zeusrun 0.1.0.\n")
    assert "Energy is partly estimated" in job_snippet(build_facts("job", [*trials, run(3, 32)]))
    assert "estimated" not in job_snippet(build_facts("job", TRIALS))


def test_a_text_of_any_bytes_can_be_written():
    trials = [run(1, 32, metric="a\ud800\x1b[31m", gpu_model="\udcff", reason="\ud800" * 9)]
    facts = build_facts("job", trials)
    assert b"a?" in job_snippet(facts).encode()
    assert json.loads(reports_json([JobReport(facts)]).encode())["jobs"][0]["metric"][:2] == "a?"


def test_json_has_everything():
    report = JobReport(build_facts("job", TRIALS))
    found = json.loads(reports_json([report]))
    (job,) = found["jobs"]
    assert job["saves"] is None  # two runs show nothing
    assert set(job["savings"]["net"]) == {"value", "low", "high"}
    assert [each["recurrence"] for each in job["recurrences"]] == [1, 2]
    assert job["net"]["energy_j"]["high"] > 0
    assert job["sizes"][0]["label"] == "32"


def test_a_comparison_is_a_snippet_too():
    found = compare("job", ("a", "b"), TRIALS[:1], TRIALS[1:])
    text = comparison_snippet(found)
    assert "| cost | 3.60 MJ | 1.80 MJ | \N{MINUS SIGN}50 % (" in text
    comparison = json.loads(comparison_json(found))["comparison"]
    assert comparison["names"] == ["a", "b"]
    cost = comparison["measures"][0]
    assert cost["saved_low"] < cost["saved"] == 0.5 < cost["saved_high"]


def test_a_comparison_of_runs_that_differ_says_so_below_its_title():
    missed = run(3, 32, status=TrialStatus.MISSED, target=0.7)
    guess = run(4, 32, target=0.7, energy_source=EnergySource.ESTIMATED)
    found = compare("two jobs", ("a", "b"), TRIALS[:1], [missed, guess])
    lines = comparison_snippet(found).splitlines()
    assert lines[2].startswith("The runs differ in the objective and the kind of energy")
    assert lines[-3].startswith("1 run did not reach the target")
    assert lines[-1].startswith("Energy is partly estimated from CPU time. Recorded by")
