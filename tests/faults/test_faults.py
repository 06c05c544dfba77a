"""``benchmarks/faults.py`` in small: the same faults on the same real command, a few of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is absent, and builds the faults"),
]


@pytest.fixture
def try_faults(tmp_path):
    """Run the program, expect it to find nothing, and return how often each fault was tried."""

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--json", *arguments],
            # What it keeps of failures is in pytest's own folder.
            env={
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "TMPDIR": str(tmp_path),
                "FAULTS_GONE_S": "30",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout, done.stderr
        report = json.loads(done.stdout)
        assert report["failed"] == [], json.dumps(report["failed"], indent=1)
        assert done.returncode == 0
        return {row["fault"]: row["tried"] for row in report["rows"]}

    return run


def test_whoever_is_killed_nothing_is_lost_and_nothing_is_left_behind(try_faults):
    tried = try_faults("--kills", "6", "--seed", "40")
    assert sum(tried.values()) == 6


def test_submits_at_once_are_all_there_exactly_once(try_faults):
    assert try_faults("--parallel", "6", "--rounds", "1") == {"6 submits at once": 1}


def test_all_verbs_at_random_leave_a_true_history(try_faults):
    assert try_faults("--mix", "5") == {"all verbs mixed, 5 s": 1}


def test_a_fault_of_any_system_call_of_a_write_loses_nothing(try_faults):
    tried = try_faults("--io", "--io-past", "in use", "--io-submits", "0")
    assert min(tried[f"{name} at a system call of a write"] for name in ("EIO", "SIGKILL")) > 50
    assert tried["SIGSTOP to the holder of the lock"] == 1
