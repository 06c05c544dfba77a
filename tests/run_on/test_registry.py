"""Jobs of several schedulers, asked and changed by their names."""

from __future__ import annotations

import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from zeusrun.errors import LaunchError, UsageError
from zeusrun.run_on import registry
from zeusrun.run_on.kubernetes import client as kubernetes
from zeusrun.run_on.kubernetes.client import KubernetesJob
from zeusrun.run_on.registry import (
    cancel_job,
    describe_job,
    end_job,
    find_ended,
    interrupt_job,
    is_job,
    is_remote,
    read_jobs,
    read_states,
)

POD = "kubernetes:ml/digits-1a2b3"
OTHER = "kubernetes:ml/digits-4c5d6"
STRANGE = ["k8s:1", "nomad:ml/a", "slurm", "slurm:--user=me", "kubernetes:a", "digits-1-1", ""]
RUNNING, QUEUED = KubernetesJob("RUNNING"), KubernetesJob("QUEUED")


@pytest.fixture
def cluster(slurm, monkeypatch):
    """A Kubernetes beside Slurm, of which a test says what it has; it notes what it is asked."""

    class Cluster:
        jobs: dict[str, KubernetesJob]
        asked: list[list[str]]
        cancels = True

    def read(names):
        Cluster.asked.append(sorted(names))
        return {name: Cluster.jobs[name] for name in names if name in Cluster.jobs}

    def cancel(name):
        if Cluster.cancels:
            Cluster.jobs[name] = KubernetesJob("GONE")

    Cluster.jobs, Cluster.asked = {}, []
    monkeypatch.setattr(kubernetes, "read_jobs", read)
    monkeypatch.setattr(kubernetes, "cancel_job", cancel)
    monkeypatch.setattr(registry, "_AGAIN_S", 0.01)
    return Cluster


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("kubernetes:ml/digits-1a2b3", True),
        ("kubernetes:ml/a.b", True),
        ("kubernetes:" + "n" * 63 + "/" + "j" * 63, True),
        ("kubernetes:ml/" + "j" * 64, False),
        ("kubernetes:ml/Digits", False),
        ("kubernetes:ml/a/b", False),
        ("kubernetes:ml/a\n", False),
        ("kubernetes:/a", False),
        ("kubernetes:ml/", False),
        ("kubernetes:ml/.", False),  # the address of all jobs
        ("kubernetes:ml/..", False),
        ("kubernetes:ml/../a", False),
        ("kubernetes:-/a", False),
        ("slurm:ml/a", False),
        *((name, False) for name in STRANGE),
    ],
)
def test_a_job_of_kubernetes_has_a_namespace_and_a_name(name, found):
    assert is_job(name) is found


def test_only_the_files_of_pods_are_elsewhere():
    assert is_remote(POD)
    assert not any(is_remote(name) for name in (None, "slurm:1", *STRANGE[:4]))


def test_each_scheduler_is_asked_once_and_for_its_own_jobs(slurm, cluster):
    names = [slurm.put("1"), slurm.put("2", "PENDING"), POD, OTHER]
    cluster.jobs = {POD: RUNNING, OTHER: QUEUED}
    found = read_jobs([*names, *STRANGE, *names])
    assert {name: job.state for name, job in found.items()} == {
        "slurm:1": "RUNNING",
        "slurm:2": "PENDING",
        POD: "RUNNING",
        OTHER: "QUEUED",
    }
    assert cluster.asked == [[POD, OTHER]]
    assert [call[3] for call in slurm.calls()] == ["--jobs=1,2"]


def test_a_scheduler_without_jobs_is_not_asked(slurm, cluster):
    assert read_jobs(STRANGE) == {}
    assert read_jobs([slurm.put("1")]).keys() == {"slurm:1"}
    assert cluster.asked == []


def test_one_scheduler_answers_while_another_does_not(slurm, cluster):
    slurm.fail("squeue")
    cluster.jobs = {POD: RUNNING}
    assert read_jobs([slurm.put("1"), POD]) == {POD: RUNNING}


def test_a_pod_runs_without_a_lock_here_and_a_batch_step_has_one(slurm, cluster):
    """So a job that Slurm runs, and whose ticket nobody holds, is about to begin."""
    cluster.jobs = {POD: RUNNING, OTHER: KubernetesJob("Complete")}
    names = [slurm.put("1"), slurm.put("2", "COMPLETED"), POD, OTHER, "kubernetes:ml/unknown"]
    assert read_states(names) == {
        "slurm:1": "queued",
        "slurm:2": "ended",
        POD: "running",
        OTHER: "ended",
        "kubernetes:ml/unknown": "queued",
    }
    assert find_ended(names) == {"slurm:2", OTHER}


def test_a_job_of_an_unknown_scheduler_has_not_ended(slurm, cluster):
    assert read_states(STRANGE) == dict.fromkeys(STRANGE, "queued")
    assert find_ended(STRANGE) == set()
    assert (slurm.calls(), cluster.asked) == ([], [])


def test_a_state_is_kept_for_some_seconds_or_until_its_job_is_cancelled(
    slurm, cluster, monkeypatch
):
    cluster.jobs = {POD: RUNNING, OTHER: RUNNING}
    for _ in range(3):
        assert find_ended([POD, OTHER]) == set()
    assert cluster.asked == [[POD, OTHER]]
    cancel_job(POD)
    assert find_ended([POD, OTHER]) == {POD}
    assert cluster.asked[1:] == [[POD]]
    monkeypatch.setattr(registry, "_KEPT_S", 0.0)
    del cluster.jobs[POD]
    assert read_states([POD, OTHER]) == {POD: "queued", OTHER: "running"}


def test_a_job_that_ends_is_waited_for(slurm, cluster):
    cluster.jobs = {POD: RUNNING}
    end_job(POD, 10.0)
    end_job(slurm.put("1"), 10.0)
    assert find_ended([POD, "slurm:1"]) == {POD, "slurm:1"}
    assert slurm.calls("scancel") == [["scancel", "1"]]


def test_a_job_has_its_grace_period_to_end(cluster, monkeypatch):
    times_s = iter(range(0, 1000, 10))
    clock = SimpleNamespace(monotonic=lambda: next(times_s), sleep=lambda _s: None)
    monkeypatch.setattr(registry, "time", clock)
    cluster.cancels = False
    cluster.jobs = {POD: replace(RUNNING, pod=SimpleNamespace(grace_s=25.0))}
    with pytest.raises(LaunchError, match="does not end"):
        end_job(POD, 15.0)
    assert next(times_s) == 60  # not at 40 s, when both have just passed


@pytest.mark.parametrize(
    ("name", "how"),
    [
        ("slurm:1", "scontrol show job 1"),
        (POD, "kubectl -n ml get jobs,trainjobs,pods"),
    ],
)
@pytest.mark.parametrize("responds", [True, False])
def test_a_job_that_does_not_end_says_which_command_tells_why(slurm, cluster, name, how, responds):
    slurm.put("1", "COMPLETING")
    slurm.fail("scancel", "scancel: error: Kill job error on job id 1: Invalid job id specified")
    cluster.cancels = False
    if responds:
        cluster.jobs = {POD: RUNNING}
    else:
        slurm.fail("squeue")
    with pytest.raises(LaunchError, match=rf"^{name} does not end; `{re.escape(how)}` says why$"):
        end_job(name, 0.05)


@pytest.mark.parametrize("name", STRANGE)
def test_nothing_is_done_to_a_job_of_an_unknown_scheduler(slurm, cluster, name):
    for act in (cancel_job, interrupt_job, lambda name: end_job(name, 0.0)):
        with pytest.raises(LaunchError, match=f"^{name} names no job of a scheduler that this"):
            act(name)
    text = f"{name}: this version of zeusrun does not know its scheduler"
    assert describe_job(name, None) == text
    assert (slurm.calls(), cluster.asked) == ([], [])


def test_a_job_is_described_in_the_words_of_its_scheduler(slurm, cluster):
    queued = KubernetesJob("QUEUED", cause="no  GPU")
    assert describe_job(POD, queued) == f"{POD} is queued (no GPU)"
    assert describe_job(POD, None) == f"{POD}: Kubernetes does not respond"
    (job,) = read_jobs([slurm.put("1")]).values()
    assert describe_job("slurm:1", job) == "slurm:1 runs on n1"
    for name, known in (("slurm:1", KubernetesJob("GONE")), (POD, RUNNING), (POD, None)):
        registry.check_exists(name, known)
    with pytest.raises(UsageError, match=f"^{POD} does not exist in this cluster"):
        registry.check_exists(POD, KubernetesJob("GONE"))
