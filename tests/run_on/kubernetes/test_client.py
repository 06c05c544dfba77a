"""What zeusrun reads of the answers of Kubernetes, and what it says if there is none."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
from pathlib import Path

import pytest

from tests.contracts.kubernetes import KubernetesContract, library
from tests.fake_kubernetes import IMAGE
from tests.kubernetes import build_job, check_strictly, forget_cluster, write_kubeconfig
from zeusrun.errors import UsageError
from zeusrun.run_on.kubernetes.client import (
    GONE,
    ApiError,
    KubernetesJob,
    NoClusterError,
    cancel_job,
    create_job,
    describe_job,
    read_job,
    read_jobs,
    watch_pod,
)

NAME = "kubernetes:ml/digits-1a2b3"
JOB, TRAIN_JOB = "/jobs/digits-1a2b3", "/trainjobs/digits-1a2b3"
PODS = "/namespaces/ml/pods"
REAL, REAL_IMAGE = "ZEUSRUN_TEST_KUBECONFIG", "ZEUSRUN_TEST_IMAGE"


class TestStandIn(KubernetesContract):
    @pytest.fixture
    def image(self, used_cluster):
        used_cluster.validate = check_strictly
        return IMAGE

    @pytest.fixture
    def evict(self, used_cluster):
        return used_cluster.evict


@pytest.mark.long
class TestCluster(KubernetesContract):
    @pytest.fixture
    def image(self, kubeconfig):
        if REAL not in os.environ:
            pytest.skip(
                f"set {REAL} to a kubeconfig; the tests create jobs in its current namespace"
            )
        kubeconfig(os.path.abspath(os.environ[REAL]))
        return os.environ.get(REAL_IMAGE, "busybox")

    @pytest.fixture
    def evict(self, core):
        context = library.config.list_kube_config_contexts(os.environ["KUBECONFIG"])[1]["context"]
        namespace = context.get("namespace") or "default"

        def evict(pod):
            metadata = {"name": pod, "namespace": namespace}
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
            core.create_namespaced_pod_eviction(pod, namespace, body)

        return evict


def pod(name="digits-1a2b3-x", created="2025-06-01T12:00:00Z", index=None, scheduled=None, **state):
    """Return a pod as the API lists it; ``state`` is that of its container."""
    annotations = {} if index is None else {"batch.kubernetes.io/job-completion-index": index}
    metadata = {"name": name, "uid": f"uid-{name}", "creationTimestamp": created}
    status = {}
    if scheduled is not None:
        status["conditions"] = [{"type": "PodScheduled", "status": "False", **scheduled}]
    if state:
        status["containerStatuses"] = [{"name": "node", "state": state}]
    spec = {} if scheduled is not None else {"nodeName": "node-1"}
    return {"metadata": {**metadata, "annotations": annotations}, "spec": spec, "status": status}


def job(*conditions, **metadata):
    """Return a job as the API has it; ``conditions`` are types, or pairs with a message."""
    found = [each if isinstance(each, tuple) else (each, None) for each in conditions]
    told = [{"type": kind, "status": "True", "message": text} for kind, text in found]
    return {"metadata": metadata, "status": {"conditions": told}}


RUNNING = {"running": {"startedAt": "2025-06-01T12:00:00Z"}}
SINCE = {"deletionTimestamp": "2025-06-01T12:00:00Z"}


def ended(code, reason="Error"):
    return {"terminated": {"exitCode": code, "reason": reason}}


def waiting(reason, message=None):
    return {"waiting": {"reason": reason} | ({"message": message} if message else {})}


CASES = [
    # the job, its pods, its state, and what a user reads
    (job(), [], "QUEUED", "is queued"),
    (job(("Suspended", "Job suspended")), [], "QUEUED", "is queued (Job suspended)"),
    (job(), [pod(scheduled={})], "QUEUED", "is queued"),
    (
        job(),
        [pod(scheduled={"reason": "Unschedulable", "message": "0/1 nodes\nare available."})],
        *("QUEUED", "is queued (Unschedulable: 0/1 nodes are available.)"),
    ),
    (
        job(),
        [pod(**waiting("ContainerCreating"))],
        *("QUEUED", "is queued (ContainerCreating)"),
    ),
    (
        job(),
        [pod(**waiting("ImagePullBackOff", 'Back-off pulling image "no:1"'))],
        *("QUEUED", 'is queued (ImagePullBackOff: Back-off pulling image "no:1")'),
    ),
    (job(), [pod(**RUNNING)], "RUNNING", "runs on node-1"),
    (job(), [pod(**ended(75))], "RUNNING", "runs on node-1"),  # it may get another pod
    (job("SuccessCriteriaMet"), [pod(**ended(0))], "RUNNING", "runs on node-1"),
    (job("Complete"), [pod(**ended(0, "Completed"))], "Complete", "is Complete"),
    (
        job("FailureTarget", ("Failed", "Container node failed with exit code 3")),
        [pod(**ended(3))],
        *("Failed", "is Failed (Container node failed with exit code 3)"),
    ),
    (job("Failed"), [], "Failed", "is Failed"),  # somebody has deleted the pod
    (job(**SINCE), [pod(**RUNNING)], "DELETED", "is being deleted"),  # it saves
    (job("Failed", **SINCE), [pod(**RUNNING)], "DELETED", "is being deleted"),
    (None, [], GONE, "does not exist"),
]


@pytest.mark.parametrize("kind", ["Job", "TrainJob"])
@pytest.mark.parametrize("case", CASES)
def test_a_job_is_read_with_the_pod_of_its_head(answers, kind, case):
    found, pods, state, words = case
    if found is not None:
        answers.put(JOB if kind == "Job" else TRAIN_JOB, found)
    answers.put(PODS, {"items": pods})
    read = read_job(NAME)
    assert (read.state, describe_job(NAME, read)) == (state, f"{NAME} {words}")
    assert read.has_ended is (state in {"Complete", "Failed", GONE})
    assert read.kind == (kind if found else "Job")
    label = "batch.kubernetes.io/job-name" if kind == "Job" else "jobset.sigs.k8s.io/jobset-name"
    selectors = [
        options.get("labelSelector") for _, path, options in answers.asked if path[-5:] == "/pods"
    ]
    assert selectors == ([f"{label}=digits-1a2b3"] if found else [])


def test_only_the_newest_pod_of_the_head_counts(answers):
    answers.put(TRAIN_JOB, job())
    lost = pod("a-0-x", "2025-06-01T12:00:00Z", "0", **ended(137, "OOMKilled"))
    new = pod("a-0-y", "2025-06-01T12:30:00Z", "0", **waiting("ContainerCreating"))
    other = pod("a-1-y", "2025-06-01T12:40:00Z", "1", **RUNNING)
    answers.put(PODS, {"items": [new, other, lost]})
    found = read_job(NAME)
    assert (found.state, found.pod.name, found.cause) == ("QUEUED", "a-0-y", "ContainerCreating")
    answers.put(PODS, {"items": [other, lost]})
    found = read_job(NAME).pod
    assert (found.name, found.exit_code, found.end_cause) == ("a-0-x", 137, "OOMKilled")
    assert (found.begun, found.uid) == (True, "uid-a-0-x")


def event(kind, found):
    return json.dumps({"type": kind, "object": found}).encode() + b"\n"


def test_a_watch_yields_the_head_and_ends_with_what_is_no_change(answers):
    head, other = pod("a-0-x", index="0", **RUNNING), pod("a-1-x", index="1", **RUNNING)
    begun = pod("a-0-y", index="0")
    events = [event("ADDED", begun), event("ADDED", other), event("MODIFIED", head)]
    answers.put(PODS, [*events, event("DELETED", head), event("ADDED", begun)])
    assert [each.name for each in watch_pod(NAME, "TrainJob", 7)] == ["a-0-y", "a-0-x"]
    (options,) = [options for _, _, options in answers.asked]
    assert options["labelSelector"] == "jobset.sigs.k8s.io/jobset-name=digits-1a2b3"
    assert (options["watch"].lower(), options["timeoutSeconds"]) == ("true", "7")
    expired = {"kind": "Status", "code": 410, "message": "too old resource version"}
    answers.put(PODS, [event("ERROR", expired)])
    assert list(watch_pod(NAME, "TrainJob", 7)) == []


def test_a_watch_that_is_cut_off_within_an_event_ends(answers):
    found = event("ADDED", pod(**RUNNING))
    answers.put(PODS, [found, found[:40]], cut=True)
    assert [each.begun for each in watch_pod(NAME, "Job", 7)] == [True]


@pytest.mark.parametrize("code", [401, 403, 500])
def test_an_error_is_told_in_the_words_of_kubernetes(answers, code):
    answers.refuse(JOB, code, 'jobs.batch "digits-1a2b3" is forbidden: User "ada" cannot get')
    with pytest.raises(ApiError) as refused:
        read_job(NAME)
    assert refused.value.code == code
    assert str(refused.value) == 'jobs.batch "digits-1a2b3" is forbidden: User "ada" cannot get'
    assert refused.value.exit_code == 5
    assert read_jobs([NAME]) == {}
    assert describe_job(NAME, None) == f"{NAME}: Kubernetes does not respond"


@pytest.mark.parametrize("body", [b"404 page not found\n", b'["no object"]', b"{}", b""])
def test_an_error_that_is_no_status_has_the_words_of_http(answers, body):
    answers.put(JOB, [body][: len(body)], 500)
    with pytest.raises(ApiError, match="Internal Server Error") as refused:
        read_job(NAME)
    assert refused.value.code == 500


def test_without_kubeflow_trainer_an_unknown_job_is_gone(answers):
    answers.put(TRAIN_JOB, [b"404 page not found\n"], 404)
    assert read_jobs([NAME]) == {NAME: KubernetesJob(GONE)}
    cancel_job(NAME)
    assert [verb for verb, _, _ in answers.asked] == ["GET", "GET", "DELETE", "DELETE"]


def test_each_job_is_read_once_whatever_the_others_are(answers):
    others = [f"kubernetes:ml/other-{number}" for number in range(2)]
    answers.put(JOB, job("Complete"))
    answers.put(PODS, {"items": []})
    answers.refuse("/jobs/other-0", 403, "forbidden")
    found = read_jobs([NAME, *others, NAME])
    assert {name: each.state for name, each in found.items()} == {NAME: "Complete", others[1]: GONE}


def test_a_server_that_does_not_respond_is_asked_once_for_all_jobs(answers, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    read_jobs([NAME])
    forget_cluster()
    path = write_kubeconfig(Path(os.environ["KUBECONFIG"]), f"http://127.0.0.1:{port}")
    tried = []
    real = socket.socket.connect
    monkeypatch.setattr(
        socket.socket, "connect", lambda own, place: tried.append(place) or real(own, place)
    )
    assert read_jobs([f"kubernetes:ml/a-{number}" for number in range(20)]) == {}
    assert path.exists()
    assert 1 <= len(tried) <= 2  # once more after an error
    with pytest.raises(ApiError) as silent:
        read_job(NAME)
    assert str(silent.value) == f"http://127.0.0.1:{port} does not respond: Connection refused"
    assert silent.value.code is None


class TestKubeconfig:
    """What kubectl reads, and what is wrong with it."""

    @pytest.fixture
    def config(self, kubeconfig, tmp_path):
        path = tmp_path / "config"

        def write(text):
            path.write_text(text)
            kubeconfig(path)
            return path

        kubeconfig(path)
        return write

    @pytest.mark.usefixtures("config")
    def test_none(self):
        with pytest.raises(NoClusterError) as missing:
            create_job(build_job("true", "a"))
        assert str(missing.value) == (
            f"kubectl has no cluster here: there is no file {os.environ['KUBECONFIG']}. Set "
            "KUBECONFIG, or train on this machine with --set run_on=local"
        )
        assert missing.value.exit_code == 5

    def test_without_a_cluster_jobs_are_unknown_but_in_a_pod_they_count_as_ended(
        self, config, monkeypatch
    ):
        """A pod has no rights; a shell without KUBECONFIG may have jobs that run."""
        assert read_jobs([NAME]) == {}
        config("")
        assert read_jobs([NAME]) == {}
        monkeypatch.setenv("ZEUSRUN_ALLOCATION", "kubernetes:ml/other")
        assert read_jobs([NAME]) == {NAME: KubernetesJob(GONE)}

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "kind: Config\n",
            "current-context: nowhere\nclusters: []\nusers: []\ncontexts: []\n",
            "current-context: a\ncontexts: [{name: a, context: {cluster: b, user: c}}]\n",
            "clusters: [",
            "- a\n",
            "a text\n",
        ],
    )
    def test_broken(self, config, text):
        config(text)
        with pytest.raises(NoClusterError, match="kubectl has no cluster here: "):
            create_job(build_job("true", "a"))

    def test_a_folder(self, kubeconfig, tmp_path):
        kubeconfig(tmp_path)
        with pytest.raises(NoClusterError, match="kubectl has no cluster here: "):
            read_job(NAME)

    def test_the_namespace_of_the_context_is_that_of_jobs_without_one(
        self, answers, kubeconfig, tmp_path
    ):
        answers.put("/jobs", {}, 201, verb="POST")
        assert create_job(build_job("true", "a")) == "kubernetes:ml/a"
        kubeconfig(write_kubeconfig(tmp_path / "config", answers.url, None))
        assert create_job(build_job("true", "a")) == "kubernetes:default/a"
        manifest = build_job("true", "a")
        manifest["metadata"]["namespace"] = "other"
        assert create_job(manifest) == "kubernetes:other/a"
        paths = [path.split("/")[-2] for _, path, _ in answers.asked]
        assert paths == ["ml", "default", "other"]

    def test_a_missing_package_is_told_with_what_installs_it(self, answers, monkeypatch):
        monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
        with pytest.raises(UsageError, match=r"needs kubernetes; install zeusrun with its extra"):
            read_job(NAME)
        assert read_jobs([NAME]) == {}
        assert answers.asked == []


def test_a_field_that_kubernetes_does_not_know_is_never_dropped(answers):
    answers.put("/jobs", {}, 201, verb="POST")
    create_job(build_job("true", "a"))
    (options,) = [options for _, _, options in answers.asked]
    assert options == {"fieldValidation": "Strict"}


@pytest.mark.parametrize("kind", ["Job", "TrainJob"])
def test_a_job_is_deleted_in_the_foreground(answers, kind):
    answers.put(JOB if kind == "Job" else TRAIN_JOB, {}, verb="DELETE")
    cancel_job(NAME)
    assert len(answers.asked) == (1 if kind == "Job" else 2)
    verb, path, options = answers.asked[-1]
    assert (verb, path.split("/")[-2]) == ("DELETE", f"{kind.lower()}s")
    assert options == {"propagationPolicy": "Foreground"}
