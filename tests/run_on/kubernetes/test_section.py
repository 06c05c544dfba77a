"""The section ``run_on.kubernetes`` of a job file, and what goes with it."""

from __future__ import annotations

import pytest
import yaml

from tests.factories import load_job
from zeusrun.errors import JobFileError
from zeusrun.jobfile.hosts import Host
from zeusrun.jobfile.plugged import count_ranks
from zeusrun.jobfile.schema import spec_json_schema
from zeusrun.jobfile.settings import read_settings
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request
from zeusrun.run_on.kubernetes.manifest import build_manifest
from zeusrun.run_on.kubernetes.section import Kubernetes

IMAGE = "registry.example/train:1"
LEAST = {"image": IMAGE, "resources": {"cpu": 4, "memory": "16Gi"}}
JOIN = {"secrets": {"ZEUSRUN_JOIN_TOKEN": "zeusrun/join-token"}}
WHOLE = {
    "image": IMAGE,
    "namespace": "ml-team",
    "resources": {"cpu": "500m", "memory": "1.5Gi", "nvidia.com/gpu": 2, "ephemeral-storage": "9G"},
    "secrets": {"ZEUSRUN_TOKEN": "zeusrun/token", "_2": "a.b-c/D_e.f", **JOIN["secrets"]},
    "home": "zeusrun-home",
    "volumes": {"/data": "imagenet:ro", "/data/more": "b.2"},
    "template": "pod.yaml",
    "runtime": "ClusterTrainingRuntime/gpu",
    "user": 4321,
    "folder": "/app/jobs",
}


def test_an_image_and_resources_are_enough(tmp_path):
    spec = load_job(tmp_path, run_on={"kubernetes": LEAST})
    assert dict(spec.run_on.kubernetes) == {
        **LEAST,
        "namespace": None,
        "secrets": {},
        "home": None,
        "volumes": {},
        "template": None,
        "runtime": "zeusrun",
        "user": 1000,
        "folder": None,
    }
    assert spec.run_on.scheduler == "kubernetes"
    with pytest.raises(JobFileError, match="does not name Kubernetes any more"):
        Kubernetes.of(load_job(tmp_path, run_on="slurm").run_on)
    with pytest.raises(JobFileError, match="does not name Kubernetes any more"):
        Kubernetes.of(load_job(tmp_path).run_on)


@pytest.mark.parametrize("section", [LEAST, WHOLE])
def test_a_copy_of_the_job_and_a_server_read_the_same_section(tmp_path, section):
    spec = load_job(tmp_path, run_on={"kubernetes": section, "nic": "eth0"})
    assert {key: value for key, value in spec.run_on.kubernetes if key in section} == section
    copy = tmp_path / "copy.yaml"
    copy.write_text(spec.to_yaml())
    assert load_spec(copy).run_on == spec.run_on == read_settings(spec.to_yaml(), "job").run_on


def test_half_a_cpu_needs_no_quotes(tmp_path):
    """It becomes a text, because Kubernetes takes no other fraction in every version."""
    resources = {"cpu": 0.5, "memory": "1Gi"}
    changes = {"run_on": {"kubernetes": {**LEAST, "resources": resources}}}
    spec = load_job(tmp_path, history="https://zeus.example", **changes)
    pod = build_manifest(spec, Request(), "a")["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"limits": {"cpu": "0.5", "memory": "1Gi"}}


def refused(tmp_path, run_on, **changes):
    """Return the only sentence, after its place; the place is checked."""
    with pytest.raises(JobFileError) as error:
        load_job(tmp_path, run_on=run_on, **changes)
    assert "\n" not in str(error.value)
    place, _, sentence = str(error.value).partition(": ")
    source, line = place.rsplit(":", 1)
    assert source == str(tmp_path / "job.yaml")
    return int(line), sentence


def line_of(tmp_path, start):
    lines = (tmp_path / "job.yaml").read_text().splitlines()
    (number,) = (n for n, line in enumerate(lines, 1) if line.strip().startswith(start))
    return number


def test_an_error_names_its_line(tmp_path):
    line, _ = refused(tmp_path, {"kubernetes": {**LEAST, "user": 0}})
    assert line == line_of(tmp_path, "user:")
    line, _ = refused(tmp_path, {"kubernetes": {**LEAST, "secrets": {"HF_TOKEN": "hf"}}})
    assert line == line_of(tmp_path, "HF_TOKEN:")
    line, _ = refused(tmp_path, {"kubernetes": {**LEAST, "volumes": {"/d": "d", "data": "x"}}})
    assert line == line_of(tmp_path, "data:")
    line, _ = refused(tmp_path, {"kubernetes": LEAST}, launch={"nnodes": 2})
    assert line == line_of(tmp_path, "launch:")


RUNTIME = "must be a name such as zeusrun, or ClusterTrainingRuntime/NAME"
PATH = "must be an absolute path such as /data, without a / at its end"
CLAIM = "must be the name of a PersistentVolumeClaim, such as zeusrun-home"
VOLUME = "must be the name of a PersistentVolumeClaim, such as imagenet or imagenet:ro"
VARIABLE = "must be a variable that zeusrun does not set, such as HF_TOKEN"
FORM = "{cpu: 4, memory: 16Gi}"


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("image", "", "must be an image such as registry.example/train:1, not ''"),
        ("image", "a b", "must be an image such as registry.example/train:1, not 'a b'"),
        ("image", 1.5, 'must be text, not 1.5; put it in quotes: "1.5"'),
        ("namespace", "ML", "must be a name such as ml-team, not 'ML'"),
        ("namespace", "-a", "must be a name such as ml-team, not '-a'"),
        ("resources", {}, f"needs cpu and memory: {FORM}"),
        ("resources", {"cpu": 1, "nvidia.com/gpu": 1}, f"needs memory: {FORM}"),
        ("resources", "4", "must be a section of 'key: value' lines, not '4'"),
        (
            "resources",
            {"cpu": 1, "memory": "1Gi", "gpu": 1},
            "has gpu, which Kubernetes does not know; a GPU is nvidia.com/gpu: 1",
        ),
        (
            "resources",
            {"cpu": 1, "memory": "16GB"},
            "has memory: '16GB', no quantity such as 4, 500m or 16Gi",
        ),
        (
            "resources",
            {"cpu": [4], "memory": "16Gi"},
            "has cpu: [4], no quantity such as 4, 500m or 16Gi",
        ),
        (
            "resources",
            {"cpu": 1, "memory": 16},
            "has memory: 16, which is in bytes; write 16Gi for gigabytes",
        ),
        (
            "resources",
            {"cpu": 1, "memory": "500m"},
            "has memory: 500m, which is in bytes; write 16Gi for gigabytes",
        ),
        ("secrets", ["A"], "must be a section of 'key: value' lines, not a list"),
        ("volumes", ["/data"], "must be a section of 'key: value' lines, not a list"),
        ("home", "", f"{CLAIM}, not ''"),
        ("home", "/home/me", f"{CLAIM}, not '/home/me'"),
        ("home", 3, 'must be text, not 3; put it in quotes: "3"'),
        ("template", {"spec": {}}, "must be text, not a section"),
        ("template", "", "must be something, such as a name, not ''"),
        ("runtime", "Cluster/gpu", f"{RUNTIME}, not 'Cluster/gpu'"),
        ("runtime", "GPU", f"{RUNTIME}, not 'GPU'"),
        ("user", 0, "must be greater than or equal to 1, not 0"),
        ("user", "me", "must be a whole number, not 'me'"),
        ("folder", "jobs", f"{PATH}, not 'jobs'"),
        ("folder", "/app/", f"{PATH}, not '/app/'"),
    ],
)
def test_what_a_key_cannot_be_is_refused(tmp_path, key, value, sentence):
    _, said = refused(tmp_path, {"kubernetes": {**LEAST, key: value}})
    assert said == f"'run_on.kubernetes.{key}' {sentence}"


@pytest.mark.parametrize(
    ("key", "name", "value", "sentence"),
    [
        ("secrets", "A", "hf", "must be SECRET/KEY, such as hf/token, not 'hf'"),
        ("secrets", "A", "hf:token", "must be SECRET/KEY, such as hf/token, not 'hf:token'"),
        ("secrets", "A", "a/b/c", "must be SECRET/KEY, such as hf/token, not 'a/b/c'"),
        ("secrets", "A", {"secret_file": "x"}, "must be text, not a section"),
        ("secrets", "A-B", "hf/token", f"{VARIABLE}, not 'A-B'"),
        ("secrets", "1A", "hf/token", f"{VARIABLE}, not '1A'"),
        ("secrets", "ZEUSRUN_JOB", "hf/token", f"{VARIABLE}, not 'ZEUSRUN_JOB'"),
        ("secrets", "HOME", "hf/token", f"{VARIABLE}, not 'HOME'"),
        ("volumes", "data", "imagenet", f"{PATH}, not 'data'"),
        ("volumes", "/", "imagenet", f"{PATH}, not '/'"),
        ("volumes", "/data/", "imagenet", f"{PATH}, not '/data/'"),
        ("volumes", "/data", "My Data", f"{VOLUME}, not 'My Data'"),
        ("volumes", "/data", "imagenet:rw", f"{VOLUME}, not 'imagenet:rw'"),
    ],
)
def test_what_an_item_of_a_section_cannot_be_is_refused(tmp_path, key, name, value, sentence):
    section = {**LEAST, key: {**LEAST.get(key, {}), name: value}}
    _, said = refused(tmp_path, {"kubernetes": section})
    assert said == f"'run_on.kubernetes.{key}.{name}' {sentence}"


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("imgae", "did you mean 'image'?"),
        ("secret", "did you mean 'secrets'?"),
        ("limits", "did you mean 'resources'?"),
        ("memory", "did you mean 'resources'?"),
        ("gpus", "did you mean 'resources'?"),
        ("nnodes", "'nnodes' belongs under 'launch'"),
        ("nodes", "did you mean 'launch.nnodes'?"),
        ("env", "'env' belongs at the top level"),
        (
            "initContainers",
            "known: image, namespace, resources, secrets, home, volumes, template, runtime, user, folder",
        ),
    ],
)
def test_an_unknown_key_says_what_was_probably_meant(tmp_path, key, hint):
    _, said = refused(tmp_path, {"kubernetes": {**LEAST, key: 1}})
    assert said == f"unknown key '{key}' under 'run_on.kubernetes'; {hint}"


WAYS = "takes exactly one of hosts, hostfile, slurm, kubernetes; it has"
END = "; write {} for an empty section"


@pytest.mark.parametrize(
    ("run_on", "sentence"),
    [
        (
            {"kubernetes": {"resources": LEAST["resources"]}},
            "'image' is missing under 'run_on.kubernetes'",
        ),
        ({"kubernetes": None}, f"'run_on' {WAYS} none of them{END}"),
        ({"kubernetes": LEAST, "slurm": {}}, f"'run_on' {WAYS} slurm and kubernetes{END}"),
        ({"kubernetes": LEAST, "hosts": ["a"]}, f"'run_on' {WAYS} hosts and kubernetes{END}"),
        ({"kubernetes": IMAGE}, f"must be a section of 'key: value' lines, not '{IMAGE}'"),
        ({"kubernetes": {"image": IMAGE}}, "the key 'resources' is missing under 'run_on.kubernet"),
        ({"kubernets": LEAST}, "'kubernets' under 'run_on'; did you mean 'kubernetes'?"),
        ({"image": IMAGE}, "under 'run_on'; 'image' belongs under 'run_on.kubernetes'"),
    ],
)
def test_another_form_of_run_on_is_refused(tmp_path, run_on, sentence):
    assert sentence in refused(tmp_path, run_on)[1]


@pytest.mark.parametrize(
    ("section", "launch", "sentence"),
    [
        (
            LEAST,
            {"nnodes": 2},
            (
                "has nnodes: 2, whose pods need a token to join: add "
                "run_on.kubernetes.secrets: {ZEUSRUN_JOIN_TOKEN: zeusrun/join-token}"
            ),
        ),
        (
            {**LEAST, **JOIN},
            {"nnodes": 2, "distributed": False},
            "has distributed: false, which is for one process; remove it, or nnodes: 2",
        ),
        (
            {**LEAST, **JOIN},
            {"nnodes": 2, "gpus": "auto"},
            "has gpus: auto, but with nnodes: 2, only gpus: all is possible",
        ),
    ],
)
def test_what_does_not_go_with_several_nodes_is_refused(tmp_path, section, launch, sentence):
    _, said = refused(tmp_path, {"kubernetes": section}, launch=launch)
    assert said == f"'launch' {sentence}"


@pytest.mark.parametrize("nnodes", [None, 1])
@pytest.mark.parametrize("more", [{"distributed": False}, {"gpus": "auto"}])
def test_one_node_takes_what_one_machine_takes(tmp_path, nnodes, more):
    launch = {"nnodes": nnodes, **more}
    assert load_job(tmp_path, run_on={"kubernetes": LEAST}, launch=launch).run_on.kubernetes


def test_the_pods_join_their_head_on_a_known_port(tmp_path):
    launch = {"nnodes": 3, "nproc_per_node": 4}
    sizes = {"default": 96, "candidates": [96]}
    run_on = {"kubernetes": {**LEAST, **JOIN}}
    spec = load_job(tmp_path, run_on=run_on, launch=launch, batch_size=sizes)
    assert spec.run_on.ports == (29400, 29499)
    assert spec.run_on.fan_out_command(Host("a", None)) is None
    assert count_ranks(dict(spec)) == 12
    other = {**run_on, "port_range": "5000-5009"}
    spec = load_job(tmp_path, run_on=other, launch=launch, batch_size=sizes)
    assert spec.run_on.ports == (5000, 5009)


def test_overrides_set_its_keys(tmp_path):
    source = load_job(tmp_path, run_on={"kubernetes": LEAST}).source
    changes = ["run_on.kubernetes.image=b:2", "run_on.kubernetes.resources.cpu=8"]
    changes += ["run_on.kubernetes.secrets.HF_TOKEN=hf/token"]
    section = load_spec(source, changes).run_on.kubernetes
    assert (section.image, section.resources["cpu"]) == ("b:2", 8)
    assert section.secrets == {"HF_TOKEN": "hf/token"}
    gpu = "run_on.kubernetes.resources={cpu: 4, memory: 1Gi, nvidia.com/gpu: 1}"
    assert load_spec(source, [gpu]).run_on.kubernetes.resources["nvidia.com/gpu"] == 1
    assert load_spec(source, ["run_on=local"]).run_on is None
    slurm = load_spec(source, ["run_on.kubernetes=null", "run_on.slurm={}"])
    assert (slurm.run_on.slurm is None, slurm.run_on.kubernetes) == (False, None)
    local = load_job(tmp_path, run_on="local").source
    least = [f"run_on.kubernetes.{key}={yaml.safe_dump(each)}" for key, each in LEAST.items()]
    assert load_spec(local, least).run_on.kubernetes == Kubernetes(**LEAST)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (
            "run_on.kubernetes.imgae=b",
            "unknown key 'imgae' under 'run_on.kubernetes'; did you mean 'image'?",
        ),
        ("run_on.kubernetes.user=0", "'run_on.kubernetes.user' must be greater than or equal to 1"),
        ("launch.nnodes=2", "'launch' has nnodes: 2, whose pods need a token to join"),
    ],
)
def test_an_override_that_is_wrong_is_named(tmp_path, change, sentence):
    source = load_job(tmp_path, run_on={"kubernetes": LEAST}).source
    with pytest.raises(JobFileError) as error:
        load_spec(source, [change])
    assert str(error.value).startswith(f"--set {change}: {sentence}")
    assert "\n" not in str(error.value)


def test_editors_know_its_keys():
    rule = spec_json_schema()["$defs"]["Kubernetes"]
    assert rule["required"] == ["image", "resources"]
    assert rule["properties"]["resources"]["additionalProperties"] == {"type": ["string", "number"]}
    assert all(each["description"] for each in rule["properties"].values())
