"""The watchdog as a real process: it starts torchrun, and ends what is left of it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest

from tests.factories import ROOT
from tests.runs import has_ended, wait_for
from zeusrun.launcher.processes.descendants import processes_of_run
from zeusrun.launcher.processes.torchrun import StopLevel, TorchrunProcess
from zeusrun.launcher.rundir.layout import create_run

WATCHDOG = ROOT / "zeusrun" / "launcher" / "processes" / "watchdog.py"
# It waits for a signal by way of the watchdog, which then is a subreaper. Torchrun starts no process
# in its first half second; this program would after 20 ms.
DAEMON = """
import os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
open(sys.argv[1] + "/ready", "w").close()
signal.sigwait([signal.SIGUSR1])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1] + "/daemon", "w").write(f"{os.getpid()} ")
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)"], {})
    os._exit(0)
"""
STAYS = "while True: time.sleep(600)\n"


@pytest.fixture
def start(tmp_path):
    """Start a watchdog with a Python program; it is killed at the end, with what it started."""
    started = []

    def run(program):
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", WATCHDOG, "", "", sys.executable, "-c", program, tmp_path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.stdin.close()
        process.stdout.close()
        process.wait(300)


def start_daemon(send, tmp_path):
    """Let the program start its daemon; return the daemon's pid once it runs."""
    wait_for((tmp_path / "ready").exists)
    send(bytes([signal.SIGUSR1]))
    path = tmp_path / "daemon"
    return int(
        wait_for(lambda: path.exists() and path.read_text().endswith(" ") and path.read_text())
    )


@pytest.mark.parametrize(
    ("program", "code"),
    [("", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", -9)],
)
def test_it_reports_the_exit_code(start, program, code):
    assert int(start(program).stdout.read(8)) == code


def test_it_passes_a_signal_on(start, tmp_path):
    watchdog = start(DAEMON + STAYS)
    start_daemon(watchdog.stdin.write, tmp_path)
    watchdog.stdin.write(bytes([signal.SIGTERM]))
    assert int(watchdog.stdout.read(8)) == -signal.SIGTERM
    watchdog.stdin.write(bytes([signal.SIGTERM]))  # nothing is left to be signalled
    assert watchdog.poll() is None


@pytest.mark.parametrize("program", [DAEMON, DAEMON + STAYS], ids=["ended", "running"])
def test_at_the_end_of_its_input_it_kills_all_that_is_left(start, tmp_path, program):
    watchdog = start(program)
    daemon = start_daemon(watchdog.stdin.write, tmp_path)
    everybody = wait_for(
        lambda: {each.pid for each in psutil.Process(watchdog.pid).children(recursive=True)}
    )
    watchdog.stdin.close()
    assert watchdog.wait(300) == 0
    assert has_ended(daemon)
    assert all(map(has_ended, everybody))


def test_when_the_launcher_is_killed_it_ends(tmp_path):
    program = f"""
        import subprocess, sys
        watchdog = subprocess.Popen(
            [sys.executable, "-I", "-S", {str(WATCHDOG)!r}, "", "", *sys.argv[1:]],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        print(watchdog.pid, flush=True)
        while word := sys.stdin.buffer.read(1):
            watchdog.stdin.write(word)
            watchdog.stdin.flush()
    """
    program = textwrap.dedent(program)
    launcher = subprocess.Popen(
        [sys.executable, "-c", program, sys.executable, "-c", DAEMON + STAYS, tmp_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
    )
    watchdog = int(launcher.stdout.readline())
    daemon = start_daemon(launcher.stdin.write, tmp_path)
    launcher.kill()
    launcher.communicate()
    wait_for(lambda: has_ended(watchdog), what="the end of the watchdog")
    assert has_ended(daemon)


def test_what_ends_a_whole_session_does_not_end_it(start, tmp_path):
    watchdog = start(DAEMON + STAYS)
    start_daemon(watchdog.stdin.write, tmp_path)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1):
        watchdog.send_signal(number)
    watchdog.stdin.write(bytes([signal.SIGKILL]))
    assert int(watchdog.stdout.read(8)) == -signal.SIGKILL


def test_signals_reach_torchrun_as_they_would_without_it(start):
    program = """
import signal
assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
"""
    assert int(start(program).stdout.read(8)) == 0


@pytest.fixture
def process(tmp_path):
    from zeusrun.launcher.processes.command import Command

    paths = create_run(tmp_path, "job", "job-1-1")
    environment = {**os.environ, "ZEUSRUN_RUN_DIR": str(paths.run_dir)}
    argv = (sys.executable, "-c", DAEMON.replace("{}", "os.environ") + STAYS, str(tmp_path))
    return TorchrunProcess(Command(argv, environment, Path.cwd()), paths, grace_period_s=600)


def test_if_it_is_killed_the_run_ends_and_nothing_is_left(process, tmp_path):
    with process:
        daemon = start_daemon(lambda word: process._send(word[0]), tmp_path)
        (watchdog,) = (
            each for each in psutil.Process().children() if str(WATCHDOG) in each.cmdline()
        )
        watchdog.kill()
        while process.is_running():
            process.wait()
    assert process.exit.code == -signal.SIGKILL
    assert has_ended(daemon)


def test_whoever_recovers_the_run_leaves_it_alone(process, tmp_path):
    """Right after the death of a launcher, it alone knows the orphans with another environment."""
    with process:
        daemon = start_daemon(lambda word: process._send(word[0]), tmp_path)
        (watchdog,) = (
            each for each in psutil.Process().children() if str(WATCHDOG) in each.cmdline()
        )
        found = {each.pid for each in processes_of_run(str(process._paths.run_dir))}
        (torchrun,) = (each for each in watchdog.children() if each.pid != daemon)
        assert found == {torchrun.pid, daemon}
        process.stop(StopLevel.KILL, lambda: False)


def test_a_launcher_does_not_wait_for_one_that_was_stopped(process, tmp_path, monkeypatch):
    monkeypatch.setattr("zeusrun.launcher.processes.torchrun._MARGIN_S", 0.2)
    process._grace_s = 0
    with process:
        daemon = start_daemon(lambda word: process._send(word[0]), tmp_path)
        (watchdog,) = (
            each for each in psutil.Process().children() if str(WATCHDOG) in each.cmdline()
        )
        watchdog.suspend()
    assert process.exit.code == -signal.SIGKILL
    assert has_ended(daemon)
