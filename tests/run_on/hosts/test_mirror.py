"""What ranks of a node write, copied into the run directory of the head."""

from __future__ import annotations

import json
import os
import time
from dataclasses import replace

import psutil
import pytest

from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.supervision.ranks import RunningRanks
from zeusrun.metrics.base import SidecarReader
from zeusrun.run_on.hosts import mirror
from zeusrun.run_on.hosts.mirror import (
    FileReader,
    create_node_folders,
    remove_node_folders,
    write_copy,
)
from zeusrun.sidecar.events import Spawned, append_event

HERE = 5.0  # the node's clock shows so much less


def later(t):
    return t + HERE


@pytest.fixture
def own(tmp_path):
    """The node's part, on a disk of its own."""
    paths = RunPaths(tmp_path / "node" / "job-1-1")
    create_node_folders(paths, 1)
    return paths.of_node(1)


def copy(own, paths, reader, number=1):
    names = []
    for name, data in reader.read():
        names.append(name)
        write_copy(paths, number, name, data.decode("latin-1").encode("latin-1"), later)
    return names


def append(path, data):
    with path.open("ab") as file:
        file.write(data)


def test_only_what_is_new_is_read(own):
    reader = FileReader(own)
    assert list(reader.read()) == []
    append(own.rank_log(2), b"one\ntw")
    append(own.torchrun_log, b"\xff\0")
    append(own.rank_stack(3), b"stack")
    append(own.logs / "rank2.log.tmp", b"of nobody")
    assert dict(reader.read()) == {
        "logs/rank2.log": b"one\ntw",
        "logs/torchrun.log": b"\xff\0",
        "logs/rank3.stack": b"stack",
    }
    append(own.rank_log(2), b"o\n")
    assert list(reader.read()) == [("logs/rank2.log", b"o\n")]
    assert list(reader.read()) == []


def test_of_events_only_whole_lines_are_read(own):
    reader = FileReader(own)
    append(own.sidecar, b'{"t": 1}\n{"t"')
    assert list(reader.read()) == [("metrics.jsonl", b'{"t": 1}\n')]
    assert list(reader.read()) == []
    append(own.sidecar, b": 2}\n")
    assert list(reader.read()) == [("metrics.jsonl", b'{"t": 2}\n')]


def test_a_large_file_is_read_in_parts(own, paths, monkeypatch):
    monkeypatch.setattr(mirror, "_CHUNK_BYTES", 1000)
    reader = FileReader(own)
    append(own.rank_log(2), os.urandom(5500))
    append(own.sidecar, b"".join(b'{"t": %d}\n' % number for number in range(500)))
    rounds = 0
    while copy(own, paths, reader):
        rounds += 1
    assert rounds >= 5
    assert paths.rank_log(2).read_bytes() == own.rank_log(2).read_bytes()
    assert [json.loads(line)["t"] for line in paths.sidecar.open()] == [
        n + HERE for n in range(500)
    ]


def test_a_line_longer_than_a_part_does_not_stop_the_lines_after_it(own, paths, monkeypatch):
    monkeypatch.setattr(mirror, "_CHUNK_BYTES", 1000)
    reader = FileReader(own)
    append(own.sidecar, b"x" * 2500 + b'\n{"t": 1}\n')
    while copy(own, paths, reader):
        pass
    assert paths.sidecar.read_bytes() == b"x" * 2500 + b'\n{"t": 6.0}\n'


def test_the_record_of_a_failure_is_replaced_after_a_restart(own, paths):
    reader = FileReader(own)
    for text in ("the first failure, a long one", "second"):
        own.error.write_text(text)
        assert copy(own, paths, reader) == ["error.json"]
        assert (paths.run_dir / "error.1.json").read_text() == text
        assert copy(own, paths, reader) == []
    assert not paths.error.exists()
    assert paths.all_errors == [paths.error, paths.run_dir / "error.1.json"]


def test_each_node_has_its_log_of_torchrun(own, paths):
    paths.torchrun_log.write_text("of the head")
    for number in (1, 12):
        write_copy(paths, number, "logs/torchrun.log", b"of %d" % number, later)
    assert [path.read_text() for path in paths.all_torchrun_logs] == [
        "of the head",
        "of 1",
        "of 12",
    ]


def test_a_link_that_a_script_leaves_is_not_followed(own, paths, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    own.rank_log(2).symlink_to(secret)
    own.error.symlink_to(secret)
    os.mkfifo(own.rank_stack(2))
    assert list(FileReader(own).read()) == []
    paths.rank_log(2).symlink_to(secret)
    with pytest.raises(OSError, match="symbolic links"):
        write_copy(paths, 1, "logs/rank2.log", b"x", later)
    assert secret.read_text() == "secret"


@pytest.mark.parametrize(
    "name",
    [
        "",
        "../metrics.jsonl",
        "/tmp/metrics.jsonl",
        "logs/../../metrics.jsonl",
        "logs/rank1.log/../../trial.json",
        "logs/rank1.log\n",
        "logs/rank1.log\0",
        "logs/rank.log",
        "logs/rank1234567890.log",
        "logs/rank٣.log",
        "trial.json",
        "stop",
        "job.yaml",
        "logs/torchrun.1.log",
        "error.1.json",
        "clock/rank0",
        "nodes/2/metrics.jsonl",
        "checkpoints/model.pt",
    ],
)  # fmt: skip
def test_a_name_that_no_rank_writes_is_refused(paths, name):
    before = sorted(paths.run_dir.parent.rglob("*"))
    with pytest.raises(OSError, match="Invalid argument"):
        write_copy(paths, 1, name, b"x", later)
    assert sorted(paths.run_dir.parent.rglob("*")) == before


GARBAGE = [
    b"no JSON\n",
    b"\xff\xfe\0\n",
    b"[1, 2]\n",
    b"7\n",
    b"null\n",
    b'{"event": "without a time"}\n',
    b'{"t": "noon"}\n',
    b'{"t": null}\n',
    b'{"t": [1]}\n',
    b"[" * 50_000 + b"\n",
    b"\r\n",
    b"\n",
]


def test_lines_that_are_no_events_are_copied_as_they_are(paths):
    data = b'{"t": 1}\n'.join([b"", *GARBAGE, b""])
    write_copy(paths, 1, "metrics.jsonl", data, later)
    assert paths.sidecar.read_bytes() == b'{"t": 6.0}\n'.join([b"", *GARBAGE, b""])


def test_an_event_keeps_all_but_its_time(paths):
    record = {
        "v": 1,
        "event": "reported",
        "t": 1.5,
        "rank": 1,
        "metrics": {"ä": 0.5, "b\u2028": None},
    }
    line = json.dumps(record, ensure_ascii=False).encode() + b"\n"
    write_copy(paths, 1, "metrics.jsonl", line * 2, later)
    lines = paths.sidecar.read_bytes().split(b"\n")
    assert [json.loads(each) for each in lines[:-1]] == [{**record, "t": 6.5}] * 2
    assert lines[-1] == b""


def test_a_process_that_another_host_has_started_is_none_of_this_host(paths, tmp_path):
    there = tmp_path / "metrics.jsonl"
    spawned = Spawned(1.5, os.getpid(), 2, followed=True)
    append_event(there, spawned)
    write_copy(paths, 1, "metrics.jsonl", there.read_bytes(), later)
    (event,) = SidecarReader(paths.sidecar).read()
    assert event == replace(spawned, t=6.5, pid=event.pid)
    with pytest.raises(psutil.NoSuchProcess):
        psutil.Process(event.pid)
    RunningRanks(paths).take(event)
    write_copy(paths, 2, "metrics.jsonl", there.read_bytes(), later)
    assert len({each.pid for each in SidecarReader(paths.sidecar).read()}) == 2


def test_events_of_several_hosts_do_not_replace_each_other(paths):
    append(paths.sidecar, b'{"t": 1, "rank": 0}\n')
    for number in (1, 2):
        write_copy(paths, number, "metrics.jsonl", b'{"t": 1, "rank": %d}\n' % number, later)
    assert [json.loads(line)["rank"] for line in paths.sidecar.open()] == [0, 1, 2]


def test_what_is_copied_is_for_the_owner_alone(paths):
    for name in ("metrics.jsonl", "error.json", "logs/rank1.log"):
        write_copy(paths, 1, name, b"x\n", later)
    for path in (paths.sidecar, paths.run_dir / "error.1.json", paths.rank_log(1)):
        assert path.stat().st_mode & 0o777 == 0o600


# Folders


def test_a_node_begins_with_empty_folders_and_leaves_none(tmp_path):
    paths = RunPaths(tmp_path / "home" / "runs" / "job" / "job-1-1")
    own = paths.of_node(3)
    create_node_folders(paths, 3)
    append(own.rank_log(2), b"x")
    append(own.clocks / "rank2", b"x")
    create_node_folders(paths, 3)  # of an earlier run that was killed
    assert [path for path in own.run_dir.rglob("*") if path.is_file()] == []
    remove_node_folders(paths, 3)
    assert not paths.run_dir.exists()


def test_what_ranks_have_saved_stays_on_the_node(tmp_path):
    paths = RunPaths(tmp_path / "job-1-1")
    create_node_folders(paths, 3)
    (paths.checkpoints / "model.pt").write_text("x")
    remove_node_folders(paths, 3)
    assert [path.name for path in paths.run_dir.rglob("*")] == ["checkpoints", "model.pt"]


def test_on_a_shared_file_system_ranks_of_other_hosts_may_still_save(paths):
    """The ranks of one host may end while rank 0 still writes its checkpoint."""
    paths.trial.write_text("{}")  # the head's
    create_node_folders(paths, 1)
    create_node_folders(paths, 2)
    remove_node_folders(paths, 1)
    assert paths.of_node(2).logs.is_dir()
    remove_node_folders(paths, 2)
    assert not paths.of_node(2).run_dir.parent.exists()
    (paths.checkpoints / "model.pt").write_text("saved")


def test_a_time_of_the_future_does_not_leave_the_head_with_one(paths):
    append(paths.sidecar, b"")
    write_copy(paths, 1, "metrics.jsonl", b'{"t": 1e999}\n', lambda t: min(t, time.monotonic()))
    assert json.loads(paths.sidecar.read_text())["t"] <= time.monotonic()
