"""The guard as a process; ``test_optimize.py`` has it restore limits."""

from __future__ import annotations

import os
import signal

import pytest

from zeusrun.launcher.processes.guard import GuardProcess


@pytest.mark.parametrize("name", ["INT", "TERM", "HUP", "QUIT", "USR1", "USR2"])
def test_a_signal_that_is_meant_for_the_launcher_does_not_end_the_guard(tmp_path, name):
    guard = GuardProcess(tmp_path, os.environ, {}, [])
    os.kill(guard._process.pid, getattr(signal, f"SIG{name}"))
    guard.dismiss()
    assert guard._process.returncode == 0
