"""Whose processes are whose, by real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from zeusrun.energy.sharing import ForeignProcesses

WAIT = "import sys; print(flush=True); sys.stdin.read()"
# Launches a process, tells its id, and dies: the process is init's from then on.
LEAVE = """
import subprocess, sys
code = "import signal; signal.pause()"
print(subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL).pid)
"""
STRANGER = 1  # init is nobody's job


@pytest.fixture
def launch():
    started = []

    def launch(code=WAIT, **environment):
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment},
        )
        started.append(process)
        process.stdout.readline()  # it runs, and has done what it was told
        return process.pid

    yield launch
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def orphan():
    """Return a function that makes a process whose parent is dead."""
    orphans = []

    def make(**environment):
        parent = [sys.executable, "-c", LEAVE]
        environment = {**os.environ, **environment}
        orphans.append(int(subprocess.check_output(parent, env=environment)))
        return orphans[-1]

    yield make
    for pid in orphans:
        os.kill(pid, signal.SIGKILL)


def look(judge, *pids):
    return judge.check(frozenset(pids))


def test_what_this_process_launched_is_not_foreign(launch):
    judge = ForeignProcesses(first_namespace=True)
    assert look(judge) is False
    assert look(judge, launch(), os.getpid()) is False
    assert judge.found == frozenset()


def test_anyone_else_is_foreign_and_named(launch):
    judge = ForeignProcesses(first_namespace=True)
    look(judge)
    assert look(judge, launch(), STRANGER) is True
    assert judge.found == {STRANGER}
    assert look(judge) is False
    assert judge.found == frozenset()


def test_without_a_list_nothing_is_known():
    judge = ForeignProcesses(first_namespace=True)
    assert judge.check(None) is None
    assert look(judge, STRANGER) is True
    assert judge.check(None) is None
    assert judge.found == frozenset()


def test_a_process_that_has_gone_proves_nothing(launch):
    judge = ForeignProcesses(first_namespace=True)
    look(judge)
    assert look(judge, 2**22 + 1) is None  # no kernel gives out such a number
    assert look(judge, launch(), 2**22 + 1) is None


def test_in_another_namespace_only_who_was_there_before_is_known_to_be_foreign():
    judge = ForeignProcesses(first_namespace=False)
    judge._owns = lambda _pid: False
    assert look(judge, 71, 72) is True
    assert judge.found == {71, 72}
    assert look(judge, 72, 73) is True
    assert judge.found == {72}
    assert look(judge, 73, 71) is None  # 71 may have been given out again
    assert look(judge) is None


def test_one_of_ours_on_the_list_proves_a_common_namespace(launch):
    ours, stranger = launch(), STRANGER
    judge = ForeignProcesses(first_namespace=False)
    assert look(judge) is None
    assert look(judge, stranger) is None
    assert look(judge, ours, stranger) is True
    assert judge.found == {stranger}
    assert look(judge, ours) is False
    assert look(judge, stranger) is True


def test_a_number_listed_before_the_launch_proves_no_common_namespace(launch):
    chance = launch()
    judge = ForeignProcesses(first_namespace=False)
    assert look(judge, chance) is True
    assert look(judge, chance) is True


def test_what_is_behind_an_mps_server_is_unknown(launch):
    server = launch("open('/proc/self/comm', 'w').write('nvidia-cuda-mps-server');" + WAIT)
    judge = ForeignProcesses(first_namespace=True)
    look(judge)
    assert look(judge, server, launch()) is None
    assert look(judge, server, STRANGER) is True


def test_this_kernel_tells_the_namespace():
    first = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert look(ForeignProcesses()) is (False if first else None)
