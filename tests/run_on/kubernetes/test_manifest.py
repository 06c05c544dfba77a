"""Manifests: every shape of a job file becomes a right object, and arrives in the pod unchanged."""

from __future__ import annotations

import json
import re
import string
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.factories import load_job
from tests.kubernetes_rules import build_job, check_pod
from tests.kubernetes_schemas import FOLDER, check, find_crd, needs_crds
from zeusrun.errors import JobFileError, UsageError
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.yaml_reader import write_job_yaml
from zeusrun.launcher.queue.admission import Request
from zeusrun.run_on.kubernetes import submit as pods
from zeusrun.run_on.kubernetes.manifest import build_manifest, new_name
from zeusrun.run_on.registry import is_job

DEPLOY = Path(__file__).resolve().parents[3] / "deploy" / "kubernetes" / "zeusrun.yaml"
SERVER = "https://zeus.example"
SECTION = {"image": "registry.example/train:1", "resources": {"cpu": 1, "memory": "1Gi"}}
TOKEN = {"secrets": {"ZEUSRUN_TOKEN": "zeusrun/token"}}
JOIN = {"secrets": {"ZEUSRUN_JOIN_TOKEN": "zeusrun/join-token", **TOKEN["secrets"]}}
AFFINITY = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu", "operator": "In", "values": ["a100", "h100"]}]}
            ]
        }
    }
}
POD = {
    "nodeSelector": {"gpu": "a100"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "imagePullSecrets": [{"name": "registry"}],
    "affinity": AFFINITY,
    "serviceAccountName": "training",
    "schedulingGates": [{"name": "example.com/gate"}],
}
SHAPES = {
    "least": {},
    "namespace": {"namespace": "ml-team"},
    "token": TOKEN,
    "gpus": {"resources": {"cpu": "500m", "memory": "1.5Gi", "nvidia.com/gpu": 2}},
    "fraction": {"resources": {"cpu": 0.5, "memory": "9G", "ephemeral-storage": "9G"}},
    "home": {"home": "zeusrun-home", **TOKEN},
    "volumes": {"volumes": {"/data": "imagenet", "/data/more": "b.2", "/x": "imagenet:ro"}},
    "labels": {
        "template": {"metadata": {"labels": {"kueue.x-k8s.io/queue-name": "a", "team": ""}}}
    },
    "annotations": {"template": {"metadata": {"annotations": {"example.com/a": "b c"}}}},
    "template": {"template": {"spec": POD}},
    "user": {"user": 4321, "folder": "/app/jobs"},
}
ONE_POD = {"priorityClassName": "low", "runtimeClassName": "nvidia", "schedulerName": "volcano"}


@pytest.fixture
def build(tmp_path):
    """Return the manifest of a job with a section, with the spec."""

    def load(section=None, *, nodes=1, request=Request(), name="job", **changes):  # noqa: B008 - frozen
        section = {**SECTION, **(section or {})}
        if isinstance(template := section.get("template"), dict):
            (tmp_path / "pod.yaml").write_text(yaml.safe_dump(template))
            section["template"] = "pod.yaml"
        if nodes > 1:
            section["secrets"] = {**JOIN["secrets"], **section.get("secrets", {})}
        launch = {"nnodes": nodes, **changes.pop("launch", {})}
        values = {"history": SERVER, "run_on": {"kubernetes": section}, "launch": launch, **changes}
        spec = load_job(tmp_path, name=name, **values)
        spec = load_spec(spec.source, request.overrides)
        return build_manifest(spec, request, new_name(spec.name)), spec

    return load


@pytest.fixture(scope="module")
def runtime():
    documents = yaml.safe_load_all(DEPLOY.read_text())
    return next(each for each in documents if each["kind"] == "TrainingRuntime")


@pytest.fixture
def pod_of(runtime):
    """Return the spec of the pods of a Job or a TrainJob."""

    def find(manifest):
        made = manifest if manifest["kind"] == "Job" else build_job(manifest, runtime)
        return made["spec"]["template"]["spec"]

    return find


@pytest.fixture
def labels_of(runtime):
    """Return the labels of the pods of a Job or a TrainJob."""

    def find(manifest):
        made = manifest if manifest["kind"] == "Job" else build_job(manifest, runtime)
        return made["spec"]["template"]["metadata"]["labels"]

    return find


def values_of(pod):
    (container,) = pod["containers"]
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_right_and_restricted(build, pod_of, shape, nodes):
    manifest, spec = build(SHAPES[shape], nodes=nodes)
    assert check(manifest) == []
    secrets = [*spec.run_on.kubernetes.secrets]
    pod = pod_of(manifest)
    assert check_pod(pod, secrets) == []
    assert manifest["kind"] == ("Job" if nodes == 1 else "TrainJob")
    assert json.loads(json.dumps(manifest)) == manifest
    found = values_of(pod)
    assert [found[name] for name in secrets] == [
        {"secretKeyRef": dict(zip(("name", "key"), each.split("/"), strict=True))}
        for each in spec.run_on.kubernetes.secrets.values()
    ]


@needs_crds
@pytest.mark.parametrize("shape", SHAPES)
def test_each_shape_is_right_by_the_definitions_of_kubeflow(build, shape):
    assert find_crd("TrainJob"), FOLDER
    assert check(build(SHAPES[shape], nodes=2)[0]) == []


@pytest.mark.parametrize("shape", ["least", "home", "template"])
def test_each_shape_is_a_right_cron_job(build, shape):
    """As docs/kubernetes.md says, its job template has the specification of a Job."""
    manifest, _ = build(SHAPES[shape])
    rules = {"schedule": "0 2 * * 1-5", "timeZone": "Europe/Paris", "concurrencyPolicy": "Forbid"}
    spec = {**rules, "jobTemplate": {"spec": manifest["spec"]}}
    made = {"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "a"}, "spec": spec}
    assert check(made) == []
    assert check_pod(made["spec"]["jobTemplate"]["spec"]["template"]["spec"]) == []


def test_what_only_a_job_can_have_reaches_its_pod(build, pod_of):
    manifest, _ = build({"template": {"spec": {**POD, **ONE_POD}}})
    assert check(manifest) == []
    assert {**POD, **ONE_POD}.items() <= pod_of(manifest).items()


@pytest.mark.parametrize("nodes", [1, 2])
def test_what_the_section_says_is_in_the_pod(build, pod_of, labels_of, nodes):
    section = {
        "home": "h",
        "volumes": {"/data": "imagenet:ro"},
        "template": {"metadata": {"labels": {"team": "a"}}, "spec": POD},
        "user": 7,
        "folder": "/a",
    }
    section |= {"namespace": "ml", "image": "i:2"}
    section["resources"] = {"cpu": "2", "memory": "1Gi"}
    manifest, _ = build(section, nodes=nodes, launch={"grace_period_s": 90.5})
    pod = pod_of(manifest)
    (container,) = pod["containers"]
    assert POD.items() <= pod.items()
    assert pod["terminationGracePeriodSeconds"] == 121
    assert {pod["securityContext"][key] for key in ("runAsUser", "runAsGroup", "fsGroup")} == {7}
    assert (container["image"], container["command"]) == (
        "i:2",
        ["zeusrun", "inside", "kubernetes"],
    )
    assert container["resources"] == {"limits": section["resources"]}
    assert pod["securityContext"]["fsGroupChangePolicy"] == "OnRootMismatch"
    assert pod["enableServiceLinks"] is False
    claims = {each["name"]: each.get("persistentVolumeClaim") for each in pod["volumes"]}
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    assert {path: claims[name] for path, name in mounted.items()} == {
        "/zeusrun": {"claimName": "h"},
        "/data": {"claimName": "imagenet", "readOnly": True},
        "/tmp": None,
        "/dev/shm": None,
    }
    only_read = [each["mountPath"] for each in container["volumeMounts"] if each.get("readOnly")]
    assert only_read == ["/data"]
    metadata = manifest["metadata"]
    assert metadata["namespace"] == "ml"
    for labels in (metadata["labels"], labels_of(manifest)):
        assert labels == {
            "app.kubernetes.io/managed-by": "zeusrun",
            "zeusrun.io/job": "job",
            "team": "a",
        }
    assert values_of(pod)["ZEUSRUN_HISTORY"] == SERVER


def test_several_nodes_are_told_to_kubeflow(build):
    manifest, _ = build(nodes=4, launch={"nproc_per_node": 4})
    trainer = manifest["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (4, 4)
    manifest, _ = build(nodes=2, launch={"nproc_per_node": "gpu"})
    assert "numProcPerNode" not in manifest["spec"]["trainer"]
    name = manifest["metadata"]["name"]
    allocation = values_of({"containers": [manifest["spec"]["trainer"]]})["ZEUSRUN_ALLOCATION"]
    assert allocation == f"kubernetes:$(ZEUSRUN_NAMESPACE)/{name}"


def test_a_manifest_that_is_shown_is_the_one_that_is_created(build):
    for nodes in (1, 2):
        manifest, _ = build({"volumes": {"/data": "d"}}, nodes=nodes)
        assert yaml.safe_load(write_job_yaml(manifest)) == manifest


def test_the_history_of_a_secret_is_not_that_of_the_job_file(build, pod_of):
    section = {"secrets": {"ZEUSRUN_HISTORY": "zeusrun/history"}}
    manifest, _ = build(section, history=None)
    reference = {"secretKeyRef": {"name": "zeusrun", "key": "history"}}
    assert values_of(pod_of(manifest))["ZEUSRUN_HISTORY"] == reference
    assert check(manifest) == []


def test_pods_get_the_server_that_this_home_is_connected_to(build, pod_of, monkeypatch, tmp_path):
    monkeypatch.delenv("ZEUSRUN_HISTORY", raising=False)
    monkeypatch.setenv("ZEUSRUN_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir(mode=0o700)
    (tmp_path / "home" / "address").write_text(f"{SERVER}\n")
    assert values_of(pod_of(build(history=None)[0]))["ZEUSRUN_HISTORY"] == SERVER


@pytest.mark.parametrize("history", [None, "tinydb"])
def test_a_history_that_no_pod_reaches_is_refused(build, monkeypatch, history):
    monkeypatch.delenv("ZEUSRUN_HISTORY", raising=False)
    with pytest.raises(UsageError, match="pods need a history that they can reach: set history to"):
        build(history=history)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_secret_is_refused_in_every_shape(build, nodes):
    with pytest.raises(JobFileError, match=r"env\.HF_TOKEN contains a secret"):
        build(nodes=nodes, env={"HF_TOKEN": "abcdefgh"})
    _, spec = build(nodes=1)
    text = f"{spec.source.read_text()}args: [--api-key, abcdefgh]\n"
    spec.source.write_text(text)
    with pytest.raises(JobFileError, match="args contains a secret"):
        build_manifest(load_spec(spec.source), Request(), "job-1")


@pytest.mark.parametrize(
    ("changes", "override"),
    [
        ({"env": {"HF_TOKEN": "abcdefgh"}}, "env={}"),
        ({"args": ["--api-key", "abcdefgh"]}, "args=[]"),
    ],
)
def test_a_secret_that_an_override_replaces_does_not_reach_the_manifest(build, changes, override):
    try:
        manifest, _ = build(request=Request(overrides=(override,)), **changes)
    except JobFileError as error:
        assert "contains a secret" in str(error)
    else:
        assert "abcdefgh" not in json.dumps(manifest)


def test_a_job_file_that_has_gone_meanwhile_is_refused(build):
    _, spec = build()
    spec.source.unlink()
    with pytest.raises(JobFileError, match="cannot be read: No such file"):
        build_manifest(spec, Request(), "a")


LETTERS = string.ascii_letters + string.digits
JOB_NAMES = st.builds(
    str.__add__, st.sampled_from(LETTERS), st.text(st.sampled_from([*LETTERS, *"._-"]), max_size=63)
)
PATTERN = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?-[0-9a-f]{8}")


@given(JOB_NAMES)
@example("a" * 64)
@settings(max_examples=50)
def test_every_job_has_a_right_name_in_kubernetes(name):
    made = new_name(name)
    assert PATTERN.fullmatch(made)
    assert len(f"{made}-node-0-999-abcde") <= 63
    assert is_job(f"kubernetes:ml/{made}")
    assert made != new_name(name)


@pytest.mark.parametrize(
    ("job", "base"),
    [
        ("digits", "digits"),
        ("My.Job_2", "my-job-2"),
        ("7", "job-7"),
        ("a" * 64, "a" * 37),
        ("a" * 36 + "_b", "a" * 36),
        ("A---", "a"),
        ("0._-", "job-0"),
    ],
)
def test_a_name_in_kubernetes_is_like_that_of_the_job(job, base):
    assert new_name(job)[:-9] == base
    assert len(f"{new_name(job)}-node-0-999-abcde") <= 63  # JobSet checks its longest pod's name


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("jobs")


@given(name=JOB_NAMES, nodes=st.sampled_from([1, 2]))
@settings(max_examples=5)
def test_a_manifest_is_right_whatever_the_name_of_the_job(folder, name, nodes):
    section = {**SECTION, **JOIN}
    values = {"history": SERVER, "run_on": {"kubernetes": section}, "launch": {"nnodes": nodes}}
    spec = load_job(folder, name=name, **values)
    assert check(build_manifest(spec, Request(), new_name(name))) == []


def expand(text, known):
    """Replace what Kubernetes replaces in a value, as its documentation says.

    ``$(NAME)`` becomes the value of a variable before it, and stays if there is none. ``$$``
    becomes ``$``, which begins nothing. Any other ``$`` stays.
    https://kubernetes.io/docs/tasks/inject-data-application/define-interdependent-environment-variables/
    """
    done = ""
    while text:
        first, second, rest = text[:1], text[1:2], text[2:]
        if first != "$" or second not in {"$", "("}:
            done, text = done + first, text[1:]
        elif second == "$":
            done, text = f"{done}$", rest
        elif ")" not in rest:
            done, text = f"{done}$(", rest
        else:
            name, _, text = rest.partition(")")
            done += known.get(name, f"$({name})")
    return done


def resolve(container, fields):
    """Return the environment that a kubelet makes of the variables of a container."""
    found: dict[str, str] = {}
    for each in container["env"]:
        source = each.get("valueFrom", {})
        if "fieldRef" in source:
            found[each["name"]] = fields[source["fieldRef"]["fieldPath"]]
        elif "value" in each:
            found[each["name"]] = expand(each["value"], found)
    return found


@pytest.mark.parametrize(
    ("text", "expanded"),
    [("$(A)$(B)", "1$(B)"), ("$$(A) $$$(A) $$$$", "$(A) $1 $$"), ("$(A $A $", "$(A $A $")],
)
def test_the_model_of_the_expansion(text, expanded):
    assert expand(text, {"A": "1"}) == expanded


PARTS = st.sampled_from([*"$()${}aÄ \\'\"#:", "$(HOME)", "$(ZEUSRUN_JOB)", "$$(A)", "$$"])
TEXTS = st.lists(PARTS, max_size=12).map("".join)
FIELDS = {
    "metadata.namespace": "ml",
    "metadata.labels['batch.kubernetes.io/job-name']": "job-1a2b3",
}


@given(TEXTS, TEXTS, TEXTS)
@settings(max_examples=12)
def test_what_a_user_writes_arrives_unchanged(folder, arg, comment, value):
    section = {"kubernetes": {**SECTION, "folder": str(folder)}}
    (folder / "train.py").touch()
    path = load_job(folder, "train.py", history=SERVER, run_on=section).source
    args = json.dumps([arg.replace("$", "$$")])  # as a job file wants it
    text = f"{path.read_text('utf-8')}args: {args}\n# {comment}\n"
    path.write_text(text, "utf-8")
    overrides = (f"env.OTHER={json.dumps({'plain': value.replace('$', '$$')})}",)
    spec = load_spec(path, overrides)
    request = Request(overrides=overrides, batch_size=16, why=value)
    manifest = build_manifest(spec, request, "job-1a2b3")
    environment = resolve(manifest["spec"]["template"]["spec"]["containers"][0], FIELDS)
    assert environment["ZEUSRUN_JOB"] == text
    assert environment["ZEUSRUN_ALLOCATION"] == "kubernetes:ml/job-1a2b3"
    assert environment["ZEUSRUN_HISTORY"] == SERVER
    found, asked = pods._read_job(environment)
    assert (found.args, found.env) == (spec.args, spec.env)
    assert (asked.overrides, asked.batch_size, asked.why) == (overrides, 16, value)


@pytest.mark.parametrize(
    "request_",
    [
        Request(),
        Request(batch_size=64, why="as in job-1-1, by --like"),
        Request(overrides=("objective.eta_knob=0.8", "env.A=$$(HOME)"), quiet=True),
        Request(until=1748782800.25, overlap="queue", wait=True),
    ],
)
@pytest.mark.parametrize("nodes", [1, 2])
def test_the_options_of_a_submit_arrive_in_its_pods(build, nodes, request_, tmp_path):
    manifest, spec = build({"folder": str(tmp_path)}, nodes=nodes, request=request_)
    container = (
        manifest["spec"]["trainer"]
        if nodes > 1
        else manifest["spec"]["template"]["spec"]["containers"][0]
    )
    found, asked = pods._read_job(resolve(container, FIELDS))
    assert {key: value for key, value in found if key != "source"} == {
        key: value for key, value in spec if key != "source"
    }
    assert found.source.name == "job.yaml"
    name = manifest["metadata"]["name"] if nodes > 1 else "job-1a2b3"
    assert asked.allocation == f"kubernetes:ml/{name}"
    assert (asked.overlap, asked.wait) == ("allow", False)
    for kept in ("overrides", "batch_size", "why", "until", "quiet"):
        assert getattr(asked, kept) == getattr(request_, kept)


def test_the_variables_of_a_pod_are_known_to_the_job_file_as_its_own(build):
    """So that a job file cannot set them, and so break its pod."""
    manifest, _ = build()
    own = set(values_of(manifest["spec"]["template"]["spec"])) - {"ZEUSRUN_HISTORY"}
    for name in own:
        with pytest.raises(JobFileError, match="a variable that zeusrun does not set"):
            build({"secrets": {name: "a/b"}})
