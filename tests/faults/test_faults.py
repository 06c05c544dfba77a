"""``benchmarks/faults.py`` in small: the same faults on the same real command, a few of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.factories import ROOT, with_fake_torchrun

pytestmark = [
    pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is absent, and builds the faults"),
]


@pytest.fixture
def try_faults(tmp_path, request):
    """Run the program, expect it to find nothing, and return how often each fault was tried."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if request.node.get_closest_marker("torchrun") is None:
        environment = with_fake_torchrun(environment)

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, str(ROOT / "benchmarks" / "faults.py"), "--json", *arguments],
            # What it keeps of failures is in pytest's own folder.
            env={**environment, "TMPDIR": str(tmp_path), "FAULTS_GONE_S": "30"},
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


def over_the_real_torchrun(*values):
    return pytest.param(*values, marks=[pytest.mark.long, pytest.mark.torchrun])


# Seed 43 kills the launcher. After the death of a rank, torchrun may wait for 30 s.
@pytest.mark.parametrize(("kills", "seed"), [(1, 43), over_the_real_torchrun(20, 41)])
def test_whoever_is_killed_nothing_is_lost_and_nothing_is_left_behind(try_faults, kills, seed):
    tried = try_faults("--kills", str(kills), "--seed", str(seed))
    assert sum(tried.values()) == kills


@pytest.mark.parametrize(("kills", "seed"), [(2, 3), over_the_real_torchrun(20, 50)])
def test_whatever_a_script_starts_while_the_watchdog_is_killed_nothing_is_left_behind(
    try_faults, kills, seed
):
    tried = try_faults("--watchdog-kills", str(kills), "--seed", str(seed))
    assert sum(tried.values()) == kills


@pytest.mark.parametrize("crowd", [3, over_the_real_torchrun(20)])
@pytest.mark.long  # three submits at once; history/test_processes.py has writers at once
def test_submits_at_once_are_all_there_exactly_once(try_faults, crowd):
    tried = try_faults("--parallel", str(crowd), "--rounds", "1")
    assert tried == {f"{crowd} submits at once": 1}


@pytest.mark.long  # a process for each verb
def test_all_verbs_at_random_leave_a_true_history(try_faults):
    assert try_faults("--mix", "2") == {"all verbs mixed, 2 s": 1}


@pytest.mark.long  # it waits for a minute to begin
def test_nights_lose_nothing(try_faults):
    assert sum(try_faults("--nights").values()) >= 8


@pytest.mark.long  # a process for each fault
def test_a_fault_of_any_system_call_of_a_write_loses_nothing(try_faults):
    tried = try_faults("--io", "--io-past", "in use", "--io-submits", "0")
    assert min(tried[f"{name} at a system call of a write"] for name in ("EIO", "SIGKILL")) > 50
    assert tried["SIGSTOP to the holder of the lock"] == 1
