"""Finding the processes of runs, whatever they do meanwhile, and ending them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from zeusrun.launcher.processes import descendants
from zeusrun.launcher.processes.descendants import Ended, end_run, scan_processes


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
    assert end_run(str(tmp_path)) == Ended((), (f"sleep ({process.pid})",))
