"""``zeusrun report`` as a user runs it."""

from __future__ import annotations

import importlib.util
import json
import os
from dataclasses import replace

import pytest

from tests.energy.test_power_trace import write as write_power
from tests.factories import DONE
from tests.view.report.values import close_fonts
from zeusrun.trial import EnergySource, TrialStatus

COUNTED = replace(
    DONE, energy_source=EnergySource.COUNTER, price=0.5, currency="EUR", carbon_g=7.0, cost_j=100.0
)


@pytest.fixture(autouse=True)
def close_what_was_drawn():
    yield
    close_fonts()


@pytest.fixture
def runs(record, zeusrun):
    """Put four runs into the history: two of the default, two of 64 that cost less."""
    for number in (1, 2):
        record(number, COUNTED)
    for number in (3, 4):
        day = f"2025-0{number + 3}-01T12:00:00.000+00:00"  # in June and July
        record(number, replace(COUNTED, cost_j=80.0), global_batch_size=64, started_at=day)
    (zeusrun.run_dir("job-4-1") / "job.yaml").write_text(zeusrun.job(script="well.py").read_text())


def test_without_runs_it_says_so(cli):
    assert cli("report") == (
        2,
        "",
        "zeusrun: there are no runs yet; start one with: zeusrun submit JOB.yaml\n",
    )


def test_without_a_run_that_has_ended_it_says_so(cli, record):
    record(1, None)
    code, _, said = cli("report")
    assert (code, "no run has ended yet" in said) == (2, True)


def test_the_page_is_written_and_says_what_was_saved_and_what_comes_next(cli, runs, zeusrun):
    write_power(zeusrun.run_dir("job-4-1") / "power.csv", 50)
    code, out, said = cli("report", "job")
    assert (code, said) == (0, "")
    assert out.startswith("report.html (")
    text = (zeusrun.folder / "report.html").read_text()
    assert "no difference in cost can be shown yet (" in text
    assert "The next run uses batch size" in text
    days = [f'<span class="date">2025-{day}</span>' for day in ("06-01", "07-01")]  # unbroken
    assert f"<dt>from</dt><dd>{' to '.join(days)}</dd>" in text
    assert "mean in training</th>" in text
    assert "job-4-1 · batch size 64" in text
    assert not list(zeusrun.folder.glob("*.tmp"))


def test_a_job_file_names_a_job_and_is_what_the_policy_reads(cli, runs, zeusrun):
    job = zeusrun.job(batch_size={"candidates": [32, 48]})
    assert cli("report", job)[0] == 0
    assert ">48</th>" in (zeusrun.folder / "report.html").read_text()


def test_without_a_job_file_the_belief_is_missing_and_the_page_says_why(cli, record, zeusrun):
    record(1, COUNTED)
    assert cli("report")[0] == 0
    text = (zeusrun.folder / "report.html").read_text()
    assert "What the policy believes is unknown: " in text
    assert '<dt>on</dt><dd><span class="date">2025-06-01</span></dd>' in text


def test_a_damaged_history_keeps_no_other_job_from_its_report(cli, runs, record, zeusrun):
    record(1, COUNTED, job="other")
    (zeusrun.home / "history" / "other.json").write_text("{")
    code, out, said = cli("report")
    assert (code, out.startswith("report.html ("), "other.json is damaged" in said) == (
        6,
        True,
        True,
    )
    assert (
        "no difference in cost can be shown yet (" in (zeusrun.folder / "report.html").read_text()
    )
    code, out, _ = cli("report", "--format", "json")
    assert (code, out.startswith('{"zeusrun": ')) == (6, True)
    code, out, _ = cli("report", "other", "-o", "other.html")
    assert (code, out, (zeusrun.folder / "other.html").exists()) == (6, "", False)


def test_a_pipe_in_the_place_of_the_job_file_is_not_read(cli, runs, zeusrun):
    path = zeusrun.run_dir("job-4-1") / "job.yaml"
    path.unlink()
    os.mkfifo(path)
    assert cli("report")[0] == 0
    assert "there is no job file" in (zeusrun.folder / "report.html").read_text()


def test_a_damaged_record_of_a_run_directory_does_no_harm(cli, record, zeusrun):
    record(1, replace(COUNTED, reason="x" * 10_000), run_dir="/\0/\ud800")
    assert cli("report")[0] == 0
    assert "What the policy believes is unknown: " in (zeusrun.folder / "report.html").read_text()


def test_several_jobs_share_a_page(cli, runs, record, zeusrun):
    record(1, replace(DONE, status=TrialStatus.FAILED, cost_j=None, reason="exit 7"), job="other")
    assert cli("report", "-o", "all.html")[0] == 0
    text = (zeusrun.folder / "all.html").read_text()
    assert "2 jobs, 5 runs" in text
    assert "Has not reached its target yet" in text
    assert '<th scope="col" class="n">cost</th>' in text


def test_json_is_printed(cli, runs):
    code, out, said = cli("report", "job", "--format", "json")
    assert (code, said) == (0, "")
    assert out.startswith('{"zeusrun": ')


@pytest.mark.parametrize("name", ["a.json", "a.html", "a.HTM"])
def test_the_name_of_the_file_says_what_it_gets(cli, runs, zeusrun, name):
    (zeusrun.folder / name).write_text("before")
    assert cli("report", "-o", name)[0] == 0
    content = (zeusrun.folder / name).read_bytes()
    assert content.startswith(b"{" if name == "a.json" else b"<!")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("nosuch",), "no job called 'nosuch'; known jobs: job"),
        (("-o", "x.doc"), "-o x.doc: the name must end in .json, .html"),
        (("-o", "."), "-o .: the name must end in"),
        (("-o", "folder.html"), "folder.html cannot be written: Is a directory; name a file"),
        (("-o", "gone/x.html"), "gone/x.html cannot be written: No such file or directory; name"),
        (("-o", "n.json", "--format", "json"), "the ending of n.json sets the format; leave out"),
    ],
)
def test_a_wrong_option_is_one_clear_sentence(cli, runs, zeusrun, options, said):
    (zeusrun.folder / "folder.html").mkdir()
    code, out, error = cli("report", *options)
    assert (code, out, error.count("\n")) == (2, "", 1)
    assert said in error
    assert not (zeusrun.folder / "report.html").exists()


def test_json_needs_no_matplotlib_and_a_page_says_how_to_install_it(cli, runs, monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert cli("report", "--format", "json")[0] == 0
    code, _, error = cli("report")
    how = "install zeusrun with its extra 'report': pip install '/path/to/zeusrun[report]'"
    assert (code, error) == (2, f"zeusrun: zeusrun report needs matplotlib; {how}\n")


def test_the_json_has_what_the_page_has(cli, runs):
    (job,) = json.loads(cli("report", "--format", "json")[1])["jobs"]
    assert job["belief"]["policy"] == "auto"
    headline, _, cost, _ = job["belief"]["sentences"]  # as `explain` has them
    assert headline.startswith("the next run uses batch size ")
    assert cost.startswith("It is expected to cost ")
    assert [each["cost_j"] for each in job["recurrences"]] == [100.0, 100.0, 80.0, 80.0]
    assert job["total"]["prices"] == {"EUR": 2.0}
