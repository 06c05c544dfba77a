"""Files of a newer zeusrun: each is refused in one sentence, and stays as it is."""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.factories import build_trial
from zeusrun.errors import DeviceError, HistoryError
from zeusrun.gpu.power_limits.original_limits import LimitRecord, read_record, write_record
from zeusrun.history.shared.copy import LocalCopy
from zeusrun.history.shared.spool import Spool
from zeusrun.history.tinydb.storage import encode_tables, read_tables
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.notify.notices import deliver_all

NEWER = "was written by a newer zeusrun (format 2; this one knows 1); upgrade zeusrun, or use"


def make_newer(path):
    """Let a newer zeusrun have written a file, with fields and words of its own; return the text."""
    record = json.loads(path.read_text())
    text = json.dumps({**record, "version": 2, "status": "PAUSED", "more": {"fields": [1]}})
    path.write_text(text)
    return text


@pytest.fixture
def home(zeusrun):
    """Return a home with a run, and a schedule."""
    zeusrun.submit(zeusrun.job())
    zeusrun("schedule", "add", zeusrun.job(), "@daily", "--no-cron")
    return zeusrun.home


@pytest.mark.parametrize(
    ("file", "verb"),
    [
        ("history/job.json", ["history"]),
        ("history/job.json", ["submit", "JOB", "--dry-run"]),
        ("runs/job/job-1-1/trial.json", ["repair", "--restore", "job"]),
        ("schedules/job.json", ["schedule", "list"]),
        ("schedules/job.json", ["schedule", "pause", "job"]),
        ("schedules/job.json", ["schedule", "add", "JOB", "@weekly", "--no-cron"]),
    ],
)
def test_a_file_of_a_newer_zeusrun_is_refused_with_6_and_stays(zeusrun, home, file, verb):
    path = home / file
    if file.startswith("history"):
        tables = read_tables(path, path.read_bytes())
        tables["meta"]["1"]["version"] = 2
        path.write_bytes(encode_tables(tables))
        text = path.read_text()
    else:
        text = make_newer(path)
    words = [str(zeusrun.job()) if word == "JOB" else word for word in verb]
    done = zeusrun(*words, COLUMNS="400")
    said = done.stderr + done.stdout
    assert f"{path} {NEWER} another ZEUSRUN_HOME" in said
    assert done.returncode == 6
    assert path.read_text() == text


def test_a_run_that_a_newer_zeusrun_has_begun_keeps_its_number_and_its_files(zeusrun, home):
    """The history has lost the run: its directory must neither be removed nor used again."""
    for path in (home / "history").iterdir():
        path.unlink()
    path = home / "runs" / "job" / "job-1-1" / "trial.json"
    text = make_newer(path)
    done = zeusrun("submit", zeusrun.job())
    assert (done.returncode, path.read_text()) == (0, text)
    assert [trial["trial"] for trial in zeusrun.history()] == ["job-2-1"]


def test_the_ticket_of_a_living_newer_submit_is_refused(tmp_path):
    with Tickets(tmp_path) as tickets:
        held = tickets.take("a", "running")
        text = make_newer(tmp_path / "submits" / "1.json")
        with pytest.raises(HistoryError, match="newer zeusrun"):
            tickets.present()
    assert (tmp_path / "submits" / "1.json").read_text() == text
    held.release()


def test_a_notice_of_a_newer_zeusrun_waits_for_it_and_the_log_names_it(tmp_path):
    path = tmp_path / "1.json"
    path.write_text(json.dumps({"version": 2}))
    deliver_all(tmp_path, (0.0,))
    assert path.read_text() == '{"version": 2}'
    assert NEWER in (tmp_path / "failed.log").read_text()


def test_what_a_newer_zeusrun_has_not_delivered_waits(tmp_path):
    spool = Spool(tmp_path)
    path = spool.put("finish", build_trial())
    text = make_newer(path)
    with pytest.raises(HistoryError, match="newer zeusrun"):
        spool.entries()
    assert (path.read_text(), spool.list_refused()) == (text, [])


def test_the_local_copy_of_a_newer_zeusrun_is_not_used_and_not_made_anew(tmp_path):
    copy = LocalCopy(tmp_path / "copy.db")
    assert copy.jobs() == []
    with sqlite3.connect(tmp_path / "copy.db") as file:
        file.execute("PRAGMA user_version = 2")
        file.execute("INSERT INTO jobs VALUES ('a', '1', 1, 0)")
    assert copy.jobs() == []
    with pytest.raises(HistoryError, match="newer zeusrun"):
        copy.update("a", None, lambda *_: pytest.fail("nothing is fetched"))
    with sqlite3.connect(tmp_path / "copy.db") as file:
        assert file.execute("SELECT job FROM jobs").fetchall() == [("a",)]


def test_the_power_limit_that_a_newer_zeusrun_has_recorded_is_not_touched(tmp_path):
    write_record(tmp_path, LimitRecord("GPU-1", 250.0, "job-1-1"))
    (path,) = tmp_path.iterdir()
    text = make_newer(path)
    with pytest.raises(DeviceError, match="newer zeusrun"):
        read_record(tmp_path, "GPU-1")
    assert path.read_text() == text


def test_fields_that_this_zeusrun_does_not_know_are_ignored(zeusrun, home):
    for path in (home / "runs/job/job-1-1/trial.json", home / "schedules/job.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "more": 1}))
    schedule = home / "schedules" / "job.json"
    record = json.loads(schedule.read_text())
    record["rules"]["more"] = record["cursor"]["more"] = 1
    schedule.write_text(json.dumps(record))
    for verb in (["schedule", "list"], ["show", "job-1-1"], ["repair", "--restore", "job"]):
        done = zeusrun(*verb)
        assert (done.returncode, done.stderr) == (0, "")
