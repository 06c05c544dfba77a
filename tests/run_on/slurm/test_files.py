"""The files of a submit that is queued."""

from __future__ import annotations

import json
import os
from dataclasses import replace

import pytest

from zeusrun.errors import UsageError
from zeusrun.launcher.queue.admission import Request
from zeusrun.run_on.slurm.submit import find_files, new_files

REQUEST = Request(overrides=("a=1", "b=ü"), batch_size=32, overlap="queue", until=1e9, wait=True)
QUEUED = replace(REQUEST, job_file="/jobs/job.yaml", ticket=7, allocation="slurm:12")


@pytest.fixture
def files(tmp_path):
    return new_files(tmp_path)


def test_a_submit_that_is_queued_is_read_as_it_was_written(files, tmp_path):
    assert files.read_result() is None
    assert not files.folder.exists()
    files.write_request(QUEUED)
    assert files.read_request() == QUEUED
    assert files.folder.stat().st_mode & 0o777 == 0o700
    assert (files.folder / "request.json").stat().st_mode & 0o777 == 0o600
    assert new_files(tmp_path).folder != files.folder


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda _: "{", "cannot be read"),
        (lambda _: "[]", "cannot be read"),
        (lambda whole: json.dumps({**whole, "version": 2}), "newer zeusrun"),
        (lambda whole: json.dumps({**whole, "overrides": 7}), "cannot be read"),
        (lambda whole: json.dumps({k: v for k, v in whole.items() if k != "overrides"}), "overr"),
        (lambda whole: json.dumps({**whole, "job_file": 7}), "cannot be read"),
    ],
)
def test_a_request_that_cannot_be_read_says_what_to_do(files, damage, words):
    files.write_request(QUEUED)
    path = files.folder / "request.json"
    path.write_text(damage(json.loads(path.read_text())))
    with pytest.raises(UsageError, match=rf"request\.json[ ,].*{words}.*; (submit|upgrade) "):
        files.read_request()


def test_a_newer_zeusrun_on_the_login_node_may_say_more(files):
    files.write_request(QUEUED)
    path = files.folder / "request.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "later": 1}))
    assert files.read_request() == QUEUED


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"7", b"\xff"])
def test_a_result_that_is_not_written_whole_is_none_yet(files, content):
    files.write("result.json", content)
    assert files.read_result() is None
    files.write("result.json", b'{"exit_code": 3}')
    assert files.read_result() == {"exit_code": 3}


def test_the_files_of_a_job_are_found_among_damaged_ones(tmp_path):
    assert find_files(tmp_path, "slurm:12") is None
    found = {}
    for number in ("11", "12", "13"):
        found[number] = new_files(tmp_path)
        found[number].write_request(replace(QUEUED, allocation=f"slurm:{number}"))
    (tmp_path / "x").mkdir()
    (tmp_path / "y").write_text("")
    (found["13"].folder / "request.json").write_text("{")
    assert find_files(tmp_path, "slurm:12") == found["12"]
    assert find_files(tmp_path, "slurm:13") is None
    again = new_files(tmp_path)  # a scheduler begins again with 1 after its last number
    again.write_request(QUEUED)
    os.utime(found["12"].folder, (1e9, 1e9))
    assert find_files(tmp_path, "slurm:12") == again


def test_a_submit_removes_the_files_of_a_month_ago(tmp_path):
    old, new = new_files(tmp_path), new_files(tmp_path)
    for each in (old, new):
        each.write_request(QUEUED)
        each.write("output.log", b"")
    month_ago = old.folder.stat().st_mtime - 31 * 86400
    started_again = new_files(tmp_path)
    for each in (old, started_again):
        each.write_request(QUEUED)
        each.write("output.log", b"")
        for path in (*each.folder.iterdir(), each.folder):
            os.utime(path, (month_ago, month_ago))
    with started_again.output.open("a") as stream:
        stream.write("begins")
    new_files(tmp_path)
    kept = {new.folder, started_again.folder}
    assert {*tmp_path.iterdir()} == kept
