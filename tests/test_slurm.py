"""Whole submits with ``run_on: slurm``, on a real Slurm of two nodes."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys

import pytest

from tests.runs import only_trial, wait_for
from tests.slurm import SlurmCluster

ENDLESS = {"max_epochs": 10**6}
TRAINS = """
import json, os, sys, time, zeusrun
run = zeusrun.current()
path = run.checkpoint_dir / f"rank{run.rank}.json"
done = json.loads(path.read_text())["epoch"] if path.exists() else 0
print(f"begins after epoch {done} on {os.uname().nodename}", flush=True)
for epoch in run.epochs(default=10**6, done=done):
    time.sleep(0.2)
    run.report(epoch=epoch, accuracy=0.5 if os.path.exists("enough") else 0.0)
    if "forgets" not in sys.argv:
        path.write_text(json.dumps({"epoch": epoch}))
print(f"ends after epoch {epoch}", flush=True)
"""


class Submits:
    """A ``zeusrun`` whose jobs a cluster runs."""

    def __init__(self, zeusrun, cluster) -> None:
        self.zeusrun, self.cluster = zeusrun, cluster
        self._logs = {}

    def job(self, *args, nodes=1, run_on=None, **changes):
        """Write a job that trains, with checkpoints, until there is a file ``enough``."""
        folder = self.zeusrun.folder
        (folder / "train.py").write_text(TRAINS)
        launch = {"nnodes": nodes, **changes.pop("launch", {})}
        section = {"slurm": {"time": "30m", **(run_on or {})}}
        changes = {"objective": ENDLESS, "attempts": 1, "args": list(args), **changes}
        script = changes.pop("script", "train.py")
        return self.zeusrun.job(script, run_on=section, launch=launch, **changes)

    def enough(self, there=True):
        """Let the training reach its target."""
        path = self.zeusrun.folder / "enough"
        path.touch() if there else path.unlink()

    def queue(self, job, *arguments):
        """Submit with ``--detach``; return the id of the job in Slurm."""
        done = self.zeusrun("submit", job, "--detach", "--json", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)["queued"].removeprefix("slurm:")

    def follow(self, *arguments, **env):
        """Start a command that lasts; ``seen`` is what it has printed."""
        log = self.zeusrun.folder / f"output{len(self._logs)}"
        with log.open("wb") as stream:
            child = subprocess.Popen(
                self.zeusrun.argv(*arguments),
                cwd=self.zeusrun.folder,
                env={**self.zeusrun.environment, **env},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )
        child.stdout = stream  # the fixture closes it
        self._logs[child.pid] = log
        self.zeusrun.started.append(child)
        return child

    def seen(self, child):
        return self._logs[child.pid].read_text()

    def end(self, child, seconds=120):
        """Wait for a command; return its exit code and what it printed."""
        try:
            child.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it does not end: {self.seen(child)}")
        return child.returncode, self.seen(child)

    def trials(self):
        return self.zeusrun.history()

    def trial(self):
        (trial,) = self.trials()
        return trial

    def reports(self, trial="job-1-1"):
        path = self.zeusrun.run_dir(trial) / "metrics.jsonl"
        return path.read_bytes().count(b'"reported"') if path.exists() else 0

    def wait_for_reports(self, more=1, trial="job-1-1", child=None):
        """Wait until a trial has reported some more epochs."""
        before = self.reports(trial)

        def reported():
            if child is not None and child.poll() is not None:
                pytest.fail(f"it has ended with {child.returncode}: {self.seen(child)}")
            return self.reports(trial) >= before + more

        wait_for(reported, 90, what=f"a report; {self.output()}")

    def output(self):
        """Return what the batch steps have printed."""
        paths = sorted(self.zeusrun.home.glob("slurm/*/output.log"))
        return "\n".join(path.read_text() for path in paths)

    def tickets(self):
        return sorted(path.name for path in self.zeusrun.home.glob("submits/*.json"))

    def running_id(self, number=0):
        """Return the id of a job that Slurm runs or has queued."""
        ids = self.cluster.do("squeue", "--noheader", "--format=%A").split()
        return sorted(ids, key=int)[number]

    def status(self):
        done = self.zeusrun("status", "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory):
    with SlurmCluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def _submits(zeusrun, cluster, monkeypatch):
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    return Submits(zeusrun, cluster)


@pytest.fixture
def slurm(zeusrun, shared_cluster, monkeypatch):
    """Submits to a cluster that other tests of this module have used, and that is empty."""
    yield _submits(zeusrun, shared_cluster, monkeypatch)
    shared_cluster.clear()


@pytest.mark.torchrun
def test_two_nodes_reach_the_target_and_are_one_record(slurm):
    child = slurm.follow("submit", slurm.job(nodes=2), "--json")
    slurm.wait_for_reports(8, child=child)  # so that the energy of both was read
    slurm.enough()
    code, seen = slurm.end(child)
    assert code == 0, seen
    trial = only_trial(json.loads(seen.splitlines()[-1]))
    assert trial == slurm.trial()
    assert (trial["status"], trial["world_size"], trial["host_count"]) == ("REACHED", 2, 2)
    assert re.fullmatch(r"slurm:\d+", trial["allocation"])
    assert [share[0] for share in trial["hosts"]] == ["n1", "n2"]
    joules = [share[2] for share in trial["hosts"]]
    assert all(joules)
    assert sum(joules) == pytest.approx(trial["energy_j"], rel=0.05)
    for rank, host in enumerate(("n1", "n2")):
        assert f"[{host} rank{rank}] begins after epoch 0 on {host}" in seen
    assert slurm.tickets() == []


def test_a_job_that_scancel_ends_is_cancelled(slurm):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(child=child)
    slurm.cluster.do("scancel", slurm.running_id())
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == (143, "CANCELLED"), seen
    assert slurm.tickets() == []


def test_a_job_that_slurm_refuses_leaves_nothing(slurm):
    done = slurm.zeusrun("submit", slurm.job(run_on={"partition": "nowhere"}))
    assert (done.returncode, done.stdout) == (5, "")
    told = " ".join(done.stderr.split())
    assert told.startswith("zeusrun: Slurm refused the job: "), told
    assert "invalid partition" in told
    assert slurm.tickets() == []
    assert not (slurm.zeusrun.home / "runs").exists()
    assert not list(slurm.zeusrun.home.glob("slurm/*"))  # --dry-run shows the script
