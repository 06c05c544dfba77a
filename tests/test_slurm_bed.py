"""The cluster of ``tests/slurm.py``: jobs, requeues, dead nodes, and that it goes away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.runs import has_ended, wait_for
from tests.slurm import NODES, SlurmCluster, sweep

OWNER = """
import contextlib, psutil, subprocess, sys, time
from tests.slurm import SlurmCluster
def names():
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has exited
            found.append(each.name())
    return found
with SlurmCluster(sys.argv[1]) as slurm:
    slurm.submit("srun setsid env -i sleep 600", "--nodes=2")
    while names().count("sleep") != 2:
        time.sleep(0.05)
    subprocess.Popen(["sleep", "600"], env=slurm.environment | {"PATH": "/bin:/usr/bin"})
    holders = psutil.Process().children()
    print(slurm.private, *(each.pid for each in psutil.Process().children(recursive=True)))
    if sys.argv[2:]:
        for each in holders:
            each.kill()
    print(flush=True)
    time.sleep(600)
"""


def output(slurm, name="out"):
    path = slurm.folder / name
    return path.read_text().split() if path.exists() else []


def sleepers(slurm, node):
    """Return the processes on a node that sleep, as jobs here do."""
    found = []
    for pid in slurm.node_pids(node):
        with suppress(psutil.NoSuchProcess):
            found += [pid] if psutil.Process(pid).name() == "sleep" else []
    return found


def start_on_both(slurm, then="exit"):
    script = f"echo ${{SLURM_RESTART_COUNT-0}} >> out; srun sleep 600; {then}"
    job = slurm.submit(script, "--nodes=2")
    wait_for(lambda: all(sleepers(slurm, node) for node in NODES))
    return job


def test_each_node_has_its_name_and_finds_the_other(slurm_cluster):
    slurm = slurm_cluster
    ask = "hostname; echo $SLURMD_NODENAME; getent hosts n1 n2 | tr -s ' '"
    shown = slurm.do("srun", "--nodes=2", "--gres=gpu:2", "sh", "-c", ask).splitlines()
    assert sorted(shown) == sorted(["n1", "n1", "n2", "n2", *["127.0.1.1 n1", "127.0.1.2 n2"] * 2])
    assert os.uname().nodename not in NODES


@pytest.mark.long
def test_a_requeued_job_runs_again_on_all_nodes(slurm_cluster):
    slurm = slurm_cluster
    job = start_on_both(slurm)
    slurm.do("scontrol", "requeue", job)
    slurm.hasten(job)
    wait_for(lambda: output(slurm) == ["0", "1"])
    assert (slurm.state(job), slurm.field(job, "Restarts")) == ("RUNNING", "1")


@pytest.mark.long
def test_a_job_whose_node_dies_runs_again_once_the_node_is_back(slurm_cluster):
    slurm = slurm_cluster
    job = start_on_both(slurm)
    lost = slurm.node_pids("n2")
    slurm.kill_node("n2")
    assert all(map(has_ended, lost))
    slurm.wait_for(job, "PENDING")
    wait_for(lambda: slurm.node_pids("n1") == [slurm.slurmd_pid("n1")])
    slurm.start_node("n2")
    slurm.hasten(job)
    slurm.wait_for(job, "RUNNING")
    assert slurm.field(job, "NodeList") == "n[1-2]"


@pytest.mark.long
def test_a_job_goes_on_without_slurmd_and_a_new_one_finds_it(slurm_cluster):
    slurm = slurm_cluster
    job = start_on_both(slurm)
    os.kill(slurm.slurmd_pid("n2"), signal.SIGKILL)
    wait_for(lambda: has_ended(slurm.slurmd_pid("n2")))
    assert sleepers(slurm, "n2")
    slurm.start_node("n2")
    slurm.do("scancel", job)
    wait_for(slurm.nodes_idle)
    assert not sleepers(slurm, "n2")
    assert slurm.state(job) == "CANCELLED"


@pytest.mark.long
def test_accounting_knows_jobs_and_no_job_is_left_for_the_next_test(slurm_dbd):
    job = slurm_dbd.submit("exit 3")
    ask = ["sacct", "-j", job, "--allocations", "--noheader", "--parsable2"]
    wait_for(lambda: slurm_dbd.do(*ask, "--format=State,ExitCode") == "FAILED|3:0")
    start_on_both(slurm_dbd)
    slurm_dbd.kill_node("n1")
    slurm_dbd.clear()
    assert slurm_dbd.nodes_idle()
    assert [slurm_dbd.node_pids(node) for node in NODES] == [
        [slurm_dbd.slurmd_pid(node)] for node in NODES
    ]


@pytest.mark.long
def test_slurm_finds_a_dead_node_and_starts_a_requeued_job_by_itself(slurm_cluster):
    slurm = slurm_cluster
    job = start_on_both(slurm)
    slurm.kill_node("n1", noticed=False)
    slurm.wait_for(job, "PENDING", timeout_s=120)
    slurm.start_node("n1")
    wait_for(lambda: output(slurm) == ["0", "1"])


@pytest.mark.long
def test_a_job_of_a_higher_partition_preempts_and_the_other_runs_again(slurm_cluster):
    slurm = slurm_cluster
    job = start_on_both(slurm, then="sleep 600")  # a job that ends by itself is not requeued
    urgent = slurm.submit("true", "--nodes=2", "--exclusive", "--partition=urgent")
    slurm.wait_for(urgent, "COMPLETED")
    wait_for(lambda: output(slurm) == ["0", "1"])
    assert slurm.field(job, "Restarts") == "1"


@pytest.mark.long
def test_nothing_is_left_when_the_test_fails(tmp_path):
    left = []

    def failing_test():
        with SlurmCluster(tmp_path / "slurm") as slurm:
            start_on_both(slurm)
            left.extend(pid for node in NODES for pid in slurm.node_pids(node))
            left.append(slurm.private)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()
    assert not Path(left.pop()).exists()
    assert all(map(has_ended, left))


@pytest.mark.long
@pytest.mark.parametrize("killed", ["the test", "the test and the holders"])
def test_nothing_is_left_when_the_test_is_killed(tmp_path, killed):
    with SlurmCluster(tmp_path / "mine"):  # or skip
        pass
    command = [sys.executable, "-c", OWNER, str(tmp_path / "its"), *killed.split()[2:]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        private, *pids = owner.stdout.readline().decode().split()
        owner.stdout.readline()
        owner.kill()
    if killed != "the test":  # only the next cluster can end what is left
        sweep()
    wait_for(lambda: all(has_ended(int(pid)) for pid in pids))
    wait_for(lambda: not Path(private).exists())
