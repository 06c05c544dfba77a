"""``export``, and ``history`` as a table for other programs."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.factories import DONE
from tests.runs import wait_for
from zeusrun.trial import CurvePoint
from zeusrun.trial.values import WorldChange

PROMETHEUS = ("--format", "prometheus")
CURVE = (CurvePoint(1, 2.0, 20.0, 0.4), CurvePoint(2, 4.0, None, None))


def test_csv_has_every_field_and_lists_as_json(cli, record):
    ranks = (WorldChange(0.0, 0, 2), WorldChange(1.5, 1, 4, 2.9, 0.065, 840))
    record(1, replace(DONE, curve=CURVE, warnings=("=1+1", "two"), world_sizes=ranks))
    (row,) = csv.DictReader(io.StringIO(cli("history", "job", "--csv")[1]))
    (told,) = json.loads(cli("history", "--json")[1])
    assert set(row) == set(told)
    assert json.loads(row["curve"]) == [list(point) for point in CURVE]
    assert json.loads(row["warnings"]) == ["=1+1", "two"]
    rows = [[0, 0, 2, None, None, None], [1.5, 1, 4, 2.9, 0.065, 840]]
    assert json.loads(row["world_sizes"]) == told["world_sizes"] == rows
    assert float(row["cost_j"]) == 100
    assert row["price"] == ""


def test_only_the_named_jobs_are_exported(cli, record, zeusrun):
    for job in ("job", "other", "third"):
        record(1, job=job)
    out = cli("export", zeusrun.job(), "third", "--format", "prometheus")[1]
    assert re.findall(r'last_run_reached{job="(\w+)"}', out) == ["job", "third"]


def test_without_runs_there_is_a_header_or_nothing(cli):
    code, out, err = cli("history", "--csv")
    assert (code, err, len(out.splitlines())) == (0, "", 1)
    assert cli("export", "--format", "prometheus") == (0, "", "")


def test_a_file_appears_whole_and_others_may_read_it(cli, record, zeusrun):
    record(1)
    path = zeusrun.folder / "job.prom"
    path.write_text("before")
    link = zeusrun.folder / "link.prom"
    link.symlink_to(path)
    umask = os.umask(0o022)
    try:
        # Nothing is printed: from cron, that would be a mail.
        assert cli("export", "--format", "prometheus", "-o", link) == (0, "", "")
    finally:
        os.umask(umask)
    assert link.is_symlink()
    assert 'zeusrun_last_run_reached{job="job"} 1.0' in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o644
    path.chmod(0o600)
    assert cli("export", "--format", "prometheus", "-o", path)[0] == 0
    assert path.stat().st_mode & 0o777 == 0o600  # as its owner has set it
    assert not [each for each in zeusrun.folder.iterdir() if each.suffix == ".tmp"]


@pytest.mark.parametrize("form", ["--csv", "--json"])
def test_text_is_utf_8_wherever_it_goes(zeusrun, record, form):
    record(1, replace(DONE, reason="≥ \udcff"))
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    assert "≥ ?" in zeusrun("history", form, **plain).stdout


def test_standard_output_by_its_name_keeps_what_is_there(zeusrun, record):
    record(1)
    path = zeusrun.folder / "all.txt"
    export = '"$0" -m zeusrun export --format prometheus -o /dev/stdout'
    script = f'(echo before; {export}; echo after) > "$1"'
    command = ["sh", "-c", script, sys.executable, path]
    subprocess.run(command, env=os.environ | zeusrun.environment, check=True)
    lines = path.read_text().splitlines()
    assert (lines[0], lines[-1]) == ("before", "after")
    assert 'zeusrun_last_run_reached{job="job"} 1.0' in lines


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["jbo", *PROMETHEUS], "there is no job called 'jbo'; known jobs: job"),
        ([*PROMETHEUS, "-o", "no/x.prom"], "no/x.prom cannot be written: No such file"),
        ([*PROMETHEUS, "-o", "."], ". cannot be written: Is a directory; name a file"),
        ([*PROMETHEUS, "--uri", "x"], "--uri is only for --format mlflow"),
        (["--format", "mlflow"], "--uri http://localhost:5000, or MLFLOW_TRACKING_URI"),
        (["--format", "mlflow", "--uri", "x", "-o", "f"], "mlflow writes into a store or a server"),
        (["--format", "csv"], "'csv' is not one of 'mlflow', 'prometheus'"),
        ([], "Missing option '--format'"),
    ],
)
def test_what_cannot_be_exported_is_exit_2_in_one_sentence(
    cli, record, monkeypatch, arguments, told
):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    record(1)
    code, out, err = cli("export", *arguments)
    assert (code, out) == (2, "")
    assert told in err


def test_a_server_that_cannot_be_reached_is_exit_5(cli, record):
    pytest.importorskip("mlflow")
    record(1)
    code, _, err = cli("export", "--format", "mlflow", "--uri", "http://127.0.0.1:1")
    assert code == 5
    assert len(err.splitlines()) == 1


def test_a_full_disk_is_exit_5(cli, record):
    record(1)
    code, _, err = cli("export", *PROMETHEUS, "-o", "/dev/full")
    assert code == 5
    assert "/dev/full cannot be written: No space left on device; free some space" in err


def test_of_a_damaged_history_and_a_healthy_one_the_healthy_one_is_exported(cli, record, zeusrun):
    record(1)
    record(1, job="other")
    damaged = zeusrun.home / "history" / "job.json"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    code, out, err = cli("export", *PROMETHEUS, "-o", "all.prom")
    assert (code, out) == (6, "")
    assert "job.json" in err
    assert "other-1-1" in (zeusrun.folder / "all.prom").read_text()


def test_if_every_history_is_damaged_an_earlier_file_stays(cli, record, zeusrun):
    record(1)
    damaged = zeusrun.home / "history" / "job.json"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    (zeusrun.folder / "all.prom").write_text("before")
    assert cli("export", *PROMETHEUS, "-o", "all.prom")[0] == 6
    assert (zeusrun.folder / "all.prom").read_text() == "before"


def test_what_runs_now_is_exported_with_its_present_values(zeusrun):
    child = zeusrun.start("submit", zeusrun.job("ignores_sigterm.py"))

    def text():
        return zeusrun("export", *PROMETHEUS).stdout

    wait_for(lambda: 'zeusrun_run_epoch{job="job",trial="job-1-1"} 1.0' in text())
    seen = text()
    assert 'zeusrun_running{job="job"} 1.0' in seen
    assert re.search('zeusrun_run_info{host=".+",job="job",trial="job-1-1"} 1.0', seen)
    assert 'zeusrun_run_metric{job="job",metric="accuracy",trial="job-1-1"} 0.1' in seen
    assert 'zeusrun_run_batch_size{job="job",trial="job-1-1"} 32.0' in seen
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 130
    seen = text()
    assert 'zeusrun_running{job="job"} 0.0' in seen
    assert "zeusrun_run_" not in seen
    assert 'zeusrun_last_run_info{job="job",status="CANCELLED",trial="job-1-1"' in seen


def test_a_run_whose_launcher_is_dead_does_not_run(cli, record):
    record(1, None)  # begun, and nobody holds its lease
    assert 'zeusrun_running{job="job"} 0.0' in cli("export", *PROMETHEUS)[1]
