"""What faulthandler wrote, read: which thread is the main one, and which line is the user's."""

from __future__ import annotations

import faulthandler
import os
import sysconfig

import pytest

import zeusrun
from zeusrun.launcher.supervision.hang import (
    Frame,
    describe_place,
    keep_stacks,
    read_frames,
    read_stack,
    size_of_stack,
)

PACKAGE = os.path.dirname(zeusrun.__file__)
LIBRARY = sysconfig.get_paths()["stdlib"]
TORCH = sysconfig.get_paths()["purelib"] + "/torch/distributed/distributed_c10d.py"
TEXT = f"""\
Thread 0x00007f848b1546c0 (most recent call first):
  File "{LIBRARY}/threading.py", line 982 in run
  File "/home/me/loader.py", line 3 in fill

Thread 0x00007f84b3430b80 (most recent call first):
  File "{TORCH}", line 2500 in all_reduce
  File "/home/me/train (new).py", line 33 in train_epoch
  File "/home/me/train (new).py", line 60 in <module>
  File "{PACKAGE}/worker/__main__.py", line 126 in _run_file
  File "{PACKAGE}/worker/__main__.py", line 181 in <module>

Current thread 0x00007f84b3430b81 [loader] (most recent call first):
  File "{LIBRARY}/queue.py", line 171 in get
"""


def test_the_main_thread_is_the_one_that_runs_our_worker():
    frames = read_frames(TEXT)
    assert frames[0] == Frame(TORCH, 2500, "all_reduce")
    assert frames[1] == Frame("/home/me/train (new).py", 33, "train_epoch")
    assert len(frames) == 5


def test_where_no_thread_runs_our_worker_the_one_that_took_the_signal_counts():
    assert read_frames(TEXT.replace("worker/__main__.py", "elsewhere.py"))[0].function == "get"


def test_the_place_is_the_innermost_call_and_the_users_line():
    assert describe_place(read_frames(TEXT)) == "in all_reduce, train (new).py:33"


def test_a_line_of_the_scripts_own_is_told_without_a_call():
    text = (
        'Current thread 0x1 (most recent call first):\n  File "/me/train.py", line 9 in <module>\n'
    )
    assert describe_place(read_frames(text)) == "at train.py:9"


def test_where_no_file_is_the_users_the_innermost_line_is_told():
    text = f'Current thread 0x1 (most recent call first):\n  File "{TORCH}", line 9 in wait\n'
    assert describe_place(read_frames(text)) == "in wait, distributed_c10d.py:9"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0\n" * 9,
        "Current thread 0x1 (most recent call first):\n  <no Python frame>\n",
        '  File "a", line 1 in b\n',
        'Current thread 0x1 (most recent call first):\n  File "a", line ??? in b\n',
    ],
)
def test_where_nothing_is_told_no_place_is_known(text):
    assert describe_place(read_frames(text)) is None


def test_what_the_interpreter_of_the_ranks_writes_is_understood(tmp_path):
    """Of this process, whose main thread does not run our worker."""
    path = tmp_path / "stack"
    with path.open("w") as file:
        faulthandler.dump_traceback(file)
    assert "test_stacks.py:" in describe_place(read_frames(path.read_text()))


def test_only_what_was_told_since_is_read(tmp_path):
    path = tmp_path / "rank0.stack"
    assert (size_of_stack(path), read_stack(path, 0)) == (0, "")
    path.write_text("before")
    size = size_of_stack(path)
    path.write_text("before, after")
    assert read_stack(path, size) == ", after"


def test_a_link_or_a_pipe_in_the_place_of_a_file_is_neither_followed_nor_waited_for(tmp_path):
    victim, link, pipe = tmp_path / "victim", tmp_path / "link", tmp_path / "pipe"
    victim.write_text("mine")
    link.symlink_to(victim)
    os.mkfifo(pipe)
    for path in (link, pipe):
        assert read_stack(path, 0) == ""
        with pytest.raises(OSError, match=path.name):
            keep_stacks(path, "heading", {0: "stack"})
    assert victim.read_text() == "mine"
