"""``export``: files of runs, and a submit that serves its metrics."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from dataclasses import replace

import pytest

from tests.factories import DONE
from tests.runs import wait_for
from zeusrun.trial import CurvePoint
from zeusrun.trial.values import WorldChange

CURVE = (CurvePoint(1, 2.0, 20.0, 0.4), CurvePoint(2, 4.0, None, None))


def test_jsonl_has_the_objects_of_history_json(cli, record):
    record(1)
    record(2, job="other")
    record(3, None)
    code, out, err = cli("export", "--format", "jsonl")
    assert (code, err) == (0, "")
    records = [json.loads(line) for line in out.splitlines()]
    assert records == json.loads(cli("history", "--json")[1])
    assert [each["trial"] for each in records] == ["job-1-1", "other-2-1", "job-3-1"]


def test_csv_has_every_field_and_lists_as_json(cli, record):
    ranks = (WorldChange(0.0, 0, 2), WorldChange(1.5, 1, 4))
    record(1, replace(DONE, curve=CURVE, warnings=("=1+1", "two"), world_sizes=ranks))
    (row,) = csv.DictReader(io.StringIO(cli("export", "job", "--format", "csv")[1]))
    (told,) = json.loads(cli("history", "--json")[1])
    assert set(row) == set(told)
    assert json.loads(row["curve"]) == [list(point) for point in CURVE]
    assert json.loads(row["warnings"]) == ["=1+1", "two"]
    assert json.loads(row["world_sizes"]) == told["world_sizes"] == [[0, 0, 2], [1.5, 1, 4]]
    assert float(row["cost_j"]) == 100
    assert row["price"] == ""


def test_only_the_named_jobs_are_exported(cli, record, zeusrun):
    for job in ("job", "other", "third"):
        record(1, job=job)
    out = cli("export", zeusrun.job(), "third", "--format", "jsonl")[1]
    assert [json.loads(line)["job"] for line in out.splitlines()] == ["job", "third"]


@pytest.mark.parametrize("form", ["csv", "prometheus", "jsonl"])
def test_without_runs_there_is_a_header_or_nothing(cli, form):
    code, out, err = cli("export", "--format", form)
    assert (code, err) == (0, "")
    assert len(out.splitlines()) == (form == "csv")


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


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_text_is_utf_8_wherever_it_goes(zeusrun, record, form):
    record(1, replace(DONE, reason="≥ \udcff"))
    plain = {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    shown = zeusrun("export", "--format", form, **plain).stdout
    assert "≥ ?" in shown
    assert zeusrun("export", "--format", form, "-o", "/dev/stdout", **plain).stdout == shown
    assert zeusrun("export", "--format", form, "-o", zeusrun.folder / "file").returncode == 0
    assert (zeusrun.folder / "file").read_text() == shown


@pytest.mark.parametrize("name", ["runs.txt", "emissions", "runs.tsv"])
def test_any_other_ending_goes_with_every_format(cli, record, zeusrun, name):
    record(1)
    assert cli("export", "--format", "jsonl", "-o", name)[0] == 0
    assert (zeusrun.folder / name).exists()


def test_standard_output_by_its_name_keeps_what_is_there(zeusrun, record):
    record(1)
    path = zeusrun.folder / "all.txt"
    script = '(echo before; "$0" -m zeusrun export --format csv -o /dev/stdout; echo after) > "$1"'
    command = ["sh", "-c", script, sys.executable, path]
    subprocess.run(command, env=os.environ | zeusrun.environment, check=True)
    lines = path.read_text().splitlines()
    assert (lines[0], len(lines), lines[-1]) == ("before", 4, "after")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["jbo", "--format", "csv"], "there is no job called 'jbo'; known jobs: job"),
        (["--format", "csv", "-o", "no/x.csv"], "no/x.csv cannot be written: No such file"),
        (["--format", "csv", "-o", "loop"], "loop cannot be written: "),
        (["--format", "csv", "-o", "."], ". cannot be written: Is a directory; name a file"),
        (["--format", "csv", "-o", "x.prom"], "has the ending of --format prometheus, but the"),
        (["--format", "csv", "-o", "x.prom"], "name a file such as x.csv, or change --format"),
        (["--format", "jsonl", "-o", "x.CSV"], "name a file such as x.jsonl"),
        (["--format", "prometheus", "-o", "x.jsonl"], "name a file such as x.prom"),
        (["--format", "csv", "-o", ""], "-o '' names no file; write -o FILE"),
        (["--format", "csv", "--uri", "x"], "--uri is only for --format mlflow"),
        (["--format", "mlflow"], "--uri http://localhost:5000, or MLFLOW_TRACKING_URI"),
        (["--format", "mlflow", "--uri", "x", "-o", "f"], "mlflow writes into a store or a server"),
        (["--format", "xml"], "'xml' is not one of 'csv'"),
        ([], "Missing option '--format'"),
    ],
)
def test_what_cannot_be_exported_is_exit_2_in_one_sentence(
    cli, record, monkeypatch, arguments, told
):
    os.symlink("loop", "loop")  # in a folder of the test
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
    code, _, err = cli("export", "--format", "csv", "-o", "/dev/full")
    assert code == 5
    assert "/dev/full cannot be written: No space left on device; free some space" in err


def test_of_a_damaged_history_and_a_healthy_one_the_healthy_one_is_exported(cli, record, zeusrun):
    record(1)
    record(1, job="other")
    damaged = zeusrun.home / "history" / "job.json"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    for form, name in (("csv", "all.csv"), ("prometheus", "all.prom")):
        code, out, err = cli("export", "--format", form, "-o", name)
        assert (code, out) == (6, "")
        assert (f"wrote {name}: 1 run\n" in err) == (form == "csv")
        assert "job.json" in err
        assert "other-1-1" in (zeusrun.folder / name).read_text()


def test_if_every_history_is_damaged_an_earlier_file_stays(cli, record, zeusrun):
    record(1)
    damaged = zeusrun.home / "history" / "job.json"
    damaged.write_bytes(damaged.read_bytes()[:-30])
    (zeusrun.folder / "all.csv").write_text("before")
    code, _, err = cli("export", "--format", "csv", "-o", "all.csv")
    assert code == 6
    assert "wrote" not in err
    assert (zeusrun.folder / "all.csv").read_text() == "before"


def test_a_submit_serves_its_metrics_while_it_trains(zeusrun):
    child = zeusrun.start("submit", zeusrun.job("ignores_sigterm.py"), "--metrics-port", "0")
    line = next(line for line in child.stdout if "metrics for Prometheus: " in line)
    url = line.split()[-1]

    def text():
        with urllib.request.urlopen(url) as answer:
            return answer.read().decode()

    wait_for(lambda: 'zeusrun_run_epoch{job="job"} 1.0' in text())
    seen = text()
    assert 'zeusrun_run_info{job="job",trial="job-1-1"' in seen
    assert 'zeusrun_run_metric{job="job",metric="accuracy"} 0.1' in seen
    assert 'zeusrun_run_batch_size{job="job"} 32.0' in seen
    child.send_signal(signal.SIGINT)
    child.send_signal(signal.SIGINT)
    assert child.wait() == 130
    with pytest.raises(OSError, match="refused"):
        text()


def test_a_port_that_nobody_would_learn_is_exit_2(cli, zeusrun):
    code, out, err = cli("submit", zeusrun.job(), "--metrics-port", "0", "--quiet")
    assert (code, out) == (2, "")
    assert "--quiet does not print it; name a port such as 9400" in err


def test_a_port_in_use_is_exit_2_and_nothing_starts(cli, zeusrun):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        code, out, err = cli("submit", zeusrun.job(), "--metrics-port", number)
    assert (code, out) == (2, "")
    assert f"--metrics-port {number} cannot be opened: Address already in use" in err
    assert cli("history", "--json")[1] == "[]\n"
