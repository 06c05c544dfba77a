"""Whole submits with ``run_on: slurm``, on a real Slurm of two nodes."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess

import psutil
import pytest

from tests.commands.test_schedule import make_due
from tests.factories import PYTHON
from tests.runs import only_trial, wait_for
from tests.slurm import SlurmCluster
from tests.test_false_clock import Machine, library  # noqa: F401 - a fixture

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
            argv, options = self.zeusrun.argv(*arguments), self.zeusrun.printing_to(stream, env)
            child = subprocess.Popen(argv, **options)
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

    def text(self, *arguments):
        """Return what a command that succeeds prints."""
        done = self.zeusrun(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

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

        wait_for(reported, what=f"a report; {self.output()}")

    def output(self):
        """Return what the batch steps have printed."""
        paths = sorted(self.zeusrun.home.glob("slurm/*/output.log"))
        return "\n".join(path.read_text() for path in paths)

    def tickets(self):
        """Return the allocations of the submits that have not ended."""
        return [each.get("allocation") for each in self.status()]

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


def _submits(zeusrun, cluster):
    zeusrun.variables |= cluster.environment  # not this process's: a cluster kills what has it
    return Submits(zeusrun, cluster)


@pytest.fixture
def slurm(zeusrun, shared_cluster):
    """Submits to a cluster that other tests of this module have used, and that is empty."""
    yield _submits(zeusrun, shared_cluster)
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


@pytest.mark.long  # a real job; the stand-in has the same
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
    assert told.startswith("zeusrun: Slurm did not take the job: "), told
    assert "invalid partition" in told
    assert slurm.tickets() == []
    assert not (slurm.zeusrun.home / "runs").exists()
    assert not list(slurm.zeusrun.home.glob("slurm/*"))  # --dry-run shows the script


@pytest.fixture
def full(slurm):
    """Submits to a cluster whose nodes another job has taken; ``free`` ends that job."""
    taken = slurm.cluster.submit("sleep 600", "--nodes=2", "--exclusive")
    slurm.cluster.wait_for(taken, "RUNNING")
    slurm.free = lambda: slurm.cluster.do("scancel", taken)
    return slurm


@pytest.mark.long
def test_a_detached_submit_is_seen_from_the_queue_to_its_end(full):
    slurm = full
    job = slurm.job()
    done = slurm.zeusrun("submit", job, "--detach", "--json")
    assert done.returncode == 0, done.stderr
    queued = json.loads(done.stdout)
    name = queued["queued"]
    assert queued == {"queued": name}
    assert re.fullmatch(r"slurm:\d+", name)
    (ticket,) = slurm.status()
    assert (ticket["allocation"], ticket["state"], ticket["trial"]) == (name, "queued", None)
    assert f"{name} is queued (" in slurm.text("status")
    follower = slurm.follow("logs", "-f", name)
    slurm.free()
    slurm.wait_for_reports()
    (running,) = slurm.status()
    assert running["allocation"] == name
    assert "job-1-1" in slurm.text("status")
    slurm.enough()
    code, seen = slurm.end(follower)
    assert code == 0, seen
    assert "ends after epoch" in seen
    later = slurm.text("logs", name)
    assert {*later.splitlines()} - {*seen.splitlines()} <= {f"zeusrun: {name} is COMPLETED on n1"}
    assert slurm.trial()["status"] == "REACHED"
    assert "job-1-1" in slurm.text("show", name)
    assert slurm.tickets() == []


@pytest.mark.long
@pytest.mark.parametrize("how", ["job", "trial", "slurm"])
def test_cancel_stops_a_running_job_which_saves_first(slurm, how):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(2, child=child)
    name = {"job": "job", "trial": "job-1-1", "slurm": f"slurm:{slurm.running_id()}"}[how]
    assert "is CANCELLED" in slurm.text("cancel", name)
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == (130, "CANCELLED"), seen
    assert "ends after epoch" in seen
    assert slurm.tickets() == []
    assert slurm.cluster.nodes_idle()


@pytest.mark.long
@pytest.mark.parametrize("how", ["job", "slurm"])
def test_cancel_takes_a_job_out_of_the_queue(full, how):
    slurm = full
    child = slurm.follow("submit", slurm.job())
    wait_for(lambda: "is queued (" in slurm.seen(child))
    name = {"job": "job", "slurm": f"slurm:{slurm.running_id(1)}"}[how]
    assert "is cancelled" in slurm.text("cancel", name)
    code, seen = slurm.end(child)
    assert code == 143, seen
    assert not slurm.zeusrun.history()
    assert slurm.tickets() == []


@pytest.mark.long
def test_cancel_ends_a_job_that_is_just_starting(slurm):
    job = slurm.job(run_on={"setup": "touch starts; sleep 30"})
    child = slurm.follow("submit", job)
    wait_for((slurm.zeusrun.folder / "starts").exists)
    (ticket,) = slurm.status()
    assert ticket["allocation"] == f"slurm:{slurm.running_id()}"
    assert f"{ticket['allocation']} runs on n1" in slurm.text("status")
    assert "is cancelled" in slurm.text("cancel", "job")
    code, seen = slurm.end(child)
    assert code == 143, seen
    assert not slurm.zeusrun.history()
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_setup_that_fails_is_told_and_logged(slurm):
    job = slurm.job(run_on={"setup": "echo no module cuda >&2; exit 9"})
    child = slurm.follow("submit", job)
    code, seen = slurm.end(child)
    assert code == 5, seen
    assert "no module cuda" in seen
    assert "ended as FAILED before it began to train" in " ".join(seen.split())
    name = re.search(r"slurm:\d+", seen)[0]
    assert "no module cuda" in slurm.text("logs", name)
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_python_that_is_missing_is_told(slurm):
    child = slurm.follow("submit", slurm.job(run_on={"python": "nopython3"}))
    code, seen = slurm.end(child)
    assert code == 5, seen
    assert "nopython3" in seen
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_job_file_that_has_become_invalid_is_told(full):
    slurm = full
    job = slurm.job()
    child = slurm.follow("submit", job)
    wait_for(lambda: "is queued" in slurm.seen(child))
    job.write_text(job.read_text() + "colour: red\n")
    slurm.free()
    code, seen = slurm.end(child)
    assert code == 2, seen
    assert seen.count("unknown key 'colour'") == 1
    assert slurm.tickets() == []


@pytest.mark.long
def test_ctrl_c_ends_the_training(slurm):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(2, child=child)
    child.send_signal(signal.SIGINT)
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == (130, "CANCELLED"), seen
    assert "ends after epoch" in seen
    assert slurm.tickets() == []


@pytest.mark.long
def test_ctrl_c_takes_a_job_out_of_the_queue(full):
    slurm = full
    child = slurm.follow("submit", slurm.job())
    wait_for(lambda: "is queued (" in slurm.seen(child))
    child.send_signal(signal.SIGINT)
    code, seen = slurm.end(child)
    assert code == 130, seen
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_second_ctrl_c_ends_a_training_at_once_that_does_not_stop(slurm):
    script = slurm.zeusrun.folder / "stubborn.py"
    script.write_text(
        "import signal, time, zeusrun\n"
        "signal.signal(signal.SIGTERM, lambda *_: print('not yet', flush=True))\n"
        "zeusrun.current().report(accuracy=0.0)\n"
        "while True:\n"
        "    time.sleep(0.1)\n"
    )
    job = slurm.job(script=str(script), launch={"grace_period_s": 600})
    child = slurm.follow("submit", job)
    slurm.wait_for_reports(1, child=child)
    child.send_signal(signal.SIGINT)
    wait_for(lambda: "not yet" in slurm.seen(child))
    child.send_signal(signal.SIGINT)
    code, seen = slurm.end(child)
    assert (code, slurm.trial()["status"]) == (130, "CANCELLED"), seen
    assert slurm.tickets() == []


@pytest.mark.long
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 75), (signal.SIGHUP, 129)])
def test_a_follower_that_is_ended_leaves_the_training(slurm, number, code):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(1, child=child)
    child.send_signal(number)
    ended, seen = slurm.end(child)
    assert ended == code, seen
    assert re.search(r"slurm:\d+ continues without this process", seen)
    slurm.wait_for_reports(2)
    slurm.enough()
    wait_for(lambda: slurm.trial()["status"] == "REACHED")


@pytest.mark.long
@pytest.mark.torchrun
def test_the_python_of_the_job_file_starts_zeusrun_on_every_node(slurm):
    folder = slurm.zeusrun.folder
    started = folder / "a python"
    started.write_text(f'#!/bin/sh\nhostname >> "{folder}/seen"\nexec {PYTHON} "$@"\n')
    started.chmod(0o755)
    section = {"python": f"env '{started}'"}
    child = slurm.follow("submit", slurm.job(run_on=section, launch={"nnodes": 2}))
    slurm.wait_for_reports()
    slurm.enough()
    code, seen = slurm.end(child)
    assert code == 0, seen
    assert sorted((folder / "seen").read_text().split()) == ["n1", "n2"]


@pytest.mark.long
def test_the_lines_of_the_job_file_reach_the_ranks(slurm):
    script = slurm.zeusrun.folder / "tells.py"
    script.write_text(
        "import os, zeusrun\n"
        "print('it has', os.environ['X'], os.environ['MARK'], os.environ['SLURM_JOB_COMMENT'])\n"
        "zeusrun.current().report(accuracy=1.0)\n"
    )
    section = {
        "setup": "export X=17",
        "python": f"env MARK=18 SLURM_JOB_COMMENT=19 {PYTHON}",
        "extra": ["--nodelist=n2", "--comment=of ours"],
    }
    child = slurm.follow("submit", slurm.job(script=str(script), run_on=section))
    code, seen = slurm.end(child)
    assert code == 0, seen
    assert "it has 17 18 19" in seen
    assert slurm.trial()["hosts"] in ([], None) or slurm.trial()["hosts"][0][0] == "n2"
    job_id = slurm.trial()["allocation"].removeprefix("slurm:")
    assert slurm.cluster.field(job_id, "Comment").strip() == "of ours"
    assert slurm.cluster.field(job_id, "BatchHost") == "n2"


@pytest.mark.long
def test_a_submit_like_a_past_run_goes_to_slurm_again(slurm):
    slurm.enough()
    slurm.queue(slurm.job(), "--batch-size", "64")
    wait_for(lambda: slurm.tickets() == [])
    code, seen = slurm.end(slurm.follow("submit", "--like", "job-1-1"))
    assert code == 0, seen
    first, second = slurm.trials()
    assert [each["global_batch_size"] for each in (first, second)] == [64, 64]
    assert first["allocation"] != second["allocation"]
    assert second["allocation"] in seen


def part(slurm, number, trial="job-1-1"):
    """Return how many epochs a part of a trial has reported."""
    path = slurm.zeusrun.run_dir(trial) / f"part{number}" / "metrics.jsonl"
    return path.read_bytes().count(b'"reported"')


def begins(seen):
    """Return the epochs after which the parts of a training began."""
    return [int(each) for each in re.findall(r"begins after epoch (\d+)", seen)]


def check_continued(slurm, child, job_id, *, nodes=1):
    """Wait for the second part of a trial, let it end, and check that it is one trial."""
    wait_for(lambda: len(begins(slurm.output())) == 2 * nodes, what="the second part")
    slurm.enough()
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == (0, "REACHED"), seen
    assert (trial["trial"], trial["preemptions"]) == ("job-1-1", 1)
    assert trial["allocation"] == f"slurm:{job_id}"
    assert trial["epochs"] == len(trial["curve"])
    assert slurm.cluster.field(job_id, "Restarts") == "1"
    assert slurm.tickets() == []
    return trial, seen


@pytest.mark.long
def test_a_job_that_is_out_of_time_is_queued_again_and_continues_its_trial(slurm):
    child = slurm.follow("submit", slurm.job(run_on={"time": "2m"}))
    slurm.wait_for_reports(2, child=child)
    job_id = slurm.running_id()
    wait_for(lambda: slurm.cluster.field(job_id, "Restarts") == "1", what="the time limit")
    slurm.cluster.hasten(job_id)
    _, seen = check_continued(slurm, child, job_id)
    assert f"the time limit of slurm:{job_id} is near" in " ".join(seen.split())
    assert begins(seen)[1] == part(slurm, 1)


@pytest.mark.long
def test_a_script_without_checkpoints_times_out_and_is_not_queued_again(slurm):
    child = slurm.follow("submit", slurm.job("forgets", run_on={"time": "2m"}))
    slurm.wait_for_reports(2, child=child)
    job_id = slurm.running_id()
    code, seen = slurm.end(child, 180)
    trial = slurm.trial()
    assert (code, trial["status"], trial["reason_code"]) == (124, "STOPPED", "timeout"), seen
    assert "saved no checkpoint" in trial["reason"]
    assert slurm.cluster.wait_for(job_id, ["FAILED"]) == "FAILED"
    assert slurm.cluster.field(job_id, "Restarts") == "0"
    assert slurm.tickets() == []


def preempt(slurm, *options):
    """Submit to the higher partition a job that takes both nodes; return its id."""
    given = ["--partition=urgent", "--nodes=2", "--exclusive", *options]
    urgent = slurm.cluster.submit("sleep 600", *given)
    slurm.cluster.wait_for(urgent, "RUNNING")
    return urgent


def check_preempted(slurm, *, nodes=1):
    child = slurm.follow("submit", slurm.job(nodes=nodes))
    slurm.wait_for_reports(3, child=child)
    job_id = slurm.running_id()
    urgent = preempt(slurm)
    slurm.cluster.wait_for(job_id, "PENDING")
    slurm.cluster.do("scancel", urgent)
    slurm.cluster.hasten(job_id)
    trial, seen = check_continued(slurm, child, job_id, nodes=nodes)
    assert "is preempted by another job" in " ".join(seen.split())
    return trial, seen


@pytest.mark.long
def test_a_preempted_job_loses_no_epoch(slurm):
    _, seen = check_preempted(slurm)
    assert begins(seen)[1] == part(slurm, 1)


@pytest.mark.long
@pytest.mark.torchrun
def test_a_preempted_job_on_two_nodes_continues_its_trial(slurm):
    trial, _ = check_preempted(slurm, nodes=2)
    assert trial["host_count"] == 2


@pytest.fixture(scope="module")
def telling_cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("telling")
    with SlurmCluster(folder, send_user_signal=True) as cluster:
        yield cluster


@pytest.fixture
def telling(zeusrun, telling_cluster):
    """Submits to a cluster that sends a preempted job its signal."""
    yield _submits(zeusrun, telling_cluster)
    telling_cluster.clear()


@pytest.mark.long
def test_a_preempted_job_that_is_told_loses_no_epoch(telling):
    _, seen = check_preempted(telling)
    assert begins(seen)[1] == part(telling, 1)


@pytest.mark.long
@pytest.mark.torchrun
def test_a_preempted_job_on_two_nodes_that_is_told_continues_its_trial(telling):
    trial, _ = check_preempted(telling, nodes=2)
    assert trial["host_count"] == 2


@pytest.mark.long
def test_a_job_that_is_preempted_before_its_first_epoch_begins_anew(slurm):
    script = slurm.zeusrun.folder / "early.py"
    script.write_text("import time\nopen('up', 'w').close()\ntime.sleep(600)\n")
    child = slurm.follow("submit", slurm.job(script=str(script)))
    wait_for((slurm.zeusrun.folder / "up").exists)
    job_id = slurm.running_id()
    urgent = preempt(slurm)
    slurm.cluster.wait_for(job_id, "PENDING")
    script.write_text("import zeusrun\nzeusrun.current().report(accuracy=1.0)\n")
    slurm.cluster.do("scancel", urgent)
    slurm.cluster.hasten(job_id)
    code, seen = slurm.end(child)
    assert (code, slurm.trial()["status"]) == (0, "REACHED"), seen
    assert slurm.trial()["allocation"] == f"slurm:{job_id}"


@pytest.mark.long
def test_without_requeue_the_next_submit_continues_a_preempted_run(slurm):
    job = slurm.job(run_on={"requeue": False})
    child = slurm.follow("submit", job)
    slurm.wait_for_reports(3, child=child)
    job_id = slurm.running_id()
    urgent = preempt(slurm)
    code, seen = slurm.end(child)
    assert (code, slurm.trial()["status"]) == (75, "PREEMPTED"), seen
    assert slurm.tickets() == []
    assert slurm.cluster.field(job_id, "Restarts") == "0"
    slurm.cluster.do("scancel", urgent)
    slurm.enough()
    code, seen = slurm.end(slurm.follow("submit", job))
    trial = slurm.trial()
    assert (code, trial["status"], trial["preemptions"]) == (0, "REACHED", 1), seen
    assert trial["allocation"] != f"slurm:{job_id}"
    assert f"{trial['allocation']} " in seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("args", "expected"), [((), (75, "PREEMPTED")), (("forgets",), (3, "LOST"))]
)
def test_without_requeue_a_run_whose_node_died_continues_only_from_a_checkpoint(
    slurm, args, expected
):
    child = slurm.follow("submit", slurm.job(*args, run_on={"requeue": False}))
    slurm.wait_for_reports(3, child=child)
    slurm.cluster.kill_node("n1")
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == expected, seen
    assert trial["reason"].endswith("ended as NODE_FAIL")
    assert trial["epochs"] >= 3
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_node_that_falls_silent_is_found_by_slurm_and_the_trial_goes_on(slurm):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(3, child=child)
    job_id = slurm.running_id()
    slurm.cluster.kill_node("n1", noticed=False)
    slurm.text("repair")
    assert slurm.trial()["status"] == "DISPATCHED"
    wait_for(lambda: slurm.cluster.field(job_id, "Restarts") == "1")
    slurm.cluster.hasten(job_id)
    check_continued(slurm, child, job_id)


@pytest.mark.long
def test_a_controller_that_does_not_respond_ends_nothing(full):
    slurm = full
    job = slurm.job()
    child = slurm.follow("submit", job)
    wait_for(lambda: "is queued (" in slurm.seen(child))
    controller = psutil.Process(slurm.cluster.slurmctld_pid)
    controller.suspend()
    try:
        assert len(slurm.tickets()) == 1
        done = slurm.zeusrun("submit", job, "--overlap", "forbid")
        assert done.returncode == 75, done.stderr
        assert child.poll() is None
    finally:
        controller.resume()
    slurm.enough()
    slurm.free()
    code, seen = slurm.end(child)
    assert code == 0, seen
    assert slurm.trial()["status"] == "REACHED"


@pytest.mark.long
def test_a_submit_from_a_job_of_slurm_is_a_job_of_its_own(slurm):
    slurm.enough()
    words = slurm.zeusrun.argv("submit", slurm.job(), "--detach")
    options = [f"--chdir={slurm.zeusrun.folder}", "--nodes=2", "--output=outer.log"]
    script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
    environment = slurm.zeusrun.environment
    outer = slurm.cluster.do("sbatch", "--parsable", *options, input=script, env=environment)
    slurm.cluster.wait_for(outer, "COMPLETED")
    wait_for(lambda: slurm.trials() and slurm.tickets() == [])
    trial = slurm.trial()
    assert (trial["status"], trial["world_size"]) == ("REACHED", 1), slurm.output()
    assert trial["allocation"] == f"slurm:{int(outer) + 1}"


@pytest.mark.long
def test_cancel_ends_a_preempted_job_that_is_queued_again(slurm):
    child = slurm.follow("submit", slurm.job())
    slurm.wait_for_reports(2, child=child)
    job_id = slurm.running_id()
    preempt(slurm)
    slurm.cluster.wait_for(job_id, "PENDING")
    assert "is CANCELLED" in slurm.text("cancel", "job-1-1")
    code, seen = slurm.end(child)
    assert (code, slurm.trial()["status"]) == (143, "CANCELLED"), seen
    assert slurm.cluster.state(job_id) == "CANCELLED"
    assert slurm.tickets() == []


@pytest.mark.long
def test_a_requeued_job_continues_its_trial_with_the_batch_size_it_was_given(slurm):
    child = slurm.follow("submit", slurm.job(), "--batch-size", "64")
    slurm.wait_for_reports(2, child=child)
    job_id = slurm.running_id()
    slurm.cluster.do("scontrol", "requeue", job_id)
    slurm.cluster.hasten(job_id)
    trial, _ = check_continued(slurm, child, job_id)
    assert trial["global_batch_size"] == 64


@pytest.mark.long
def test_a_job_whose_node_died_continues_its_trial_and_no_other_submit_takes_it(slurm):
    cluster = slurm.cluster
    taken = cluster.submit("sleep 600", "--partition=urgent", "--nodelist=n2", "--exclusive")
    cluster.wait_for(taken, "RUNNING")
    job = slurm.job()
    child = slurm.follow("submit", job)
    slurm.wait_for_reports(3, child=child)
    job_id = slurm.running_id(1)
    cluster.kill_node("n1")
    cluster.wait_for(job_id, "PENDING")
    slurm.enough()
    local = slurm.zeusrun("submit", job, "--set", "run_on=local", "--json")
    assert local.returncode == 0, local.stderr
    assert only_trial(json.loads(local.stdout.splitlines()[-1]))["trial"] == "job-2-1"
    slurm.enough(False)
    slurm.text("repair")
    other = slurm.queue(job)
    assert slurm.trials()[0]["status"] in {"DISPATCHED", "PREEMPTED"}
    cluster.do("scancel", taken)
    cluster.hasten(job_id)
    wait_for(lambda: len(begins(slurm.output())) == 3, what="both jobs")
    slurm.enough()
    code, seen = slurm.end(child)
    assert code == 0, seen
    wait_for(lambda: slurm.tickets() == [])
    trials = {each["trial"]: each for each in slurm.trials()}
    assert {each["status"] for each in trials.values()} == {"REACHED"}
    assert [trials[name]["preemptions"] for name in sorted(trials)] == [1, 0, 0]
    assert trials["job-1-1"]["allocation"] == f"slurm:{job_id}"
    assert trials["job-3-1"]["allocation"] == f"slurm:{other}"


@pytest.mark.long
@pytest.mark.torchrun
@pytest.mark.parametrize("node", ["n1", "n2"])
def test_two_nodes_of_which_one_died_continue_their_trial(slurm, node):
    child = slurm.follow("submit", slurm.job(nodes=2))
    slurm.wait_for_reports(3, child=child)
    job_id = slurm.running_id()
    slurm.cluster.kill_node(node)
    slurm.cluster.wait_for(job_id, "PENDING")
    slurm.cluster.start_node(node)
    slurm.cluster.hasten(job_id)
    trial, _ = check_continued(slurm, child, job_id, nodes=2)
    assert trial["host_count"] == 2


def elastic(slurm, nodes, **changes):
    """Write the job file of an elastic training; it steps twenty times in an epoch."""
    launch = {"nproc_per_node": 2 // nodes}
    sizes = {"batch_size": {"candidates": [48], "default": 48}, "policy": {"name": "fixed"}}
    changes |= {"objective": {"max_epochs": 5000, "target": 10}, "args": ["--pause-s", "0.05"]}
    job = slurm.job(nodes=nodes, script="elastic_steps.py", launch=launch, **sizes, **changes)
    return slurm.follow("submit", job)


@pytest.mark.long
@pytest.mark.torchrun
def test_the_ranks_of_one_node_change_as_on_a_machine_of_its_own(slurm):
    child = elastic(slurm, 1, elastic={"max": 3, "steps": "30:3,400:1,450:0"})
    code, seen = slurm.end(child)
    assert code == 4, seen
    sizes = [change[2] for change in slurm.trial()["world_sizes"]]
    assert sizes == [2, 3, 1]


@pytest.mark.long
@pytest.mark.torchrun
def test_a_node_that_dies_costs_an_elastic_training_its_ranks_alone(slurm):
    child = elastic(slurm, 2, elastic={"max": 2, "steps": "300:0"})
    slurm.wait_for_reports(1, child=child)
    slurm.cluster.kill_node("n2")
    code, seen = slurm.end(child)
    slurm.cluster.start_node("n2")
    assert code == 4, seen
    trial = slurm.trial()
    assert [change[2] for change in trial["world_sizes"]] == [2, 1]
    assert trial["preemptions"] == 0
    assert "1 is lost with host n2" in seen


@pytest.mark.long
@pytest.mark.torchrun
def test_a_rank_that_fails_on_the_second_node_is_the_reason(slurm):
    script = slurm.zeusrun.folder / "fails.py"
    script.write_text(
        "import time, zeusrun\n"
        "run = zeusrun.current()\n"
        "for epoch in run.epochs(default=1000):\n"
        "    time.sleep(0.1)\n"
        "    run.report(accuracy=0.0)\n"
        "    if run.rank == 1 and epoch == 3:\n"
        "        raise ValueError('the data of rank 1 is broken')\n"
    )
    child = slurm.follow("submit", slurm.job(script=str(script), nodes=2))
    code, seen = slurm.end(child)
    trial = slurm.trial()
    assert (code, trial["status"]) == (3, "FAILED"), seen
    assert "the data of rank 1 is broken" in trial["reason"]
    assert slurm.tickets() == []


@pytest.mark.long
def test_overlap_forbid_skips_a_submit_while_another_is_queued(full):
    slurm = full
    job = slurm.job()
    slurm.queue(job)
    done = slurm.zeusrun("submit", job, "--overlap", "forbid")
    assert done.returncode == 75, done.stderr
    assert "is already running" in done.stderr
    assert "this run is skipped" in done.stderr
    assert len(slurm.tickets()) == 1


@pytest.mark.long
def test_overlap_queue_waits_for_the_first_and_skips_the_third(slurm):
    job = slurm.job()
    first = slurm.follow("submit", job)
    slurm.wait_for_reports(2, child=first)
    second = slurm.queue(job, "--overlap", "queue")
    assert slurm.cluster.field(second, "Dependency").startswith("afterany:")
    assert slurm.zeusrun("submit", job, "--overlap", "queue", "--detach").returncode == 75
    assert len(slurm.trials()) == 1
    slurm.enough()
    assert slurm.end(first)[0] == 0
    wait_for(lambda: slurm.tickets() == [])
    assert [each["status"] for each in slurm.trials()] == ["REACHED", "REACHED"]


@pytest.mark.long
def test_overlap_replace_ends_a_running_job(slurm):
    job = slurm.job()
    first = slurm.follow("submit", job)
    slurm.wait_for_reports(2, child=first)
    second = slurm.follow("submit", job, "--overlap", "replace")
    code, seen = slurm.end(first)
    assert code == 75, seen
    slurm.enough()
    code, seen = slurm.end(second)
    assert code == 0, seen
    ended = [(each["status"], each["reason_code"]) for each in slurm.trials()]
    assert ended == [("CANCELLED", "replaced"), ("REACHED", "target_reached")]
    assert slurm.tickets() == []


@pytest.mark.long
def test_overlap_replace_takes_a_job_out_of_the_queue(full):
    slurm = full
    job = slurm.job()
    first = slurm.queue(job)
    second = slurm.queue(job, "--overlap", "replace")
    slurm.cluster.wait_for(first, "CANCELLED")
    slurm.enough()
    slurm.free()
    wait_for(lambda: slurm.tickets() == [])
    assert slurm.trial()["allocation"] == f"slurm:{second}"


@pytest.mark.long
def test_overlap_allow_runs_two_jobs_at_once(slurm):
    job = slurm.job()
    both = [slurm.queue(job) for _ in range(2)]
    wait_for(lambda: len(slurm.trials()) == 2)
    for job_id in both:
        slurm.cluster.wait_for(job_id, "RUNNING")
    slurm.enough()
    wait_for(lambda: slurm.tickets() == [])
    assert {each["status"] for each in slurm.trials()} == {"REACHED"}


@pytest.mark.long
def test_twenty_submits_at_once_are_twenty_runs(slurm):
    slurm.enough()
    job = slurm.job()
    children = [slurm.follow("submit", job, "--detach") for _ in range(20)]
    for child in children:
        code, seen = slurm.end(child)
        assert code == 0, seen
    wait_for(lambda: slurm.tickets() == [], 240)
    trials = slurm.trials()
    assert sorted(each["recurrence"] for each in trials) == list(range(1, 21)), slurm.output()
    assert {each["status"] for each in trials} == {"REACHED"}
    assert "onflict" not in slurm.output()


@pytest.mark.long
def test_an_array_of_twenty_local_submits_is_twenty_runs(slurm):
    slurm.enough()
    words = slurm.zeusrun.argv("submit", slurm.job(), "--set", "run_on=local")
    options = [f"--chdir={slurm.zeusrun.folder}", "--array=1-20", "--output=array.log"]
    script = f"#!/bin/sh\nexec {shlex.join(words)}\n"
    cluster, environment = slurm.cluster, slurm.zeusrun.environment
    array = cluster.do("sbatch", "--parsable", *options, input=script, env=environment)
    wait_for(lambda: not cluster.do("squeue", "--noheader", f"--jobs={array}"), 240)
    log = (slurm.zeusrun.folder / "array.log").read_text()
    trials = slurm.trials()
    assert sorted(each["recurrence"] for each in trials) == list(range(1, 21)), log
    assert {each["status"] for each in trials} == {"REACHED"}
    assert slurm.tickets() == []


def forget(slurm, job_id):
    """Wait until slurmctld has forgotten a job."""
    cluster = slurm.cluster
    gone = lambda: "Invalid job id" in cluster.run("scontrol", "show", "job", job_id).stderr  # noqa: E731
    wait_for(gone, 150, what=f"the end of what slurmctld has of {job_id}")


def lose(slurm, *, cancels):
    """Let the node of a job die, and cancel it or not; return how the trial is recorded."""
    slurm.zeusrun("submit", slurm.job(run_on={"requeue": False}), "--detach")
    slurm.wait_for_reports(2)
    job_id = slurm.running_id()
    slurm.cluster.kill_node("n1", noticed=False)
    if cancels:
        slurm.cluster.do("scancel", job_id)
    slurm.cluster.do("scontrol", "update", "NodeName=n1", "State=DOWN", "Reason=killed")
    forget(slurm, job_id)
    slurm.text("repair")
    return slurm.trial()["status"], slurm.trial()["reason"]


@pytest.mark.long
def test_a_trial_of_a_job_that_slurm_has_forgotten_is_lost(zeusrun, tmp_path):
    with SlurmCluster(tmp_path / "slurm", extra="MinJobAge=2") as cluster:
        slurm = _submits(zeusrun, cluster)
        status, reason = lose(slurm, cancels=True)
        assert (status, reason) == ("LOST", "its launcher died")


@pytest.mark.long
@pytest.mark.parametrize(
    ("cancels", "expected"),
    [(True, ("CANCELLED", "CANCELLED")), (False, ("PREEMPTED", "NODE_FAIL"))],
)
def test_the_accounting_tells_how_a_forgotten_job_ended(zeusrun, tmp_path, cancels, expected):
    with SlurmCluster(tmp_path / "slurm", extra="MinJobAge=2", accounting=True) as cluster:
        slurm = _submits(zeusrun, cluster)
        status, reason = lose(slurm, cancels=cancels)
        assert status == expected[0]
        assert f"ended as {expected[1]}" in reason


@pytest.mark.long
@pytest.mark.parametrize(("target", "code"), [(0.5, 0), (0.9, 4)])
def test_a_schedule_submits_to_slurm_and_records_how_it_ended(slurm, target, code):
    zeusrun = slurm.zeusrun
    slurm.enough()
    job = slurm.job(objective={"target": target, "max_epochs": 3})
    slurm.text("schedule", "add", job, "0 2 * * *", "--no-cron", "--env", "SLURM_CONF")
    make_due(zeusrun)
    done = zeusrun("schedule", "tick", PATH="/usr/bin:/bin", SLURM_CONF="/nowhere")
    assert (done.returncode, done.stdout) == (0, "")

    def ended():
        (record,) = json.loads(slurm.text("schedule", "list", "--json"))
        return [each["exit_code"] for each in record["firings"] if each["result"] == "ended"]

    assert wait_for(ended) == [code]
    (trial,) = slurm.trials()
    log = (zeusrun.home / "schedules" / "job.log").read_text()
    assert f"· {trial['allocation']} " in log
    assert f"job-1-1 {trial['status']}" in log
    assert slurm.tickets() == []


@pytest.mark.long
def test_at_two_in_the_night_a_schedule_submits_to_slurm(slurm, library):  # noqa: F811
    slurm.enough()
    job = slurm.job(schedule={"cron": "0 2 * * *", "tz": "UTC", "catch_up": "none"})
    machine = Machine(slurm.zeusrun, library, PATH=os.environ["PATH"])
    kept = ("--env=FAKE_CLOCK", "--env=SLURM_CONF", "--no-cron")
    machine.call("2026-06-01T12:00:00Z", "schedule", "add", job, *kept)
    machine.tick("2026-06-02T01:59:10Z", "2026-06-02T02:00:10Z", "2026-06-02T02:01:10Z")
    firings, runs = machine.ended("2026-06-02T03:00:00Z")
    assert (firings, runs) == ([("06-02T02:00", "ended")], ["06-02T02:00"])
    assert slurm.trial()["allocation"].startswith("slurm:")
