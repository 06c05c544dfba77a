"""What API servers and webhooks check in code, and no schema shows; and our own rules of pods.

``kubernetes_schemas.check`` calls the first three. Their sources are named; of Kubernetes, only
what zeusrun's objects use is here.
"""

from __future__ import annotations

import copy
import re
import zoneinfo
from datetime import datetime

from cronsim import CronSim, CronSimError

ANCESTOR = "trainer.kubeflow.org/trainjob-ancestor-step"
_LABEL, _LABEL_1035 = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", r"[a-z]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED = re.compile(rf"({_SUBDOMAIN}/)?[A-Za-z0-9]([-\w.]{{0,61}}[A-Za-z0-9])?", re.ASCII)
_VALUE = re.compile(r"([A-Za-z0-9]([-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_MANAGER = re.compile(rf"{_SUBDOMAIN}/[-\w.~!$&'()*+,;=:@%/]+", re.ASCII)
_QUANTITY = re.compile(r"(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?", re.ASCII)
_SECRET = re.compile("token|secret|passw|credential|api_?key|private_?key", re.IGNORECASE)
_NAMES = {  # kind: what a name looks like, and its length
    "CronJob": (_SUBDOMAIN, 52),
    "Job": (_LABEL, 63),  # its pods have it as a label, and in their hostnames
    "Service": (_LABEL_1035, 63),
    "TrainJob": (_LABEL_1035, 63),
    **dict.fromkeys(("ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"), ("[^/%]+", 253)),
}
_WORDS = {  # the API reference of each field; the schemas of kubernetes-validate lack them
    "completionMode": {"Indexed", "NonIndexed"},
    "concurrencyPolicy": {"Allow", "Forbid", "Replace"},
    "effect": {"NoExecute", "NoSchedule", "PreferNoSchedule"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "medium": {"", "Memory"},
    "protocol": {"SCTP", "TCP", "UDP"},
}
_MAPS = ("annotations", "labels", "matchLabels", "nodeSelector")
_COUNTS = ("activeDeadlineSeconds", "backoffLimit", "parallelism", "ttlSecondsAfterFinished")
_DEADLINES = ("startingDeadlineSeconds", "successfulJobsHistoryLimit", "failedJobsHistoryLimit")
_REASONS = {  # that a failure policy of JobSet may name
    *("BackoffLimitExceeded", "DeadlineExceeded", "FailedIndexes", "MaxFailedIndexesExceeded"),
    "PodFailurePolicy",
}
_FIELDS = re.compile(  # that fieldRef may name: "Downward API" in the Kubernetes documentation
    r"metadata\.(name|namespace|uid)|metadata\.(labels|annotations)\['[^']+'\]"
    r"|spec\.(nodeName|serviceAccountName)|status\.(hostIPs?|podIPs?)"
)
_VOLUMES = {  # that the standard "restricted" allows
    *("configMap", "csi", "downwardAPI", "emptyDir", "ephemeral"),
    *("persistentVolumeClaim", "projected", "secret"),
}
_MERGED_BY = {  # the patchMergeKey of these lists in k8s.io/api/core/v1/types.go
    **dict.fromkeys(("containers", "env", "imagePullSecrets", "initContainers"), "name"),
    **dict.fromkeys(("replicatedJobs", "schedulingGates", "volumes"), "name"),
    "volumeMounts": "mountPath",
}


def join(path, key) -> str:
    """Return the path of a field, or for a number of an item, in what has this path."""
    return f"{path}[{key}]" if isinstance(key, int) else f"{path}.{key}".lstrip(".")


def _tell(path, *rules):
    return [f"{path}: {text}" for broken, text in rules if broken]


def _dig(value, path):
    for key in path.split("."):
        value = value.get(key, {})
    return value


def _twice(values):
    values = list(values)
    return sorted({each for each in values if values.count(each) > 1})


def check_names(document) -> list[str]:
    """Check the name of an object, its labels, and the names that controllers make of its own.

    Sources: "Object Names and IDs" and "Labels and Selectors" in the Kubernetes documentation, and
    "CronJob limitations" (52 characters); pkg/apis/batch/validation/validation.go of Kubernetes
    (NAME-INDEX is the hostname in an indexed Job); pkg/webhooks/jobset_webhook.go of JobSet
    (NAME-REPLICATEDJOB-0-INDEX-xxxxx).
    """
    kind, metadata = document["kind"], document.get("metadata", {})
    name = metadata.get("name") or metadata.get("generateName", "")[:58] + "xxxxx"
    pattern, limit = _NAMES.get(kind, (_SUBDOMAIN, 253))
    made = ""
    if kind == "Job" and _dig(document, "spec.completionMode") == "Indexed":
        made = f"{name}-{document['spec'].get('completions', 1) - 1}"
    elif kind == "TrainJob":
        made = f"{name}-node-0-{(_dig(document, 'spec.trainer.numNodes') or 1) - 1}-xxxxx"
    namespace = metadata.get("namespace", "default")
    return [
        *_tell(
            "metadata",
            (not metadata.get("name") and not metadata.get("generateName"), "name is required"),
            (not re.fullmatch(pattern, name), f"{name!r} is no name of a {kind}"),
            (len(name) > limit, f"{name!r} has more than {limit} characters"),
            (len(made) > 63, f"a pod would be called {made}, more than 63 characters"),
            (not re.fullmatch(_LABEL, namespace), f"{namespace!r} is no name of a namespace"),
        ),
        *_check_labels(document, ""),
    ]


def _items(value):
    pairs = enumerate(value) if isinstance(value, list) else ()
    return value.items() if isinstance(value, dict) else pairs


def _check_labels(value, path):
    for key, each in _items(value):
        inner = join(path, key)
        if key in _MAPS and isinstance(each, dict):
            for label, text in each.items():
                bad = key != "annotations" and not _VALUE.fullmatch(text)
                yield from _tell(
                    inner,
                    (not _QUALIFIED.fullmatch(label), f"{label!r} is no key of a label"),
                    (bad, f"{text!r} is no value of a label"),
                )
        else:
            yield from _check_labels(each, inner)


def check_values(document, path="") -> list[str]:
    """Check quantities and words at any depth; a null is an error, too."""
    wrong = []
    for key, each in _items(document):
        inner = join(path, key)
        if key in {"limits", "requests"}:
            wrong += _check_quantities(each, inner)
        elif key not in _MAPS:
            unknown = isinstance(each, str) and each not in _WORDS.get(key, {each})
            size = key == "sizeLimit" and not _QUANTITY.fullmatch(str(each))
            wrong += _tell(
                inner,
                (each is None, "null"),
                (unknown, f"{each!r} is unknown"),
                (size, f"{each!r} is no quantity"),
            )
            wrong += check_values(each, inner)
    return wrong


def _check_quantities(resources, path):
    """``validateContainerResourceName`` in pkg/apis/core/validation of Kubernetes."""
    for name, text in resources.items():
        known = re.fullmatch("cpu|memory|(ephemeral-)?storage|hugepages-.+", name)
        extended = "/" in name and _QUALIFIED.fullmatch(name)
        yield from _tell(
            f"{path}.{name}",
            (not _QUANTITY.fullmatch(str(text)), f"{text!r} is no quantity"),
            (not known and not extended, "no resource has this name"),
            (extended and not str(text).isdigit(), f"{text!r} is no whole number"),
        )


def check_code(document) -> list[str]:
    """Check what servers of Kubernetes, Kubeflow Trainer and JobSet check in code."""
    spec, kind = document.get("spec", {}), document["kind"]
    wrong, jobs = [], {}
    if kind == "Job":
        jobs = {"spec": spec}
    elif kind == "CronJob":
        wrong, jobs = _check_schedule(spec), {"spec.jobTemplate": _dig(spec, "jobTemplate.spec")}
    elif kind == "TrainingRuntime":
        inner = _dig(spec, "template.spec")
        wrong = [*_check_runtime(inner)]
        jobs = {each["name"]: _as_jobset_does(each) for each in inner.get("replicatedJobs", ())}
    elif kind == "TrainJob":
        wrong = [*_check_patches(spec)]
    return wrong + [text for path, job in jobs.items() for text in _check_job(job, path)]


def _check_schedule(spec):
    """``validateCronJobSpec`` in pkg/apis/batch/validation/validation.go of Kubernetes.

    Its parser (github.com/robfig/cron) knows neither seconds nor ``L`` and ``#``, and no day 7.
    """
    wrong, fields = [], spec["schedule"].split()
    try:
        CronSim(spec["schedule"], datetime(2026, 1, 1))  # noqa: DTZ001 - only to parse it
        if len(fields) != 5 or re.search("[LW]", fields[2]) or re.search("[L#7]", fields[4]):
            wrong = [f"spec.schedule: {spec['schedule']!r} is not for Kubernetes"]
    except CronSimError as error:
        wrong = [f"spec.schedule: {error}"]
    own = {"manualSelector", "selector"} & _dig(spec, "jobTemplate.spec").keys()
    zone = spec.get("timeZone", "UTC")
    return wrong + _tell(
        "spec",
        (zone not in zoneinfo.available_timezones(), f"{zone!r} is no time zone"),
        (any(spec.get(key, 0) < 0 for key in _DEADLINES), f"one of {_DEADLINES} is negative"),
        (own, "Kubernetes makes the selector of the job"),
    )


def _check_job(spec, path):
    """``validateJobSpec`` in pkg/apis/batch/validation/validation.go of Kubernetes."""
    pod, policy = _dig(spec, "template.spec"), spec.get("podFailurePolicy")
    restart = ("Never",) if policy else ("Never", "OnFailure")
    replace = ("Failed",) if policy else ("Failed", "TerminatingOrFailed")
    indexed = spec.get("completionMode") == "Indexed"
    rules = policy["rules"] if policy else []
    yield from _tell(
        path,
        (any(spec.get(key, 0) < 0 for key in _COUNTS), f"one of {_COUNTS} is negative"),
        (indexed and spec.get("completions", 0) < 1, "completionMode Indexed needs completions"),
        (pod.get("restartPolicy") not in restart, f"restartPolicy must be in {restart}"),
        (
            spec.get("podReplacementPolicy", "Failed") not in replace,
            f"podReplacementPolicy must be in {replace}",
        ),
        (len(rules) > 20, "podFailurePolicy has more than 20 rules"),
    )
    for number, rule in enumerate(rules):
        yield from _check_failure(rule, spec, f"{path}.podFailurePolicy.rules[{number}]")
    yield from _check_pod(pod, f"{path}.template.spec")


def _check_failure(rule, spec, path):
    action, codes = rule["action"], rule.get("onExitCodes")
    statuses = {each.get("status", "True") for each in rule.get("onPodConditions", ())}
    yield from _tell(
        path,
        (action not in {"Count", "FailIndex", "FailJob", "Ignore"}, f"unknown action {action!r}"),
        (action == "FailIndex" and "backoffLimitPerIndex" not in spec, "no backoffLimitPerIndex"),
        (bool(codes) == bool(statuses), "needs either onExitCodes or onPodConditions"),
        (statuses - {"False", "True", "Unknown"}, "onPodConditions has an unknown status"),
    )
    if codes:
        values, operator, name = codes["values"], codes["operator"], codes.get("containerName")
        names = {None, *(each["name"] for each in _containers(_dig(spec, "template.spec")))}
        yield from _tell(
            f"{path}.onExitCodes",
            (operator not in {"In", "NotIn"}, f"unknown operator {operator!r}"),
            (name not in names, f"there is no container {name!r}"),
            (not 1 <= len(values) <= 255, "needs 1 to 255 values"),
            (values != sorted(set(values)), "values must be different, and in order"),
            (operator == "In" and 0 in values, "0 is not allowed with In"),
        )


def _containers(pod):
    kinds = ("initContainers", "containers", "ephemeralContainers")
    return [each for kind in kinds for each in pod.get(kind, ())]


def _check_pod(pod, path):
    """``ValidatePodSpec`` in pkg/apis/core/validation/validation.go of Kubernetes."""
    volumes = [each["name"] for each in pod.get("volumes", ())]
    names = [each["name"] for each in _containers(pod)]
    odd = [each for each in volumes + names if not re.fullmatch(_LABEL, each) or len(each) > 63]
    sources = [each["name"] for each in pod.get("volumes", ()) if len(each) != 2]
    yield from _tell(
        path,
        (not pod.get("containers"), "containers are required"),
        (odd, f"{odd} are no DNS labels"),
        (_twice(volumes) + _twice(names), f"{_twice(volumes) + _twice(names)} are there twice"),
        (sources, f"volumes: {sources} need one source"),
        (pod.get("terminationGracePeriodSeconds", 0) < 0, "the grace period is negative"),
    )
    for each in _containers(pod):
        mounts, image = each.get("volumeMounts", []), each.get("image", "")
        paths = [mount["mountPath"] for mount in mounts]
        absent = {mount["name"] for mount in mounts} - {*volumes}
        yield from _tell(
            f"{path}.{each['name']}",
            (not image or image != image.strip(), f"{image!r} is no image"),
            (_twice(paths), f"two volumeMounts at {_twice(paths)}"),
            (any(":" in each or not each for each in paths), f"{paths} are no mountPaths"),
            (absent, f"there are no volumes {sorted(absent)}"),
        )
        yield from _check_env(each.get("env", []), f"{path}.{each['name']}.env")


def _check_env(env, path):
    """``ValidateEnv`` in pkg/apis/core/validation/validation.go of Kubernetes."""
    names = [each["name"] for each in env]
    odd = [each for each in names if not each or "=" in each or not each.isprintable()]
    yield from _tell(path, (_twice(names), f"{_twice(names)} twice"), (odd, f"{odd} are no names"))
    for each in env:
        source = each.get("valueFrom", {"value": {}})
        field = _dig(source, "fieldRef").get("fieldPath", "metadata.name")
        reference = source.get("secretKeyRef", {"name": "a", "key": "a"})
        named = re.fullmatch(_SUBDOMAIN, reference.get("name", ""))
        key = re.fullmatch(r"[-.\w]{1,253}", reference["key"], re.ASCII)
        yield from _tell(
            f"{path}.{each['name']}",
            (len(source) != 1 or {"value", "valueFrom"} <= each.keys(), "needs one source"),
            (not _FIELDS.fullmatch(field), f"fieldRef cannot read {field}"),
            (not named or not key, f"{reference} is no key of a secret"),
        )


def _find_pods(template):
    """Yield each replicated job's name and pod spec, of a runtime's template or a patch of it."""
    for each in _dig(template, "spec").get("replicatedJobs", ()):
        yield each["name"], _dig(each, "template.spec.template.spec")


def _as_jobset_does(replicated):
    pod = {"restartPolicy": "OnFailure"}  # its default, in pkg/webhooks/jobset_webhook.go
    return _merge({"template": {"spec": pod}}, _dig(replicated, "template.spec"), "")


def _check_patches(spec):
    """``Validate`` in pkg/runtime/framework/plugins/jobset/jobset.go of Kubeflow Trainer."""
    reserved = {"dataset-initializer", "model-initializer", "node"}
    for number, patch in enumerate(spec.get("runtimePatches", ())):
        pods = [pod for _, pod in _find_pods(_dig(patch, "trainingRuntimeSpec.template"))]
        named = {each["name"] for pod in pods for each in _containers(pod) if each.get("env")}
        yield from _tell(
            f"spec.runtimePatches[{number}]",
            (not _MANAGER.fullmatch(patch["manager"]), "manager must be DOMAIN/PATH"),
            (named & reserved, f"only spec.trainer.env sets the env of {named & reserved}"),
        )
    yield from _check_env(_dig(spec, "trainer").get("env", []), "spec.trainer.env")


def _check_runtime(spec):
    """The webhooks of a TrainingRuntime and of the JobSet made of it.

    Sources: pkg/webhooks/trainingruntime_webhook.go of Kubeflow Trainer (ancestors) and
    pkg/webhooks/jobset_webhook.go of JobSet (names, the failure policy).
    """
    for each in spec.get("replicatedJobs", ()):
        ancestor = _dig(each, "template.metadata.labels").get(ANCESTOR)
        wanted = "node" if ancestor == "trainer" else ancestor
        names = {one["name"] for one in _containers(_dig(each, "template.spec.template.spec"))}
        yield from _tell(
            each["name"],
            (ancestor and wanted not in names, f"needs a container {wanted}"),
            (ancestor and each.get("replicas", 1) != 1, "needs one replica"),
            (not re.fullmatch(_LABEL, each["name"]), "this is no DNS label"),
        )
    rules = _dig(spec, "failurePolicy").get("rules", [])
    jobs = {each["name"] for each in spec.get("replicatedJobs", ())}
    names = _twice(each.get("name") for each in rules if each.get("name"))
    targets = {each for rule in rules for each in rule.get("targetReplicatedJobs", ())}
    reasons = {each for rule in rules for each in rule.get("onJobFailureReasons", ())}
    yield from _tell(
        "failurePolicy",
        (names, f"two rules are called {names}"),
        (targets - jobs, f"there are no jobs {targets - jobs}"),
        (reasons - _REASONS, f"there are no reasons {reasons - _REASONS}"),
    )


def build_job(train_job, runtime):
    """Return the Job that Kubeflow Trainer and JobSet make of a TrainJob, as far as we use them.

    The resources and the number of nodes reach the Job only if the runtime has an ``mlPolicy``.
    Sources: pkg/runtime/core/trainingruntime.go and, for image, command and env,
    pkg/runtime/framework/plugins/jobset/builder.go of Kubeflow Trainer.

    Raises:
        KeyError: If a patch names a replicated job or a container that the runtime does not have.
    """
    template = copy.deepcopy(runtime["spec"]["template"])
    known = {
        (name, each["name"]) for name, pod in _find_pods(template) for each in _containers(pod)
    }
    for patch in train_job["spec"].get("runtimePatches", ()):
        change = _dig(patch, "trainingRuntimeSpec.template")
        patched = {
            (name, each["name"]) for name, pod in _find_pods(change) for each in _containers(pod)
        }
        if patched - known:
            raise KeyError(sorted(patched - known))
        template = _merge(template, change, "")
    job = next(
        each
        for each in template["spec"]["replicatedJobs"]
        if _dig(each, "template.metadata.labels").get(ANCESTOR) == "trainer"
    )
    spec, trainer = _as_jobset_does(job), train_job["spec"].get("trainer", {})
    change = {key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer}
    if "mlPolicy" in runtime["spec"]:
        change["resources"] = trainer.get("resourcesPerNode", {})
        count = trainer.get("numNodes", runtime["spec"]["mlPolicy"].get("numNodes", 1))
        spec |= {"completions": count, "parallelism": count}
    pod = {"containers": [{"name": "node", **change}]}
    spec = _merge({"completionMode": "Indexed", **spec}, {"template": {"spec": pod}}, "")
    name = f"{train_job['metadata']['name']}-{job['name']}-0"
    metadata = {**job["template"]["metadata"], "name": name}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, "spec": spec}


def _merge(value, patch, key):
    """Merge as Kubernetes' strategic merge patch; a volume is replaced (``retainKeys``)."""
    if isinstance(value, dict) and isinstance(patch, dict):
        return value | {name: _merge(value.get(name), each, name) for name, each in patch.items()}
    by = _MERGED_BY.get(key)
    if by is None or not isinstance(value, list):
        return patch
    items = {each[by]: each for each in value}
    for each in patch:
        before = None if key in {"env", "volumes"} else items.get(each[by])
        items[each[by]] = _merge(before, each, "")
    return list(items.values())


def check_pod(spec, secrets=()) -> list[str]:
    """Check a pod against the standard "restricted", and against what zeusrun promises.

    Source: "Pod Security Standards" in the Kubernetes documentation: every control for Linux.
    Where it allows some values of a field that zeusrun never sets, none is allowed here. Ours are:
    no token of the service account, a root file system that cannot be written, limits for CPU and
    memory, and secrets by reference only.

    Args:
        spec: The complete spec, as a Job or ``build_job`` has it.
        secrets: Variables that must come from a secret, whatever they are called.
    """
    security = spec.get("securityContext", {})
    hosts = [key for key in ("hostIPC", "hostNetwork", "hostPID") if spec.get(key)]
    kinds = {key for each in spec.get("volumes", ()) for key in each} - {"name", *_VOLUMES}
    wrong = _tell(
        "pod",
        (hosts, f"{hosts} must not be set"),
        (kinds, f"volumes of {kinds} are not allowed"),
        (security.get("sysctls"), "sysctls must not be set"),
        (
            spec.get("automountServiceAccountToken") is not False,
            "automountServiceAccountToken must be false",
        ),
    )
    for each in _containers(spec):
        wrong += _check_security(each.get("securityContext", {}), security, each["name"])
        wrong += _check_container(each, set(secrets))
    return wrong


def _check_security(own, pods, name):
    used = {**pods, **own}  # the container's first
    safe = {"Localhost", "RuntimeDefault"}
    capabilities = own.get("capabilities", {})
    added = {*capabilities.get("add", ())} - {"NET_BIND_SERVICE"}
    return _tell(
        name,
        (used.get("runAsNonRoot") is not True, "runAsNonRoot must be true"),
        (0 in (own.get("runAsUser"), pods.get("runAsUser")), "runAsUser must not be 0"),
        (_dig(used, "seccompProfile").get("type") not in safe, "seccompProfile must be set"),
        (
            _dig(used, "appArmorProfile").get("type") == "Unconfined",
            "appArmorProfile must not be Unconfined",
        ),
        (used.get("seLinuxOptions"), "seLinuxOptions must not be set"),
        (own.get("privileged"), "privileged must not be set"),
        (
            own.get("allowPrivilegeEscalation") is not False,
            "allowPrivilegeEscalation must be false",
        ),
        ("ALL" not in capabilities.get("drop", ()), "capabilities must drop ALL"),
        (added, f"capabilities must not add {added}"),
        (own.get("procMount", "Default") != "Default", "procMount must not be set"),
        (own.get("readOnlyRootFilesystem") is not True, "readOnlyRootFilesystem must be true"),
    )


def _check_container(container, secrets):
    hooks = ("lifecycle", "livenessProbe", "readinessProbe", "startupProbe")
    absent = {"cpu", "memory"} - _dig(container, "resources.limits").keys()
    given = [
        each["name"]
        for each in container.get("env", ())
        if each["name"] in secrets or _SECRET.search(each["name"])
        if "secretKeyRef" not in each.get("valueFrom", {})
    ]
    return _tell(
        container["name"],
        (
            any(each.get("hostPort") for each in container.get("ports", ())),
            "hostPort must not be set",
        ),
        (container.keys() & {*hooks}, f"{hooks} must not be set"),
        (absent, f"there is no limit for {absent}"),
        (given, f"{given} must come from a secret"),
    )
