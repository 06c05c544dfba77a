"""The user's template of the pods: what is merged, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.factories import load_job
from tests.kubernetes_rules import build_job
from tests.kubernetes_schemas import check
from zeusrun.errors import JobFileError
from zeusrun.launcher.queue.admission import Request
from zeusrun.run_on.kubernetes.manifest import build_manifest

ROOT = Path(__file__).resolve().parents[3]
SECTION = {"image": "registry.example/train:1", "resources": {"cpu": 1, "memory": "1Gi"}}
JOIN = {"secrets": {"ZEUSRUN_JOIN_TOKEN": "zeusrun/join-token", "HF_TOKEN": "hf/token"}}
PATCHED = {
    "metadata": {"labels": {"team": "a"}, "annotations": {"example.com/owner": "ada"}},
    "spec": {
        "nodeSelector": {"gpu": "a100"},
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "securityContext": {"fsGroupChangePolicy": "Always", "supplementalGroups": [4000]},
        "volumes": [{"name": "settings", "configMap": {"name": "train"}}],
        "containers": [
            {
                "name": "node",
                "env": [{"name": "NCCL_DEBUG", "value": "INFO"}],
                "volumeMounts": [{"name": "settings", "mountPath": "/settings"}],
            }
        ],
    },
}


@pytest.fixture
def build(tmp_path):
    """Return the manifest of a job with a template: a dictionary, or the text of the file."""

    def make(template, *, nodes=1, section=(), **changes):
        text = template if isinstance(template, str) else yaml.safe_dump(template)
        (tmp_path / "pod.yaml").write_text(text)
        kubernetes = {**SECTION, **JOIN, "template": "pod.yaml", **dict(section)}
        values = {"history": "https://zeus.example", "launch": {"nnodes": nodes}, **changes}
        spec = load_job(tmp_path, run_on={"kubernetes": kubernetes}, **values)
        manifest = build_manifest(spec, Request(), "job-1a2b3c4d")
        assert check(manifest) == []
        return manifest

    return make


def runtime_of(kind="TrainingRuntime", name="zeusrun"):
    documents = yaml.safe_load_all((ROOT / "deploy/kubernetes/zeusrun.yaml").read_text())
    found = next(each for each in documents if each["kind"] == "TrainingRuntime")
    return {**found, "kind": kind, "metadata": {**found["metadata"], "name": name}}


def example():
    """Return the template in docs/kubernetes.md."""
    text = (ROOT / "docs" / "kubernetes.md").read_text()
    return re.search(r"```yaml\n(# pod\.yaml.*?)```", text, re.DOTALL)[1]


def by_name(items, key="name"):
    return {each[key]: each for each in items}


def test_the_example_of_the_docs_is_merged(build):
    manifest = build(example(), section={"home": "zeusrun-home", "volumes": {"/data": "imagenet"}})
    for metadata in (manifest["metadata"], manifest["spec"]["template"]["metadata"]):
        assert metadata["annotations"] == {"example.com/cost-centre": "vision"}
        assert metadata["labels"] == {
            "app.kubernetes.io/managed-by": "zeusrun",
            "zeusrun.io/job": "job",
            "kueue.x-k8s.io/queue-name": "team-a",
        }
    assert manifest["metadata"]["name"] == "job-1a2b3c4d"
    pod = manifest["spec"]["template"]["spec"]
    assert (pod["priorityClassName"], pod["restartPolicy"]) == ("training", "Never")
    assert pod["topologySpreadConstraints"][0]["maxSkew"] == 1
    assert [each["name"] for each in pod["initContainers"]] == ["fetch"]
    (node,) = pod["containers"]
    assert node["command"] == ["zeusrun", "inside", "kubernetes"]
    mounts = by_name(node["volumeMounts"], "mountPath")
    assert [*mounts] == ["/zeusrun", "/tmp", "/dev/shm", "/data", "/cache", "/settings"]
    volumes = by_name(pod["volumes"])
    assert volumes["settings"] == {"name": "settings", "configMap": {"name": "train-settings"}}
    assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "8Gi"}
    assert volumes["home"]["persistentVolumeClaim"] == {"claimName": "zeusrun-home"}
    names = [each["name"] for each in node["env"]]
    assert names[0] == "ZEUSRUN_JOB"  # before what Kubernetes could replace in it
    assert names[-1] == "NCCL_DEBUG"


def test_what_zeusrun_only_proposes_can_be_changed(build):
    container = {"name": "node", "securityContext": {"readOnlyRootFilesystem": False}}
    env = [{"name": "HF_TOKEN", "value": "none"}]
    changes = {"enableServiceLinks": True, "securityContext": {"runAsUser": 7}}
    pod = build({"spec": {**changes, "containers": [{**container, "env": env}]}})
    pod = pod["spec"]["template"]["spec"]
    assert pod["enableServiceLinks"] is True
    assert (pod["securityContext"]["runAsUser"], pod["securityContext"]["runAsGroup"]) == (7, 1000)
    (node,) = pod["containers"]
    assert node["securityContext"]["readOnlyRootFilesystem"] is False
    assert node["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert [each for each in node["env"] if each["name"] == "HF_TOKEN"] == env


def test_a_label_may_be_called_as_a_list_of_a_container(build):
    spec = {"nodeSelector": {"env": "prod", "volumes": "fast"}}
    manifest = build({"metadata": {"labels": {"env": "prod", "containers": "a"}}, "spec": spec})
    assert manifest["metadata"]["labels"].items() >= {"env": "prod", "containers": "a"}.items()
    assert manifest["spec"]["template"]["spec"]["nodeSelector"] == spec["nodeSelector"]


def test_a_sidecar_runs_beside_the_training(build):
    sidecar = {"name": "proxy", "image": "proxy:1", "restartPolicy": "Always"}
    manifest = build({"spec": {"initContainers": [sidecar], "containers": [{"name": "node"}]}})
    pod = manifest["spec"]["template"]["spec"]
    assert pod["initContainers"] == [sidecar]
    assert len(pod["containers"]) == 1


NODE = "spec.containers[node]"
OWNED = {
    "metadata.name": {"metadata": {"name": "mine"}},
    "metadata.namespace": {"metadata": {"namespace": "ml"}},
    "metadata.labels.zeusrun.io/job": {"metadata": {"labels": {"zeusrun.io/job": "a"}}},
    "spec.restartPolicy": {"spec": {"restartPolicy": "OnFailure"}},
    "spec.terminationGracePeriodSeconds": {"spec": {"terminationGracePeriodSeconds": 5}},
    "spec.activeDeadlineSeconds": {"spec": {"activeDeadlineSeconds": 5}},
    "spec.hostname": {"spec": {"hostname": "a"}},
    "spec.subdomain": {"spec": {"subdomain": "a"}},
    "spec.volumes[home]": {"spec": {"volumes": [{"name": "home", "hostPath": {"path": "/a"}}]}},
    f"{NODE}.image": {"spec": {"containers": [{"name": "node", "image": "a"}]}},
    f"{NODE}.command": {"spec": {"containers": [{"name": "node", "command": ["sh"]}]}},
    f"{NODE}.args": {"spec": {"containers": [{"name": "node", "args": ["-c"]}]}},
    f"{NODE}.resources": {"spec": {"containers": [{"name": "node", "resources": {}}]}},
    **{
        f"{NODE}.env[{each}]": {"spec": {"containers": [{"name": "node", "env": [{"name": each}]}]}}
        for each in ("HOME", "USER", "ZEUSRUN_JOB", "ZEUSRUN_TOKEN")
    },
}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("name", OWNED)
def test_what_zeusrun_owns_is_refused_by_name(build, tmp_path, name, nodes):
    with pytest.raises(JobFileError) as refused:
        build(OWNED[name], nodes=nodes)
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}/pod.yaml must not contain {name}: zeusrun sets that by its")
    assert "\n" not in text


def test_all_that_zeusrun_owns_is_named_at_once(build):
    pod = {"restartPolicy": "Always", "containers": [{"name": "node", "image": "a", "args": []}]}
    with pytest.raises(JobFileError) as refused:
        build({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "a"}, "spec": pod})
    named = re.search("must not contain (.*?): ", str(refused.value))[1].split(", ")
    assert {*named} == {"metadata.name", "spec.restartPolicy", f"{NODE}.image", f"{NODE}.args"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "the file holds a list"),
        ("spec: [", "not usable YAML"),
        ("spec: {a: 1, a: 2}", "the key 'a' is given twice"),
        ("spec: {containers: [{image: a}]}", "must have the form of a Pod"),
        ("spec: {containers: {name: a}}", "must have the form of a Pod"),
        ("spec: {containers: [node]}", "must have the form of a Pod"),
        ("spec: {volumes: [{emptyDir: {}}]}", "must have the form of a Pod"),
        ("spec: {volumes: [{name: [a]}]}", "must have the form of a Pod"),
        (
            "spec: {containers: [{name: node, volumeMounts: [{name: a}]}]}",
            "must have the form of a Pod",
        ),
        ("spec: {containers:}", "must have the form of a Pod"),
        ("{kind: Deployment, spec: {nodeSelector: {a: b}}}", "must have the form of a Pod"),
        ("{kind: [Pod], spec: {nodeSelector: {a: b}}}", "must have the form of a Pod"),
        ("spec: 3", "must have the form of a Pod"),
        ("spec: {containers: [{name: node, env: {A: b}}]}", "must have the form of a Pod"),
        ("{kind: Pod, metadata: [a], spec: {}}", "must have the form of a Pod"),
        ("nodeSelector: {gpu: a100}", "must have the form of a Pod"),
        ("{metadata: {}, spec: {}, status: {}}", "must have the form of a Pod"),
        (
            "spec: {containers: [{name: a, env: [{name: A, value: 'https://me:sekret@b'}]}]}",
            "secret",
        ),
    ],
)
def test_what_is_no_template_is_one_sentence(build, tmp_path, text, said):
    with pytest.raises(JobFileError) as refused:
        build(text)
    assert str(refused.value).startswith(f"{tmp_path}/pod.yaml")
    assert said in str(refused.value)
    assert "sekret" not in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_template_that_is_missing_is_told_by_dry_run(zeusrun):
    section = {"kubernetes": {**SECTION, "template": "pods/none.yaml"}}
    job = zeusrun.job(run_on=section, history="https://zeus.example")
    done = zeusrun("submit", job, "--dry-run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert f"{zeusrun.folder}/pods/none.yaml: there is no such file" in done.stderr


# Several nodes


def test_the_pods_of_a_train_job_get_what_a_train_job_can_set(build):
    manifest = build(PATCHED, nodes=2)
    assert manifest["metadata"]["labels"]["team"] == "a"
    made = build_job(manifest, runtime_of())["spec"]["template"]
    assert made["metadata"]["annotations"] == {"example.com/owner": "ada"}
    pod = made["spec"]
    assert pod["nodeSelector"] == {"gpu": "a100"}
    assert pod["securityContext"]["supplementalGroups"] == [4000]
    assert pod["securityContext"]["runAsNonRoot"] is True
    (node,) = pod["containers"]
    assert by_name(node["env"])["NCCL_DEBUG"]["value"] == "INFO"
    assert "/settings" in by_name(node["volumeMounts"], "mountPath")
    assert by_name(pod["volumes"])["settings"]["configMap"] == {"name": "train"}


OF_RUNTIME = {
    "spec.priorityClassName": {"priorityClassName": "high"},
    "spec.runtimeClassName": {"runtimeClassName": "nvidia"},
    "spec.schedulerName": {"schedulerName": "volcano"},
    "spec.topologySpreadConstraints": {"topologySpreadConstraints": []},
    "spec.initContainers": {"initContainers": [{"name": "a", "image": "b"}]},
    "spec.containers[proxy]": {"containers": [{"name": "proxy", "image": "b"}]},
    f"{NODE}.ports": {"containers": [{"name": "node", "ports": []}]},
    f"{NODE}.workingDir": {"containers": [{"name": "node", "workingDir": "/a"}]},
}


@pytest.mark.parametrize("name", OF_RUNTIME)
def test_what_a_train_job_cannot_set_is_refused_by_name_with_the_way_out(build, name):
    with pytest.raises(JobFileError) as refused:
        build({"spec": OF_RUNTIME[name]}, nodes=2)
    text = str(refused.value)
    assert f"pod.yaml contains {name}: the TrainJob" in text  # and nothing that is within it
    assert text.endswith("name that in run_on.kubernetes.runtime")


@pytest.mark.parametrize("name", OF_RUNTIME)
def test_it_reaches_the_pods_by_a_runtime_of_the_user(build, name):
    """As docs/kubernetes.md says, zeusrun's own with more in the specification of its pods."""
    runtime = runtime_of("ClusterTrainingRuntime", "gpu")
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    pod = job["template"]["spec"]["template"]["spec"]
    more = OF_RUNTIME[name]
    inner = more.pop("containers", [])
    pod |= more
    for each in inner:
        if each["name"] == "node":
            pod["containers"][0] |= each
        else:
            pod["containers"].append(each)
    manifest = build(PATCHED, nodes=2, section={"runtime": "ClusterTrainingRuntime/gpu"})
    assert manifest["spec"]["runtimeRef"] == {
        "apiGroup": "trainer.kubeflow.org", "kind": "ClusterTrainingRuntime", "name": "gpu",
    }  # fmt: skip
    made = build_job(manifest, runtime)["spec"]["template"]["spec"]
    assert more.items() <= made.items()
    assert [each["name"] for each in made["containers"]] == [
        "node", *(each["name"] for each in inner if each["name"] != "node"),
    ]  # fmt: skip
    assert made["containers"][0]["command"] == ["zeusrun", "inside", "kubernetes"]


@pytest.mark.parametrize(
    ("runtime", "reference"),
    [
        ("zeusrun", ("TrainingRuntime", "zeusrun")),
        ("gpu.v2", ("TrainingRuntime", "gpu.v2")),
        ("TrainingRuntime/gpu", ("TrainingRuntime", "gpu")),
        ("ClusterTrainingRuntime/torch", ("ClusterTrainingRuntime", "torch")),
    ],
)
def test_the_runtime_is_named_with_its_kind(build, runtime, reference):
    found = build(PATCHED, nodes=2, section={"runtime": runtime})["spec"]["runtimeRef"]
    assert (found["kind"], found["name"]) == reference


# The time limit


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_time_limit_becomes_a_deadline_that_no_right_run_meets(build, nodes):
    changes = {"timeout_s": 1000.5, "attempts": 2}
    manifest = build(PATCHED, nodes=nodes, **changes)
    # Two attempts and three pods that are lost: each the limit, 2 s + 30 s to end, 600 s to start.
    assert manifest["spec"]["activeDeadlineSeconds"] == 5 * (1001 + 32 + 600)
    assert "activeDeadlineSeconds" not in build(PATCHED, nodes=nodes)["spec"]
    assert "activeDeadlineSeconds" not in str(manifest["spec"].get("template"))
