"""The lease of a trial on one machine: a lock in its run directory."""

from __future__ import annotations

import contextlib
import subprocess
import sys

import pytest

from tests.contracts.lease import LeaseContract
from tests.factories import build_trial
from zeusrun.launcher.rundir.layout import create_run
from zeusrun.launcher.rundir.ownership import lease_of

LAUNCHER = """
import sys
from pathlib import Path
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.ownership import RunLock
lock = RunLock(RunPaths(Path(sys.argv[1])))
print(lock.acquire(), flush=True)
sys.stdin.read()
"""


class TestRunLock(LeaseContract):
    @pytest.fixture
    def trial(self, tmp_path):
        paths = create_run(tmp_path, "job", "job-1-1")
        return build_trial(1, run_dir=str(paths.run_dir))

    @pytest.fixture
    def another(self, trial):
        with contextlib.ExitStack() as stack:

            def make():
                lease = lease_of(trial)
                stack.callback(lease.release)
                return lease

            yield make

    @pytest.fixture
    def lease(self, another):
        return another()

    @pytest.fixture
    def launcher(self, trial):
        started = []

        def start():
            process = subprocess.Popen(
                [sys.executable, "-c", LAUNCHER, trial.run_dir],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            started.append(process)
            assert process.stdout.readline() == "True\n"
            return process

        yield start
        for process in started:
            process.kill()
            process.communicate()
