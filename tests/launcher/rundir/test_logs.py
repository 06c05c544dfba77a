"""The ranks' logs, of a finished trial or along with a running one."""

from __future__ import annotations

import os
import threading

import pytest

from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.rundir.logs import follow_logs, log_tails, read_text_lines
from zeusrun.launcher.rundir.ownership import RunLock


@pytest.fixture
def paths(tmp_path):
    return create_run(tmp_path, "job", "job-1-1")


def lines_of(paths, content):
    paths.rank_log(0).write_bytes(content)
    return read_text_lines(log_tails(paths, [0])[0], final=True)


@pytest.mark.parametrize(
    ("content", "lines"),
    [
        (b"", []),
        (b"one\ntwo\n", ["one", "two"]),
        (b"no newline", ["no newline"]),
        (b"windows\r\n", ["windows"]),
        (b"10%\r50%\r100%\ndone\n", ["100%", "done"]),
        (b"10%\r50%\r", ["50%"]),
        (b"bad \xff byte\n", ["bad \ufffd byte"]),
        ("ä ≤ 1\n".encode(), ["ä ≤ 1"]),
        (b"\n\n", ["", ""]),
    ],
)
def test_a_log_is_read_as_lines_of_text(paths, content, lines):
    assert lines_of(paths, content) == lines


def test_the_logs_of_a_finished_trial_are_rank_after_rank(paths):
    for rank in (0, 1):
        paths.rank_log(rank).write_text(f"first of {rank}\nlast of {rank}")
    found = list(follow_logs(log_tails(paths, [0, 1])))
    assert found == [(0, "first of 0"), (0, "last of 0"), (1, "first of 1"), (1, "last of 1")]


def test_a_rank_without_a_log_has_printed_nothing(paths):
    assert list(follow_logs(log_tails(paths, [0]), RunLock(paths))) == []


def test_following_gives_lines_as_they_come_until_the_launcher_is_gone(paths):
    lock, seen = RunLock(paths), []
    lock.acquire()
    first, rest = threading.Event(), threading.Event()

    def follow():
        for rank, line in follow_logs(log_tails(paths, [0]), RunLock(paths)):
            seen.append((rank, line))
            (first if len(seen) == 1 else rest).set()

    with paths.rank_log(0).open("w") as log:
        thread = threading.Thread(target=follow)
        thread.start()
        log.write("one\n")
        log.flush()
        assert first.wait(300)
        assert thread.is_alive()
        log.write("two\n")
        log.flush()
        assert rest.wait(300)
        log.write("no newline")
        log.flush()
        lock.release()
        thread.join(300)
    assert not thread.is_alive()
    assert seen == [(0, "one"), (0, "two"), (0, "no newline")]


def test_raw_lines_are_as_they_were_written(paths):
    content = b"10%\r50%\x1b[2J\xff\ntwo\r\n"
    paths.rank_log(0).write_bytes(content)
    tails = log_tails(paths, [0])
    lines = [line for _, line in follow_logs(tails, raw=True)]
    assert os.fsencode("\n".join(lines)) + b"\n" == content
