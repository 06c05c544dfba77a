"""The guard as a process; ``test_optimize.py`` has it restore limits."""

from __future__ import annotations

import os
import signal

import pytest

from zeusrun.errors import DeviceError
from zeusrun.launcher.processes.guard import GuardProcess


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_that_is_meant_for_the_launcher_does_not_end_the_guard(tmp_path, name):
    guard = GuardProcess(tmp_path, os.environ, [], [])
    os.kill(guard._process.pid, getattr(signal, f"SIG{name}"))
    guard.dismiss()
    assert guard._process.returncode == 0


@pytest.mark.parametrize("times", [1, 2])
def test_a_guard_that_is_killed_while_it_starts_is_started_once_more(tmp_path, times):
    kills = tmp_path / "kills"
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal\n"
        f"with open({str(kills)!r}, 'a+') as file:\n"
        "    file.write('x')\n"
        f"    killed = file.tell() <= {times}\n"
        "if killed:\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    if times == 1:
        guard = GuardProcess(tmp_path, environment, [], [])
        assert guard.is_alive()
        guard.dismiss()
    else:
        with pytest.raises(DeviceError, match="no guard could be started"):
            GuardProcess(tmp_path, environment, [], [])
    assert kills.read_text() == "xx"
