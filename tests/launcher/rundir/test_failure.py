"""The root cause of a failed run, from the worker's word or torchrun's."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from unittest import mock

import pytest

from zeusrun.launcher.rundir import failure as failures
from zeusrun.launcher.rundir.failure import (
    blame_disk,
    read_failure,
    read_traceback,
    run_deleted,
)
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.reasons import ReasonCode
from zeusrun.redaction import mask_values
from zeusrun.worker.failure import record_failure
from zeusrun.worker.run import Run

RECORD = {
    "rank": 1,
    "restart": 0,
    "kind": "exception",
    "type": "ValueError",
    "message": "the data is broken",
    "traceback": 'Traceback:\n  File "/a/train.py", line 8, in <module>\n    load()\n'
    '  File "/a/data.py", line 3, in load\n    raise\nValueError: the data is broken\n',
}
TORCHRUN = """\
W1120 12:00:00.000 torch/distributed/run.py:900] Setting OMP_NUM_THREADS
============================================================
zeusrun.worker FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2025-06-01_12:00:01
  rank      : 0 (local_rank: 0)
  exitcode  : 1 (pid: 10)
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2025-06-01_12:00:00
  host      : here
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 13)
  error_file: <N/A>
============================================================
"""


@pytest.fixture
def paths(tmp_path):
    (tmp_path / "logs").mkdir()
    return RunPaths(tmp_path)


def leave(paths, record=None, log=None):
    if record is not None:
        text = record if isinstance(record, str) else json.dumps({**RECORD, **record})
        paths.error.write_text(text)
    if log is not None:
        paths.torchrun_log.write_text(log)
    return read_failure(paths, 0)


@pytest.mark.parametrize(
    ("record", "printed", "code"),
    [
        ({"kind": "exit", "message": "the script exited with code 2", "exit_code": 2},
         "usage: train.py", ReasonCode.USAGE_ERROR),
        ({"kind": "exit", "message": "the script exited with code 22", "exit_code": 22},
         "", ReasonCode.CRASHED),
        ({"kind": "exit", "message": "the script exited with code 1", "exit_code": 1},
         "ModuleNotFoundError: No module named 'there_is_none'", ReasonCode.CANNOT_IMPORT),
        ({"kind": "exit", "message": "the script exited with python3: No module named there_is"},
         "", ReasonCode.CANNOT_IMPORT),
        ({"type": "ModuleNotFoundError", "message": "No module named 'there_is_none'"},
         "", ReasonCode.CANNOT_IMPORT),
        ({"type": "ImportError", "message": "cannot import name"}, "", ReasonCode.CANNOT_IMPORT),
        ({"type": "SyntaxError", "message": "invalid syntax"}, "", ReasonCode.CANNOT_IMPORT),
        ({"type": "RuntimeError", "message": "no ImportError at all"}, "", ReasonCode.CRASHED),
        ({"type": "ConnectionError", "message": "the store is down"}, "", ReasonCode.CRASHED),
        ({"kind": "out_of_memory"}, "", ReasonCode.OUT_OF_MEMORY),
    ],
)  # fmt: skip
def test_the_code_of_a_failure_is_what_python_said(paths, record, printed, code):
    paths.rank_log(1).write_text(f"{printed}\n")
    assert leave(paths, record).code is code


def test_an_exit_code_is_told_with_the_last_line_of_the_rank(paths):
    bar = "  1 %\r\x1b[31mtrain.py: error: no such option\r\n \n"
    paths.rank_log(1).write_text("usage: train.py\n\n" + bar)
    exited = {"kind": "exit", "message": "the script exited with code 2", "exit_code": 2}
    failure = leave(paths, exited)
    assert failure.reason == "rank 1: the script exited with code 2"
    assert failure.sentence == f"{failure.reason}: [31mtrain.py: error: no such option"
    assert failure.cause == "the script exited with code 2"  # alike whatever it printed
    raised = leave(paths, {})
    assert raised.sentence == raised.reason


def test_an_exit_after_a_traceback_is_told_with_its_exception(paths):
    trace = (
        "Traceback (most recent call last):\n  File 'a.py', line 3, in b\n\ndata.Broken: no rows\n"
    )
    paths.rank_log(1).write_text(trace + "use fewer\nSet FULL=1 to see more.\n")
    exited = {"kind": "exit", "message": "the script exited with code 1", "exit_code": 1}
    assert leave(paths, exited).sentence == "rank 1: the script exited with code 1: Broken: no rows"
    assert leave(paths, exited).cause == "the script exited with code 1"
    usage = {"kind": "exit", "message": "the script exited with code 2", "exit_code": 2}
    assert leave(paths, usage).last_line == "Set FULL=1 to see more."
    paths.rank_log(1).write_text(trace + "epoch\n" * 40)  # it was handled
    assert leave(paths, exited).last_line == "epoch"


def test_the_exception_of_a_spawned_process_is_the_reason(paths):
    child = (
        "-- Process 0 terminated with the following error:\nTraceback (most recent call last):\n"
        '  File "/a/data.py", line 3, in load\n    raise\npickle.Error: no key\nadvice: none\n'
    )
    trace = f'Traceback (most recent call last):\n  File "/a/train.py", line 8\n{child}'
    spawned = {"type": "ProcessRaisedException", "message": f"\n\n{child}", "traceback": trace}
    assert leave(paths, spawned).reason == "rank 1 at data.py:3: Error: no key"
    cut = {**spawned, "traceback": ""}
    assert "ProcessRaisedException: -- Process 0 terminated" in leave(paths, cut).reason


@pytest.mark.parametrize(
    ("record", "own"),
    [
        ({}, True),
        ({"kind": "out_of_memory"}, True),
        ({"kind": "exit", "message": "the script exited with code 143", "exit_code": 143}, False),
        ({"message": "Connection closed by peer"}, False),
        ({"message": "DataLoader worker (pid 7) is killed by signal: Terminated."}, False),
    ],
    ids=["raised", "memory", "exit", "complaint", "loader"],
)
def test_an_exception_is_the_ranks_own_unless_others_that_ended_are_its_cause(paths, record, own):
    assert leave(paths, record).is_own is own


def test_what_zeusrun_refused_is_told_with_the_line_of_the_script(paths):
    refused = sys.modules[Run.__module__].__file__
    trace = f'  File "/a/train.py", line 8, in <module>\n  File "{refused}", line 9, in report\n'
    assert leave(paths, {"traceback": trace}).reason.startswith("rank 1 at train.py:8: ")


def test_a_run_directory_that_is_gone_was_deleted(paths):
    paths.trial.symlink_to("nowhere")
    assert run_deleted(paths) is None
    paths.trial.unlink()
    assert run_deleted(paths).code is ReasonCode.RUN_DELETED
    shutil.rmtree(paths.run_dir)
    paths.run_dir.touch()
    assert run_deleted(paths).code is ReasonCode.RUN_DELETED


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_run_directory_that_cannot_be_seen_was_not_deleted(paths, monkeypatch, number):
    def refuse(path, *_arguments, **_options):
        raise OSError(number, os.strerror(number), path)

    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "lstat", refuse)
    assert run_deleted(paths) is None


def test_nothing_left_is_no_failure(paths):
    assert read_failure(paths, 0) is None
    assert read_traceback(paths) is None


def test_an_exception_names_rank_innermost_line_type_and_message(paths):
    failure = leave(paths, {})
    assert failure.reason == "rank 1 at data.py:3: ValueError: the data is broken"
    assert (failure.rank, failure.out_of_memory) == (1, False)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        ({"message": "first\nsecond"}, "rank 1 at data.py:3: ValueError: first"),
        ({"message": ""}, "rank 1 at data.py:3: ValueError"),
        ({"traceback": ""}, "rank 1: ValueError: the data is broken"),
        ({"message": "x" * 5000}, "rank 1 at data.py:3: ValueError: " + "x" * 199 + "…"),
        (
            {"kind": "exit", "message": "the script exited with code 7", "exit_code": 7},
            "rank 1: the script exited",
        ),
    ],
)
def test_the_reason_is_one_line(paths, record, reason):
    failure = leave(paths, record)
    assert failure.reason.startswith(reason)
    assert "\n" not in failure.reason
    assert len(failure.reason) < 300


def test_out_of_memory_is_told_apart(paths):
    assert leave(paths, {"kind": "out_of_memory"}).out_of_memory


def test_the_workers_word_wins_over_torchruns(paths):
    assert leave(paths, {}, TORCHRUN.format(code=1)).rank == 1


KILLER = "the kernel's out-of-memory killer does that"


def test_a_rank_that_was_killed_is_the_cause_whoever_complains_first(paths):
    complaint = {
        "rank": 0, "kind": "exception", "type": "RuntimeError",
        "message": "Connection closed by peer", "traceback": "",
    }  # fmt: skip
    assert leave(paths, complaint, TORCHRUN.format(code=-9)).rank == 3


def test_the_word_of_an_earlier_life_is_no_cause(paths):
    earlier = {"rank": 0, "kind": "exception", "type": "ValueError", "message": "first"}
    paths.error.write_text(json.dumps(earlier))
    paths.torchrun_log.write_text(TORCHRUN.format(code=7))
    assert read_failure(paths, 1).reason == "rank 3 exited with code 7"


@pytest.mark.parametrize(
    ("code", "how"),
    [
        (7, "exited with code 7"),
        (-9, f"was ended by SIGKILL; {KILLER}"),
        (-99, "was ended by signal 99"),
    ],
)
def test_a_rank_that_left_no_word_is_read_from_torchruns_table(paths, code, how):
    failure = leave(paths, log=TORCHRUN.format(code=code))
    assert (failure.rank, failure.reason, failure.cause) == (3, f"rank 3 {how}", how)
    assert failure.code is ReasonCode.CRASHED


@pytest.mark.parametrize("record", ["", "{", "[1]", "null", '{"rank": "x"}', "{}", "[" * 99_999])
def test_a_record_that_is_no_record_is_passed_over_for_torchruns_word(paths, record):
    failure = leave(paths, record, TORCHRUN.format(code=7))
    assert failure.rank == 3


def test_torchruns_last_line_is_better_than_nothing(paths):
    failure = leave(paths, log="usage: torchrun\ntorchrun: error: argument --nproc\n\n")
    assert (failure.rank, failure.reason) == (None, "torchrun: torchrun: error: argument --nproc")


def test_a_damaged_package_that_stops_torch_itself_is_named(paths, tmp_path, monkeypatch):
    """torch reads the entry points of all packages when it is imported."""
    folder = tmp_path / "site" / "broken-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_bytes(b"\xff")
    monkeypatch.syspath_prepend(str(folder.parent))
    error = "UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff"
    failure = leave(paths, log=f'File "/lib/importlib/metadata/__init__.py"\n{error}\n')
    begin = f"torchrun: {error}; broken is a damaged package: its entry_points.txt in "
    assert failure.reason.startswith(f"{begin}{folder.parent} cannot be read (")
    assert failure.reason.endswith("; reinstall or uninstall that package")
    assert failure.code is ReasonCode.CANNOT_IMPORT


def test_a_log_of_any_bytes_and_size_is_read_from_its_end(paths):
    paths.torchrun_log.write_bytes(b"\xff\0" * 100_000 + TORCHRUN.format(code=7).encode())
    assert read_failure(paths, 0).rank == 3


def test_the_traceback_shown_is_the_workers(paths):
    leave(paths, {}, TORCHRUN.format(code=1))
    assert read_traceback(paths) == RECORD["traceback"]


def test_without_it_torchruns_last_lines_are_shown(paths):
    leave(paths, {"traceback": ""}, "".join(f"line {n}\n" for n in range(50)))
    assert read_traceback(paths).splitlines() == [f"line {n}" for n in range(30, 50)]


def test_what_torchrun_says_of_a_signal_is_not_shown_as_the_cause(paths):
    leave(paths, log="Traceback\nSignalException: Process 5 got signal: 15\n")
    assert read_traceback(paths) is None


def test_a_sigkill_is_out_of_memory_where_the_kernel_has_counted_one(paths):
    paths.torchrun_log.write_text(TORCHRUN.format(code=-9))
    failure = read_failure(paths, 0, oom_kills=1)
    assert failure.out_of_memory
    assert failure.reason == (
        "rank 3 was ended by SIGKILL: the host ran out of memory, and the kernel chose it"
    )
    failure = read_failure(paths, 0, oom_kills=0)
    assert (failure.reason, failure.out_of_memory) == ("rank 3 was ended by SIGKILL", False)


def test_a_loader_that_the_kernel_killed_is_out_of_memory(paths):
    killed = {
        "type": "RuntimeError",
        "message": "DataLoader worker (pid 7) is killed by signal: Killed. ",
    }
    leave(paths, killed)
    assert read_failure(paths, 0, oom_kills=1).out_of_memory
    assert not read_failure(paths, 0, oom_kills=0).out_of_memory


FRAME = 'Traceback:\n  File "/a/data.py", line {}, in load\n'


@pytest.mark.parametrize(
    ("one", "other", "cause"),
    [
        (
            {"rank": 1, "message": "shape [16, 3]", "traceback": FRAME.format(3)},
            {"rank": 0, "message": "shape [32, 3]", "traceback": FRAME.format(4)},
            "data.py:#: ValueError: shape [#, #]",
        ),
        ({"message": "<f at 0x7f12ab>"}, {"message": "<f at 0x7f99>"}, None),
    ],
)
def test_failures_that_are_alike_have_one_cause(paths, one, other, cause):
    found = {leave(paths, one).cause, leave(paths, other).cause}
    assert len(found) == 1
    assert cause in {None, *found}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        [
            {"kind": "exit", "message": f"the script exited with code {code}", "exit_code": code}
            for code in (7, 8)
        ],
        ({"message": "a"}, {"message": "b"}),
    ],
    ids=["exit", "message"],
)
def test_failures_of_other_kinds_have_other_causes(paths, one, other):
    assert leave(paths, one).cause != leave(paths, other).cause


def test_other_signals_are_other_causes(paths):
    causes = {leave(paths, log=TORCHRUN.format(code=code)).cause for code in (-7, -11)}
    assert causes == {"was ended by SIGBUS", "was ended by SIGSEGV"}


def test_what_is_cut_ends_in_dots(paths):
    paths.rank_log(1).write_text("y" * 900 + "\n")
    failure = leave(
        paths, {"kind": "exit", "message": "the script exited with code 7", "exit_code": 7}
    )
    assert failure.sentence.endswith("y…")
    assert len(failure.last_line) == 200


def test_reason_cause_and_traceback_hold_no_secret(paths):
    mask = mask_values(["hf_Zm9vYmFyYmF6"])
    record = {
        name: str(value).replace("the data", "hf_Zm9vYmFyYmF6") for name, value in RECORD.items()
    }
    paths.error.write_text(
        json.dumps({**record, "message": record["message"] + "x" * 180 + "hf_Zm9vYmFyYmF6"})
    )
    failure = read_failure(paths, 0, mask=mask)
    assert failure.reason.startswith("rank 1 at data.py:3: ValueError: *** is broken")
    assert "hf_" not in failure.reason + failure.cause + read_traceback(paths, mask)


@pytest.mark.parametrize("size", [40, 70_000])
def test_no_end_of_a_secret_is_left_where_a_log_is_cut(paths, size):
    secret = "".join(f"{n:06x}" for n in range(size))[:size]
    mask = mask_values([secret])
    log = secret.encode() + b"\n" + b"x" * (64_000 - 1 - 20 - 6) + b"\n" + b"ended"
    leave(paths, log=log.decode())
    for text in (read_failure(paths, 0, mask=mask).reason, read_traceback(paths, mask)):
        assert secret[-20:] not in text
        assert text.endswith("ended")


def test_no_end_of_a_secret_is_left_where_a_traceback_is_cut(paths):
    secret = "".join(f"{n:06x}" for n in range(12_000))
    record_failure(str(paths.error), 0, 0, ValueError(f"{secret}\nthe last line"))
    assert read_traceback(paths, mask_values([secret])) == "the last line\n"
    assert secret[:100] not in read_failure(paths, 0, mask=mask_values([secret])).reason


@pytest.mark.parametrize(
    ("message", "full", "code"),
    [
        ("[Errno 28] No space left on device: 'm.pt'", False, ReasonCode.DISK_FULL),
        ("[Errno 122] Disk quota exceeded", False, ReasonCode.DISK_FULL),
        ("Io(Os { code: 28, kind: StorageFull })", False, ReasonCode.DISK_FULL),
        ("errno = 28, error message = 'No space'", False, ReasonCode.DISK_FULL),
        ("[Errno 28] inotify watch limit reached", False, ReasonCode.CRASHED),
        ("[enforce fail at inline_container.cc:664] . unexpected pos", True, ReasonCode.DISK_FULL),
        ("[enforce fail at inline_container.cc:664] . unexpected pos", False, ReasonCode.CRASHED),
        ("PytorchStreamWriter failed writing file data/0", True, ReasonCode.DISK_FULL),
        ("division by zero", True, ReasonCode.CRASHED),
    ],
)
def test_a_file_that_cannot_be_saved_on_a_full_disk_is_the_disks(
    paths, monkeypatch, message, full, code
):
    failure = leave(paths, {"type": "OSError", "message": message})
    if full:
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(failures, "write_file", mock.Mock(side_effect=error))
    found = blame_disk(paths, failure)
    assert found.code is code
    assert message.split(" ")[0] in found.reason
    assert (found.advice is not None) == (full and code is ReasonCode.DISK_FULL)
    assert blame_disk(paths, None) is None or full
