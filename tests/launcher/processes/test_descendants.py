"""Finding the processes of runs, whatever they do meanwhile, and ending them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import psutil
import pytest

from tests.runs import wait_for
from zeusrun.launcher.processes import descendants
from zeusrun.launcher.processes.descendants import (
    Sweep,
    end_run,
    find_started_ranks,
    scan_processes,
)


@pytest.fixture
def start(tmp_path):
    """Start a command as a process of the run; it is killed at the end."""
    started = []

    def run(*argv, **variables):
        environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(tmp_path), **variables}
        started.append(subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()
    end_run(str(tmp_path))


def test_a_process_that_always_becomes_another_program_is_never_overlooked(start, tmp_path):
    program = tmp_path / "program"
    program.write_text('exec /bin/sh "$0"\n')
    process = psutil.Process(start("/bin/sh", str(program)).pid)
    for _ in range(30):  # a sweep ends after two scans without it
        scans = scan_processes(), scan_processes()
        assert any(each.unclear or process in each.of_runs[str(tmp_path)] for each in scans)


def test_its_environment_that_cannot_be_read_yet_is_not_taken_for_an_empty_one(start, tmp_path):
    program = tmp_path / "program"
    program.write_text('exec /bin/sh "$0"\n')
    pid = str(start("/bin/sh", str(program)).pid)
    told = []
    while len(told) < 40:
        if not descendants._read_environment(pid):
            told.append(descendants._is_in_exec(pid))
    assert told.count(True) > 30  # all but one in a hundred


def test_it_is_ended_too(start, tmp_path):
    program = tmp_path / "program"
    program.write_text('exec /bin/sh "$0"\n')
    process = start("/bin/sh", str(program))
    assert len(end_run(str(tmp_path)).names) == 1
    assert process.wait(300) == -signal.SIGKILL


def test_a_process_that_is_ended_while_it_forks_leaves_no_child(start, tmp_path):
    program = """
import os, time
while True:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
    os.wait()
"""
    process = start(sys.executable, "-c", program)
    while len(scan_processes().of_runs.get(str(tmp_path), ())) < 5:
        pass
    ended = end_run(str(tmp_path))
    assert process.wait(300) == -signal.SIGKILL
    assert len(ended.names) >= 5
    assert ended.left == ()
    assert str(tmp_path) not in scan_processes().of_runs


def test_zombies_kernel_threads_and_empty_environments_are_no_programs_in_exec(start):
    empty = subprocess.Popen(["sleep", "600"], env={})
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    try:
        # Another process of this machine may be in exec; these would always be.
        assert any(not scan_processes().unclear for _ in range(1000))
    finally:
        empty.kill()
        empty.wait()
        zombie.wait()


def test_one_scan_tells_many_runs_apart(start, tmp_path):
    first = start("sleep", "600")
    second = start("sleep", "600", ZEUSRUN_RUN_DIR=f"{tmp_path}/2")
    neither = start("sleep", "600", ZEUSRUN_RUN_DIR="", OTHER=f"ZEUSRUN_RUN_DIR={tmp_path}")
    found = scan_processes().of_runs
    assert {each.pid for each in found[str(tmp_path)]} == {first.pid}
    assert {each.pid for each in found[f"{tmp_path}/2"]} == {second.pid}
    assert neither.pid not in {each.pid for all_ in found.values() for each in all_}


def test_what_could_not_be_ended_in_time_is_named(start, tmp_path, monkeypatch):
    monkeypatch.setattr(descendants, "_SWEEP_S", 0.0)
    process = start("sleep", "600")
    assert end_run(str(tmp_path)) == Sweep((), (f"sleep ({process.pid})",))


STARTS = """
import json, os, subprocess, sys, time
os.chdir(os.environ["ZEUSRUN_RUN_DIR"])
open("libtorch.so", "w").write("x")
code = "import mmap, time; f = open('libtorch.so', 'r+b'); m = mmap.mmap(f.fileno(), 1); print(flush=True); time.sleep(600)"
if sys.argv[1] == "plain":
    code = "import time; print(flush=True); time.sleep(600)"
children = [
    subprocess.Popen(
        [sys.executable, "-c", code, *sys.argv[3:]], env={**os.environ, **place}, stdout=subprocess.PIPE
    )
    for place in json.loads(sys.argv[2])
]
for child in children:
    child.stdout.readline()
open("started", "w").close()
time.sleep(600)
"""
TWO = [{"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"} for rank in (0, 1)]


@pytest.mark.parametrize(
    ("places", "ranks", "options"),
    [
        pytest.param(TWO, 2, {}, id="two ranks, as of torchrun"),
        pytest.param([*TWO, *TWO], 2, {}, id="each with a worker, which inherits its place"),
        pytest.param(
            [{"LOCAL_RANK": "1", "WORLD_SIZE": "2"}], 1, {}, id="the others, as Lightning"
        ),
        pytest.param(TWO, 1, {"own": TWO[0]}, id="others than the rank's own place"),
        pytest.param([{}, {}], 0, {"own": TWO[1]}, id="workers of rank 1"),
        pytest.param([TWO[0]], 0, {}, id="what may be a worker of a script with RANK=0"),
        pytest.param([{"RANK": "1"}], 0, {}, id="a variable of another meaning"),
        pytest.param(TWO, 0, {"kind": "plain"}, id="without torch"),
        pytest.param(TWO, 0, {"words": ["--multiprocessing-fork"]}, id="of multiprocessing"),
    ],
)
def test_ranks_that_a_rank_has_started_are_told_from_its_workers(
    start, tmp_path, places, ranks, options
):
    words = (options.get("kind", "torch"), json.dumps(places), *options.get("words", ()))
    parent = start(sys.executable, "-c", STARTS, *words, **options.get("own", {}))
    wait_for((tmp_path / "started").exists, what="the children")
    found = find_started_ranks([psutil.Process(parent.pid)])
    assert list(found.values()) == [2] * ranks
