"""The checks of Kubernetes objects: right ones pass, and each mistake is found."""

from __future__ import annotations

import copy
import datetime as dt

import pytest
import yaml

from tests.kubernetes_rules import build_job, check_pod
from tests.kubernetes_schemas import FOLDER, check, check_crd, check_rules, find_crd, needs_crds

pytestmark = pytest.mark.long

SAFE = """
automountServiceAccountToken: false
restartPolicy: Never
securityContext: {runAsNonRoot: true, runAsUser: 1000, seccompProfile: {type: RuntimeDefault}}
volumes: [{name: home, emptyDir: {}}]
containers:
- name: node
  image: registry.example/train:1
  env:
  - {name: NAME, valueFrom: {fieldRef: {fieldPath: "metadata.labels['batch.kubernetes.io/job-name']"}}}
  - {name: ZEUSRUN_TOKEN, valueFrom: {secretKeyRef: {name: zeusrun, key: token}}}
  resources: {limits: {cpu: "4", memory: 8Gi, nvidia.com/gpu: 1}}
  securityContext:
    {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
  volumeMounts: [{name: home, mountPath: /zeusrun}]
"""
POLICY = {
    "rules": [
        {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]},
        {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0, 75]}},
    ]
}
JOB_SPEC = {
    "backoffLimit": 3,
    "podFailurePolicy": POLICY,
    "template": {"spec": yaml.safe_load(SAFE)},
}
META = {"name": "digits-12", "namespace": "ml", "labels": {"zeusrun.io/job": "digits"}}
JOB = {"apiVersion": "batch/v1", "kind": "Job", "metadata": META, "spec": JOB_SPEC}
CRON = {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin", "jobTemplate": {"spec": JOB_SPEC}}
CRON_JOB = JOB | {"kind": "CronJob", "spec": CRON}
RUNTIME_POD = {
    key: JOB_SPEC["template"]["spec"][key] for key in ("restartPolicy", "securityContext")
}
RUNTIME_POD |= {"containers": [{"name": "node", "image": "placeholder"}]}
RUNTIME_POD |= {"automountServiceAccountToken": False}
TRAIN_JOB, RUNTIME, *OTHERS = yaml.safe_load_all("""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits-12, namespace: ml}
spec:
  runtimeRef: {apiGroup: trainer.kubeflow.org, kind: TrainingRuntime, name: zeusrun}
  trainer:
    image: registry.example/train:1
    command: [zeusrun, inside, kubernetes]
    numNodes: 2
    env: [{name: ZEUSRUN_JOB, value: "x"}]
    resourcesPerNode: {limits: {cpu: 4, memory: 8Gi}}
  runtimePatches:
  - manager: zeusrun.io/submit
    trainingRuntimeSpec: {template: {spec: {replicatedJobs: [{name: node, template: {spec: {template: {
      metadata: {labels: {zeusrun.io/job: digits}},
      spec: {
        volumes: [{name: home, persistentVolumeClaim: {claimName: home}}],
        containers: [{name: node, volumeMounts: [{name: home, mountPath: /zeusrun}], securityContext: {
          allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}}]
      }}}}}]}}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: zeusrun}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      failurePolicy: {maxRestarts: 3, rules: [
        {name: failed, action: FailJobSet, onJobFailureReasons: [PodFailurePolicy]}]}
      replicatedJobs:
      - name: node
        template: {metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}
---
{apiVersion: v1, kind: ServiceAccount, metadata: {name: zeusrun}, automountServiceAccountToken: false}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: zeusrun}
rules: [{apiGroups: [batch], resources: [jobs], verbs: [create]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: zeusrun}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: zeusrun}
subjects: [{kind: ServiceAccount, name: zeusrun}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: zeusrun}
spec: {podSelector: {matchLabels: {a: b}}, policyTypes: [Ingress], ingress: [{ports: [{port: 29400}]}]}
""")
RUNTIME["spec"]["template"]["spec"]["replicatedJobs"][0]["template"]["spec"] = JOB_SPEC | {
    "backoffLimit": 0,
    "template": {"spec": RUNTIME_POD},
}
POD = "spec.template.spec"
PATCH = "spec.runtimePatches.0.trainingRuntimeSpec.template.spec.replicatedJobs.0.template.spec.template.spec"
REPLICATED = "spec.template.spec.replicatedJobs.0"


def find_objects(value, path=()):
    """Yield the path of every object, at any depth."""
    if isinstance(value, dict):
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, each in items:
        if isinstance(each, dict | list):
            yield from find_objects(each, (*path, key))


def put(document, path, value):
    """Return a copy with another value at this path; without it, if the value is ``...``."""
    document = copy.deepcopy(document)
    *above, last = [int(each) if each.isdigit() else each for each in path.split(".")]
    place = document
    for each in above:
        place = place[each]
    if value is ...:
        del place[last]
    else:
        place[last] = value
    return document


@pytest.mark.parametrize(
    "document", [JOB, CRON_JOB, TRAIN_JOB, RUNTIME, *OTHERS], ids=lambda each: each["kind"]
)
def test_right_objects_have_no_mistakes(document):
    assert check(document) == []


@pytest.mark.parametrize("document", [JOB, TRAIN_JOB, RUNTIME], ids=lambda each: each["kind"])
def test_an_unknown_field_is_found_at_any_depth(document):
    paths = list(find_objects(document))
    assert len(paths) > 15
    for path in paths:
        changed = copy.deepcopy(document)
        place = changed
        for key in path:
            place = place[key]
        place["unknown"] = {}  # no value of a label or a resource either
        assert check(changed), path


@pytest.mark.parametrize(
    ("document", "path", "value", "expected"),
    [
        (JOB, "kind", "Jobs", "Couldn't find schema for kind Jobs"),
        (JOB, "kind", ..., "apiVersion and kind are required"),
        (JOB, "metadata.creationTimestamp", dt.date(2026, 1, 1), "not JSON"),
        (JOB, f"{POD}.restartpolicy", "Never", "'restartpolicy' was unexpected) (Kubernetes 1.31)"),
        (JOB, f"{POD}.containers.0.env.0.value", 1, "env[0].value: 1 is not of type"),
        (JOB, f"{POD}.nodeName", None, f"{POD}.nodeName: null"),
        (JOB, f"{POD}.containers.0.imagePullPolicy", "always", "'always' is unknown"),
        (JOB, f"{POD}.containers.0.resources.limits.memory", "8GB", "'8GB' is no quantity"),
        (JOB, f"{POD}.containers.0.resources.limits.gpu", 1, "no resource has this name"),
        (JOB, f"{POD}.containers.0.image", "", "'' is no image"),
        (JOB, f"{POD}.containers.0.name", "Node", "['Node'] are no DNS labels"),
        (JOB, f"{POD}.containers.0.env.0.name", "ZEUSRUN_TOKEN", "['ZEUSRUN_TOKEN'] twice"),
        (JOB, f"{POD}.containers.0.env.0.value", "x", "NAME: needs one source"),
        (
            JOB,
            f"{POD}.containers.0.env.0.valueFrom.fieldRef.fieldPath",
            "spec.x",
            "cannot read spec.x",
        ),
        (JOB, f"{POD}.containers.0.env.1.valueFrom.secretKeyRef.key", "a/b", "no key of a secret"),
        (JOB, f"{POD}.volumes.0.name", "other", "there are no volumes ['home']"),
        (JOB, f"{POD}.volumes.0.emptyDir.sizeLimit", "8GB", "sizeLimit: '8GB' is no quantity"),
        (JOB, f"{POD}.volumes.0.emptyDir", ..., "['home'] need one source"),
        (JOB, f"{POD}.restartPolicy", "OnFailure", "restartPolicy must be in ('Never',)"),
        (JOB, "spec.backoffLimit", -1, "is negative"),
        (JOB, "spec.completionMode", "Indexed", "needs completions"),
        (JOB, "spec.podFailurePolicy.rules", POLICY["rules"] * 11, "more than 20 rules"),
        (JOB, "spec.podFailurePolicy.rules.0.action", "Skip", "unknown action 'Skip'"),
        (JOB, "spec.podFailurePolicy.rules.0.onPodConditions", ..., "either onExitCodes or"),
        (
            JOB,
            "spec.podFailurePolicy.rules.1.onExitCodes.operator",
            "In",
            "0 is not allowed with In",
        ),
        (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.values", [], "needs 1 to 255 values"),
        (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.values", [*range(256)], "1 to 255 values"),
        (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.values", [75, 0], "in order"),
        (JOB, "spec.podFailurePolicy.rules.1.onExitCodes.containerName", "x", "no container 'x'"),
        (JOB, "metadata.name", "a" * 64, "more than 63 characters"),
        (JOB, "metadata.name", "a.b", "'a.b' is no name of a Job"),
        (JOB, "metadata.name", ..., "name is required"),
        (JOB, "metadata.labels.a", "b" * 64, "is no value of a label"),
        (JOB, "metadata.labels", {"a b": "c"}, "'a b' is no key of a label"),
        (JOB, "metadata.namespace", "A", "'A' is no name of a namespace"),
        (CRON_JOB, "metadata.name", "a" * 53, "more than 52 characters"),
        (CRON_JOB, "spec.schedule", "0 25 * * *", "spec.schedule: "),
        (CRON_JOB, "spec.schedule", "0 2 * * 7", "is not for Kubernetes"),
        (CRON_JOB, "spec.schedule", "0 2 L * *", "is not for Kubernetes"),
        (CRON_JOB, "spec.schedule", "0 0 2 * * *", "is not for Kubernetes"),
        (CRON_JOB, "spec.timeZone", "Europe/Bärlin", "is no time zone"),
        (CRON_JOB, "spec.concurrencyPolicy", "forbid", "'forbid' is unknown"),
        (TRAIN_JOB, "apiVersion", "trainer.kubeflow.org/v1", "no such apiVersion and kind"),
        (TRAIN_JOB, "spec.trainer.numNode", 2, "spec.trainer.numNode: unknown field"),
        (TRAIN_JOB, "spec.trainer.numNodes", "2", "spec.trainer.numNodes: Input should be"),
        (TRAIN_JOB, "spec.trainer.numNodes", True, "spec.trainer.numNodes: Input should be"),
        (TRAIN_JOB, "spec.trainer.command", "zeusrun", "spec.trainer.command: must be a list"),
        (TRAIN_JOB, "spec.trainer", [], "spec.trainer: must be an object"),
        (TRAIN_JOB, "spec.trainer.env.0.name", None, "spec.trainer.env[0].name: Input should"),
        (
            TRAIN_JOB,
            "spec.trainer.resourcesPerNode.limits.cpu",
            [4],
            "must be a number or a string",
        ),
        (TRAIN_JOB, "spec.trainer.resourcesPerNode.limits.cpu", "4 cores", "'4 cores' "),
        (TRAIN_JOB, "spec.runtimeRef", ..., "spec.runtimeRef: required"),
        (TRAIN_JOB, "spec.runtimePatches.0.manager", "submit", "manager must be DOMAIN/PATH"),
        (
            TRAIN_JOB,
            f"{PATCH}.automountServiceAccountToken",
            False,
            "unknown field",
        ),  # no such patch
        (
            TRAIN_JOB,
            f"{PATCH}.containers.0.env",
            [{"name": "A", "value": "1"}],
            "only spec.trainer.env",
        ),
        (
            TRAIN_JOB,
            "status",
            {"trainerStatus": {"lastUpdatedTime": "2026-01-01T00:00:00"}},
            "timezone",
        ),
        (TRAIN_JOB, "metadata.name", "a" * 49, "a pod would be called"),
        (RUNTIME, "spec.mlPolicy.torc", {}, "spec.mlPolicy.torc: unknown field"),
        (
            RUNTIME,
            f"{REPLICATED}.template.spec.template.spec.containers.0.name",
            "main",
            "needs a container node",
        ),
        (RUNTIME, f"{REPLICATED}.replicas", 2, "needs one replica"),
        (
            RUNTIME,
            f"{REPLICATED}.template.spec.template.spec.restartPolicy",
            "Always",
            "node: restartPolicy must be in",
        ),
        (
            RUNTIME,
            "spec.template.spec.failurePolicy.rules.0.targetReplicatedJobs",
            ["x"],
            "no jobs {'x'}",
        ),
        (
            RUNTIME,
            "spec.template.spec.failurePolicy.rules.0.onJobFailureReasons",
            ["x"],
            "no reasons {'x'}",
        ),
    ],
)
def test_each_mistake_is_found(document, path, value, expected):
    assert any(expected in each for each in check(put(document, path, value)))


CRD = """
spec: {versions: [{schema: {openAPIV3Schema: {type: object, properties: {
  apiVersion: {type: string},
  kind: {type: string},
  metadata: {type: object},
  spec: {
    type: object,
    x-kubernetes-validations: [{rule: "self.size == 1 || self.size == 2", message: one or two}],
    properties: {
      size: {type: integer, format: int32, default: 2},
      name: {type: string, nullable: true, x-kubernetes-validations: [{rule: self == oldSelf}]},
      port: {x-kubernetes-int-or-string: true},
      any: {type: object, x-kubernetes-preserve-unknown-fields: true},
      free: {type: object, additionalProperties: {type: string,
        x-kubernetes-validations: [{rule: "self != 'no'"}]}},
      odd: {type: string, x-kubernetes-validations: [{rule: self}]},
      torn: {type: string, x-kubernetes-validations: [{rule: "self =="}]},
      deep: {type: object, properties: {a: {type: string}},
        x-kubernetes-validations: [{rule: "self.a == 'b'"}]},
      tags: {type: array, items: {type: string}, x-kubernetes-list-type: set},
      items: {type: array, x-kubernetes-list-type: map, x-kubernetes-list-map-keys: [id], items: {
        type: object, properties: {id: {type: string}, value: {type: integer,
          x-kubernetes-validations: [{rule: self >= oldSelf, message: shrinks}]}}}}}},
}}}}]}
"""


@pytest.fixture
def crds(tmp_path, monkeypatch):
    """Make up a CRD with one of each: the real ones are not in the repository."""
    (tmp_path / "trainer.kubeflow.org_things.yaml").write_text(CRD)
    monkeypatch.setenv(FOLDER, str(tmp_path))


def thing(**spec):
    return {"apiVersion": "trainer.kubeflow.org/v1", "kind": "Thing", "metadata": {}, "spec": spec}


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"size": 1, "name": None, "port": "http", "any": {"a": 1}, "free": {"a": "b"}}, []),
        ({"size": 2**31}, ["spec.size: 2147483648 is not a 'int32' (CRD)"]),
        ({"sizes": 1}, ["spec.sizes: unknown field (CRD)"]),
        ({"deep": {"b": 1}}, ["spec.deep.b: unknown field (CRD)"]),
        ({"port": 1.5}, ["spec.port: must be an integer or a string (CRD)"]),
        ({"tags": ["a", "a"]}, ['spec.tags: "a" is there twice (CRD)']),
        ({"items": [{"id": "a"}, {"id": "a"}]}, ['spec.items: {"id": "a"} is there twice (CRD)']),
    ],
)
def test_a_crd_is_a_strict_schema(spec, expected):
    assert check_crd(thing(**spec)) == expected


@pytest.mark.usefixtures("crds")
@pytest.mark.parametrize(
    ("spec", "old", "expected"),
    [
        ({"name": "a"}, None, []),  # the default of size is 2, and there was no name
        ({"size": 3}, None, ["spec: one or two (rule)"]),
        ({"name": "a"}, {"name": "b"}, ["spec.name: self == oldSelf (rule)"]),
        ({"name": "a"}, {}, []),
        ({"free": {"a": "no"}}, None, ["spec.free.a: self != 'no' (rule)"]),
        ({"items": [{"id": "b", "value": 1}]}, {"items": [{"id": "a", "value": 2}]}, []),
        (
            {"items": [{"id": "b", "value": 9}, {"id": "a", "value": 1}]},
            {"items": [{"id": "a", "value": 2}]},
            ["spec.items[1].value: shrinks (rule)"],
        ),
        ({"deep": {}}, None, ["spec.deep: cannot evaluate \"self.a == 'b'\": "]),
        ({"torn": "a"}, None, ["spec.torn: cannot evaluate 'self ==': "]),
        ({"odd": "a"}, None, ["spec.odd: 'self' is neither true nor false"]),
    ],
)
def test_rules_are_evaluated_where_they_apply(spec, old, expected):
    found = check_rules(thing(**spec), None if old is None else thing(**old))
    assert len(found) == len(expected)
    assert all(text.startswith(start) for text, start in zip(found, expected, strict=True))


def test_rules_need_the_crds(monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match=FOLDER):
        check_rules(TRAIN_JOB)


@needs_crds
@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("metadata.name", "Digits", "metadata.name must match RFC 1035 DNS label format"),
        ("metadata.name", "1digits", "metadata.name must match RFC 1035 DNS label format"),
        ("metadata.name", "a" * 64, "metadata.name must be no more than 63 characters"),
        ("spec.managedBy", "me", "ManagedBy must be"),
        ("status", {"trainerStatus": {"progressPercentage": 1}}, "lastUpdatedTime is required"),
        (f"{PATCH}.hostNetwork", True, "unknown field (CRD)"),
        ("spec.trainer.image", "a" * 501, "is too long (CRD)"),
    ],
)
def test_the_published_crds_refuse(path, value, expected):
    assert any(expected in each for each in check(put(TRAIN_JOB, path, value)))


@needs_crds
def test_the_published_rule_of_the_number_of_processes():
    trainer = find_crd("TrainJob")["properties"]["spec"]["properties"]["trainer"]
    if "x-kubernetes-validations" not in trainer["properties"]["numProcPerNode"]:
        pytest.skip("Kubeflow Trainer 2.3.0 does not have this rule yet")
    found = check(put(TRAIN_JOB, "spec.trainer.numProcPerNode", 0))
    assert ["numProcPerNode must be greater than or equal to 1" in each for each in found] == [True]


@needs_crds
def test_the_published_rules_compare_with_the_old_object():
    new = put(TRAIN_JOB, "spec.trainer.numNodes", 3)
    assert check(new) == check(TRAIN_JOB, TRAIN_JOB) == []
    assert check(new, TRAIN_JOB) == ["spec.trainer: field is immutable (rule)"]
    new = put(RUNTIME, "spec.mlPolicy", {"torch": {}, "mpi": {}})
    assert check(new) == ["spec.mlPolicy: Only one of the policy can be configured (rule)"]


def test_a_job_is_made_of_a_train_job_and_its_runtime():
    job = build_job(TRAIN_JOB, RUNTIME)
    pod = job["spec"]["template"]["spec"]
    (node,) = pod["containers"]
    assert check(job) == check_pod(pod) == []
    assert job["metadata"]["name"] == "digits-12-node-0"
    assert (job["spec"]["completions"], node["image"]) == (2, "registry.example/train:1")
    assert node["resources"] == TRAIN_JOB["spec"]["trainer"]["resourcesPerNode"]
    bare = build_job(TRAIN_JOB, put(RUNTIME, "spec.mlPolicy", ...))
    assert any("no limit for" in each for each in check_pod(bare["spec"]["template"]["spec"]))
    with pytest.raises(KeyError, match="main"):
        build_job(put(TRAIN_JOB, f"{PATCH}.containers.0.name", "main"), RUNTIME)


def test_a_safe_pod_has_no_mistakes():
    assert check_pod(yaml.safe_load(SAFE)) == []


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("hostNetwork", True, "['hostNetwork'] must not be set"),
        ("volumes.0.hostPath", {"path": "/"}, "volumes of {'hostPath'} are not allowed"),
        ("automountServiceAccountToken", ..., "automountServiceAccountToken must be false"),
        ("securityContext.sysctls", [{"name": "a", "value": "b"}], "sysctls must not be set"),
        ("securityContext.runAsNonRoot", ..., "runAsNonRoot must be true"),
        ("containers.0.securityContext.runAsNonRoot", False, "runAsNonRoot must be true"),
        ("securityContext.runAsUser", 0, "runAsUser must not be 0"),
        ("securityContext.seccompProfile", ..., "seccompProfile must be set"),
        ("containers.0.securityContext.seccompProfile", {"type": "Unconfined"}, "seccompProfile"),
        ("containers.0.securityContext.appArmorProfile", {"type": "Unconfined"}, "appArmorProfile"),
        ("containers.0.securityContext.seLinuxOptions", {"role": "a"}, "seLinuxOptions must not"),
        ("containers.0.securityContext.privileged", True, "privileged must not be set"),
        ("containers.0.securityContext.allowPrivilegeEscalation", ..., "must be false"),
        ("containers.0.securityContext.capabilities.drop", [], "must drop ALL"),
        ("containers.0.securityContext.capabilities.add", ["SYS_ADMIN"], "not add {'SYS_ADMIN'}"),
        ("containers.0.securityContext.procMount", "Unmasked", "procMount must not be set"),
        ("containers.0.securityContext.readOnlyRootFilesystem", ..., "must be true"),
        ("containers.0.ports", [{"hostPort": 80}], "hostPort must not be set"),
        ("containers.0.livenessProbe", {}, "must not be set"),
        ("containers.0.resources.limits.cpu", ..., "there is no limit for {'cpu'}"),
        ("containers.0.env.1", {"name": "ZEUSRUN_TOKEN", "value": "x"}, "['ZEUSRUN_TOKEN'] must"),
        ("containers.0.env.1", {"name": "PLAIN", "value": "x"}, "['PLAIN'] must come from"),
        ("initContainers", [{"name": "first"}], "first: capabilities must drop ALL"),
    ],
)
def test_an_unsafe_pod_is_found(path, value, expected):
    spec = put(yaml.safe_load(SAFE), path, value)
    assert any(expected in each for each in check_pod(spec, secrets=["PLAIN"]))
