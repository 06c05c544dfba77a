"""What ends a run whose launcher is dead: the watchdog, as a real process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runs import wait_for
from zeusrun.launcher.processes.torchrun import Watchdog

LAST = 1 << (signal.SIGUSR2 - 1)  # of the signals that it ignores
SLEEPER = [sys.executable, "-c", "import time; print(flush=True); time.sleep(600)"]
LAUNCHER = """
import sys
from zeusrun.launcher.processes.torchrun import Watchdog
with Watchdog() as watchdog:
    print(watchdog.pid, watchdog.mark["ZEUSRUN_LAUNCH"], flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def start():
    """Start a process that is up when the call returns, and end it at last."""
    started = []

    def run(argv, **environment):
        process = subprocess.Popen(
            argv,
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        process.first_line = process.stdout.readline()
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run(tmp_path, start):
    """A launcher with a watchdog, a process of its run, and one of the next launcher of the run."""
    launcher = start([sys.executable, "-c", LAUNCHER])
    launcher.watchdog, mark = launcher.first_line.split()
    own = start(SLEEPER, ZEUSRUN_RUN_DIR=str(tmp_path), ZEUSRUN_LAUNCH=mark)
    other = start(SLEEPER, ZEUSRUN_RUN_DIR=str(tmp_path), ZEUSRUN_LAUNCH=f"{mark}2")
    return launcher, own, other


def test_when_the_launcher_is_killed_its_run_is_and_no_other_one(run):
    launcher, own, other = run
    launcher.kill()
    assert own.wait(30) == -signal.SIGKILL
    assert other.poll() is None


def test_a_launcher_that_ends_well_dismisses_it(run):
    launcher, own, other = run
    launcher.communicate("")
    assert launcher.returncode == 0
    with pytest.raises(ProcessLookupError):
        os.kill(int(launcher.watchdog), 0)
    assert own.poll() is None
    assert other.poll() is None


def ignores_signals(pid):
    """Whether a process has come so far that it ignores signals."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return any(line.startswith("SigIgn") and int(line.split()[1], 16) & LAST for line in lines)


def test_what_ends_a_whole_session_does_not_end_it(run):
    launcher, own, _ = run
    wait_for(lambda: ignores_signals(launcher.watchdog), what="a watchdog that ignores signals")
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        os.kill(int(launcher.watchdog), number)
    launcher.kill()
    assert own.wait(30) == -signal.SIGKILL


def test_a_launcher_does_not_wait_for_a_watchdog_that_was_stopped(run):
    launcher, own, _ = run
    os.kill(int(launcher.watchdog), signal.SIGSTOP)
    launcher.communicate("")
    assert launcher.returncode == 0
    assert own.poll() is None


def test_a_watchdog_that_was_killed_is_no_trouble():
    with Watchdog() as watchdog:
        os.kill(watchdog.pid, signal.SIGKILL)
