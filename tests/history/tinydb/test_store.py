"""The history in TinyDB files: what is on disk."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest
import tinydb

from tests import factories
from tests.contracts.history import REACHED, HistoryContract, begin, build_trial
from tests.history.tables import read_plain, without_sum, write_plain
from zeusrun.errors import ExitCode, HistoryError
from zeusrun.history.base import Conflict
from zeusrun.history.tinydb.storage import VERSION
from zeusrun.history.tinydb.store import TinyDBHistory


class TestTinyDBHistory(HistoryContract):
    @pytest.fixture
    def history(self, tmp_path):
        return TinyDBHistory(tmp_path / "home" / "history")


@pytest.fixture
def history(tmp_path):
    return TinyDBHistory(tmp_path)


def test_another_process_would_read_the_same(history, tmp_path):
    begin(history)
    history.finish("digits-1-1", REACHED)
    assert TinyDBHistory(tmp_path).trials("digits") == history.trials("digits")


def test_what_was_read_before_is_neither_stale_nor_changed_by_the_reader(history, tmp_path):
    begin(history)
    history.trials("digits").clear()
    history.snapshot("digits").trials[0].to_json()["curve"].append("changed")
    assert history.trials("digits") == [build_trial()]
    TinyDBHistory(tmp_path).finish("digits-1-1", REACHED)
    assert history.trials("digits") == [build_trial().finish(REACHED)]
    assert history.unfinished("digits") == []


def test_a_version_is_that_of_the_files_whoever_opens_them(history, tmp_path):
    assert history.snapshot("digits") == TinyDBHistory(tmp_path).snapshot("digits")
    begin(history)
    version = history.snapshot("digits").version
    again = TinyDBHistory(tmp_path)
    assert again.snapshot("digits").version == version
    assert again.begin(build_trial(2), after=version) == build_trial(2)
    with pytest.raises(Conflict):
        history.begin(build_trial(3), after=version)


def test_a_file_that_was_put_back_by_hand_has_the_version_that_it_had(history, tmp_path):
    begin(history)
    content, before = (tmp_path / "digits.json").read_bytes(), history.snapshot("digits")
    history.finish("digits-1-1", REACHED)
    (tmp_path / "digits.json").write_bytes(content)
    assert history.snapshot("digits") == before


def test_a_restored_history_has_another_version(history, tmp_path):
    begin(history)
    version = history.snapshot("digits").version
    history.restore("digits", [build_trial(2).finish(REACHED)])
    with pytest.raises(Conflict):
        history.begin(build_trial(3), after=version)


def test_reading_makes_no_files(tmp_path):
    history = TinyDBHistory(tmp_path / "history")
    history.trials("digits")
    history.find("digits-1-1")
    with pytest.raises(HistoryError):
        history.finish("digits-1-1", REACHED)
    assert list(tmp_path.iterdir()) == []


def test_only_the_owner_may_read(tmp_path):
    directory = tmp_path / "history"
    history = TinyDBHistory(directory)
    mask = os.umask(0)
    try:
        begin(history)
        history.finish("digits-1-1", REACHED)
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in directory.iterdir()}
    assert modes == dict.fromkeys(["digits.json", "digits.json.bak", "digits.json.lock"], 0o600)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_the_file_is_plain_tinydb_with_a_version(history, tmp_path):
    begin(history)
    database = tinydb.TinyDB(tmp_path / "digits.json", access_mode="r")
    (header,) = database.table("meta").all()
    assert header.keys() == {"version", "basis", "crc"}
    assert header["version"] == VERSION
    (record,) = database.table("trials").all()
    assert without_sum(record) == build_trial(1).to_json()
    database.close()


def test_the_copy_is_the_state_before_the_last_write(history, tmp_path):
    begin(history)
    assert not (tmp_path / "digits.json.bak").exists()
    before = (tmp_path / "digits.json").read_bytes()
    history.finish("digits-1-1", REACHED)
    assert (tmp_path / "digits.json.bak").read_bytes() == before


def test_what_a_newer_minor_version_added_is_kept(history, tmp_path):
    path = tmp_path / "digits.json"
    begin(history)
    begin(history)
    tables = read_plain(path)
    tables["meta"]["1"]["written_by"] = "1.9"
    tables["notes"] = {"1": {"text": "of a table unknown here"}}
    tables["trials"]["1"]["carbon_g"] = 1.5
    tables["trials"]["2"]["carbon_g"] = None
    write_plain(path, tables)

    finished = history.finish("digits-2-1", REACHED)
    begin(history)

    after = read_plain(path)
    tables["meta"]["1"]["basis"] = after["meta"]["1"]["basis"]
    tables["trials"]["2"].update(finished.to_json())
    tables["trials"]["3"] = build_trial(3).to_json()
    assert after == tables


def test_a_file_of_a_newer_version_is_refused_and_left_alone(history, tmp_path):
    path = tmp_path / "digits.json"
    # Its trials need not look like ours any more.
    content = json.dumps({"meta": {"1": {"version": VERSION + 1}}, "trials": ["new"], "more": 1})
    path.write_text(content)
    for use in (
        lambda: history.trials("digits"),
        lambda: history.find("digits-1-1"),
        lambda: begin(history),
        lambda: history.finish("digits-1-1", REACHED),
    ):
        with pytest.raises(HistoryError, match=r"(?s)digits\.json.*newer zeusrun.*upgrade") as info:
            use()
        assert info.value.exit_code is ExitCode.HISTORY
    assert path.read_text() == content
    assert not list(tmp_path.glob("*corrupt*"))


def test_only_histories_are_listed_as_jobs(history, tmp_path):
    begin(history)
    history.finish("digits-1-1", REACHED)
    for name in ("notes.txt", ".digits.json", "a b.json", "digits.json.corrupt-20250601T120000Z"):
        (tmp_path / name).touch()
    assert history.jobs() == ["digits"]


def test_a_job_named_like_the_files_of_another_stays_apart(history):
    names = ["a", "a.json", "a.json.bak", "a.json.lock", "a.json.tmp"]
    for _ in range(2):
        for name in names:
            factories.begin(
                history, lambda t, name=name: build_trial(len(t) + 1, job=name), job=name
            )
    assert history.jobs() == names
    for name in names:
        assert history.trials(name) == [build_trial(1, job=name), build_trial(2, job=name)]


def test_a_relative_directory_is_the_one_of_the_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    history = TinyDBHistory("history")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    begin(history)
    assert (tmp_path / "history" / "digits.json").exists()


def test_a_history_loads_nothing_heavy():
    code = "import sys, zeusrun.history.tinydb.store; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert not {"numpy", "torch", "pydantic", "yaml", "rich"} & set(loaded.stdout.split())
