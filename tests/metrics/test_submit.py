"""Scripts that know no zeusrun: what they print or write is their metric."""

from __future__ import annotations

from tests.runs import only_trial

JOB = {"script": "writes_files.py", "objective": {"metric": "val", "target": 0.6}}


def test_a_script_that_writes_a_table_reaches_its_target(zeusrun):
    (zeusrun.folder / "log.csv").write_text("epoch,val\n0,0.9\n")  # of an earlier run
    section = {"source": "csv", "path": "${run_dir}/../../../../l?g.csv", "name": "val"}
    job = zeusrun.job(**JOB, args=["csv"], metrics=section)
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["status"], trial["epochs"], trial["best_metric"]) == (0, "REACHED", 3, 0.75)
    values = [(point[0], point[3]) for point in trial["curve"]]
    assert values == [(0, 0.25), (1, 0.5), (2, 0.75)]
    times_s = [point[1] for point in trial["curve"]]
    assert times_s == sorted(times_s)


def test_known_lines_are_read_without_a_word_in_the_job_file(zeusrun):
    job = zeusrun.job(**{**JOB, "objective": {"metric": "acc1", "target": 60}}, args=["lines"])
    code, result, seen = zeusrun.submit(job)
    assert (code, only_trial(result)["best_metric"]) == (0, 75.0)
    assert "metrics.source" not in seen


def test_a_wrong_name_is_said_while_the_run_goes_on_and_kept_with_it(zeusrun):
    section = {"source": "csv", "path": "log.csv", "name": "accuracy"}
    job = zeusrun.job(**JOB, args=["csv"], metrics=section, attempts=1)
    _, result, seen = zeusrun.submit(job)
    text = "metrics.source csv: there is no column 'accuracy' so far, only val. Correct"
    assert seen.count(text) == 1
    (warning,) = [text for text in only_trial(result)["warnings"] if "metrics.source" in text]
    assert warning.startswith(text)


def test_a_target_that_only_a_known_line_meets_is_not_reached_if_a_report_has_another_value(
    zeusrun,
):
    job = zeusrun.job("prints_and_reports.py", objective={"target": 0.7})
    code, result, _ = zeusrun.submit(job)
    trial = only_trial(result)
    assert (code, trial["epochs"], trial["best_metric"]) == (0, 3, 0.75)
