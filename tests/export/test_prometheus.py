"""The text format, by a parser that is not ours where it is installed."""

from __future__ import annotations

import re
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from tests.factories import DONE, PREEMPTED, REACHED, build_trial
from zeusrun.export.prometheus import Families, jobs_text
from zeusrun.launcher.rundir.layout import Live
from zeusrun.trial import CurvePoint, SizeChange, TrialStatus

SAMPLE = re.compile(r'(\w+)\{((?:\w+="(?:[^"\\\n]|\\[\\n"])*",?)*)\} (\S+)')


def _order(label):
    return label != "job", label != "trial", label


def read(text):
    """Return each sample by its name and the values of its labels."""
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, labels, value = SAMPLE.fullmatch(line).groups()
            found_labels = dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', labels))
            found[(name, *map(found_labels.get, sorted(found_labels, key=_order)))] = float(value)
    return found


def live(**changes):
    taken = {"time_s": 4.0, "steps": 100, "energy_j": 40.0, "cost_j": 100.0, "epochs": 2}
    taken |= {"whole_steps": 150, "whole_epochs": 2}
    curve = (CurvePoint(1, 2.0, 20.0, 0.3), CurvePoint(2, 4.0, 40.0, 0.4))
    trial = build_trial(7, **{**taken, "curve": curve, "best_metric": 0.4, **changes})
    return Live(trial, 1, "node7", "2025-06-01T12:00:05Z", power_w=10.5)


def test_the_history_of_a_job_is_its_totals_and_its_last_run():
    paid = replace(DONE, price=0.5, currency="EUR", carbon_g=20.0)
    trials = [
        build_trial(1).finish(DONE),
        build_trial(2).finish(paid),
        build_trial(3, global_batch_size=64).finish(replace(paid, cost_j=90.0)),
        build_trial(4),
    ]
    found = read(jobs_text({"job": ([], trials)}))
    assert found["zeusrun_runs_total", "job", "REACHED"] == 3
    assert found["zeusrun_energy_joules_total", "job", "estimated"] == 120
    assert found["zeusrun_price", "job", "EUR"] == 1.0
    assert found["zeusrun_carbon_grams_total", "job"] == 40
    saved = [found[f"zeusrun_saved{end}_joules", "job"] for end in ("_low", "", "_high")]
    assert saved[0] < saved[1] < saved[2]
    assert found["zeusrun_last_run_info", "job", "job-3-1", "REACHED"] == 1
    assert found["zeusrun_last_run_batch_size", "job"] == 64
    assert found["zeusrun_last_run_best_metric", "job", "accuracy"] == 0.6
    assert found["zeusrun_last_run_end_time_seconds", "job"] == 1748782800


def test_a_preempted_run_has_not_ended():
    late = replace(DONE, finished_at="2025-06-01T15:00:00.000+00:00")
    trials = [build_trial(1).finish(late), build_trial(2).finish(DONE)]  # the first one ended last
    text = jobs_text({"job": ([], [*trials, build_trial(3).finish(PREEMPTED)])})
    found = read(text)
    assert found["zeusrun_last_run_info", "job", "job-1-1", "REACHED"] == 1
    assert found["zeusrun_energy_joules_total", "job", "estimated"] == 80
    assert "PREEMPTED" not in text


def test_what_may_fall_is_no_counter():
    paid = replace(DONE, price=-0.5, currency="EUR", carbon_g=20.0)
    running = live(price=-0.5, currency="EUR", carbon_g=20.0)
    text = jobs_text({"job": ([running], [build_trial(1).finish(paid)])})
    assert len(re.findall(r'price{.*job="job".*} -0.5', text)) == 3
    assert not re.search(r"price\w* counter", text)
    assert "# TYPE zeusrun_run_carbon_grams gauge" in text


def test_what_is_unknown_has_no_sample():
    lost = replace(DONE, status=TrialStatus.LOST, time_s=None, energy_j=None, cost_j=None)
    text = jobs_text({"job": ([], [build_trial(1).finish(lost)])})
    assert "zeusrun_last_run_reached" in text
    for name in ("energy", "cost", "time_seconds", "price", "carbon", "power_limit"):
        assert not re.search(rf"^zeusrun_(last_run_)?{name}", text, re.MULTILINE), name


def test_a_running_trial_shows_its_present_values():
    found = read(jobs_text({"job": ([live(price=0.1, currency="EUR", carbon_g=3.0)], [])}))
    assert found["zeusrun_running", "job"] == 1
    assert found["zeusrun_run_info", "job", "job-7-1", "node7"] == 1
    expected = {
        "power_watts": 10.5,
        "energy_joules_total": 40,
        "cost_joules_total": 100,
        "steps_total": 100,
        "whole_steps_total": 150,
        "epoch": 2,
        "batch_size": 32,
        "carbon_grams": 3,
    }
    assert {name: found[f"zeusrun_run_{name}", "job", "job-7-1"] for name in expected} == expected
    assert found["zeusrun_run_price", "job", "job-7-1", "EUR"] == 0.1
    assert found["zeusrun_run_metric", "job", "job-7-1", "accuracy"] == 0.4


def test_a_batch_size_that_adapts_is_the_present_one():
    sizes = (SizeChange(1, 32), SizeChange(2, 64))
    found = read(jobs_text({"job": ([live(batch_sizes=sizes)], [])}))
    assert found["zeusrun_run_batch_size", "job", "job-7-1"] == 64


def test_without_a_run_there_is_one_sample():
    assert read(jobs_text({"job": ([], [])})) == {("zeusrun_running", "job"): 0}


def test_runs_of_a_job_that_run_together_are_told_apart():
    second = live()
    second = replace(second, trial=replace(second.trial, trial="job-8-1", steps=7))
    text = jobs_text({"job": ([live(), second], []), "other": ([], [])})
    found = read(text)
    assert [found["zeusrun_running", job] for job in ("job", "other")] == [2, 0]
    steps = [found["zeusrun_run_steps_total", "job", run] for run in ("job-7-1", "job-8-1")]
    assert steps == [100, 7]
    assert text.count("# TYPE zeusrun_run_steps_total") == 1


def test_label_values_are_escaped():
    families = Families()
    families.add("info", "Text.", 1, name='a "b"\\\nc\udcff', none=None)
    assert families.text().splitlines()[2] == 'zeusrun_info{name="a \\"b\\"\\\\\\nc?"} 1.0'


def test_the_parser_of_prometheus_reads_it():
    name = 'top 1 "exact"\\\n'
    jobs = {
        job: ([live(metric=name, job=job)], [build_trial(1, job=job, metric=name).finish(REACHED)])
        for job in ("job", "other")
    }
    text = jobs_text(jobs)
    families = list(text_string_to_metric_families(text))
    samples = [sample for family in families for sample in family.samples]
    assert len(samples) == len(read(text))
    assert {"counter", "gauge"} == {family.type for family in families}
    named = {each.name for each in samples if each.labels.get("metric") == name}
    assert {"zeusrun_run_metric", "zeusrun_last_run_best_metric"} <= named
    assert len({family.name for family in families}) == len(families)
