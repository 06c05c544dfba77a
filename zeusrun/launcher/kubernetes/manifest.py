"""The manifest of a job: a Job for one pod, a TrainJob of Kubeflow Trainer for several.

Its pods keep the Pod Security Standard "restricted":
https://kubernetes.io/docs/concepts/security/pod-security-standards/
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun.errors import JobFileError, UsageError
from zeusrun.history.registry import default_name
from zeusrun.jobfile.kubernetes_section import HISTORY, Kubernetes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.request import Request

CONTAINER = "node"
"""The container that runs zeusrun; Kubeflow Trainer's runtimes name theirs so, too."""

RUNTIME = "zeusrun"
"""The TrainingRuntime that ``deploy/kubernetes/zeusrun.yaml`` adds to a namespace."""

JOB_LABEL = "zeusrun.io/job"
_MANAGED = {"app.kubernetes.io/managed-by": "zeusrun"}
_TRAINER = "trainer.kubeflow.org"
_PATCHER = "zeusrun.io/submit"
_MOUNT = "/zeusrun"  # anybody may write to an emptyDir, so the home is a folder within
_MAX_BASE = 40  # with what Job, JobSet and CronJob append, at most 63
_MAX_CRON = 52
_MAX_BYTES = 100_000  # Linux: a variable has 128 KiB at most
_RESTARTS = 3  # after a lost pod
_KEPT_S = 7 * 86_400  # finished jobs, with their logs
_RECORD_S = 30  # after the grace period of the script
_PREEMPTED = 75


def new_name(job: str) -> str:
    """Return a name for a new job in Kubernetes: letters, digits and ``-``."""
    return f"{_base(job)}-{uuid4().hex[:5]}"


def _base(job: str, most: int = _MAX_BASE) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    return (text if text[:1].isalpha() else f"job-{text}")[:most].rstrip("-")


def build_manifest(spec: JobSpec, request: Request, name: str) -> dict[str, Any]:
    """Return the Job or the TrainJob of a submit; ``name`` is that of the job in Kubernetes.

    Raises:
        JobFileError: If the job file contains a secret, or is too long.
        UsageError: If no pod can reach the history.
    """
    section, nodes = _section(spec), spec.launch.nnodes or 1
    if nodes == 1:
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": _metadata(spec, section, name),
            "spec": _job_spec(spec, section, request),
        }
    container = _container(spec, section, request, name)
    patch = {**_pod(spec, section), "containers": [_without_own(container)]}
    for key in ("restartPolicy", "automountServiceAccountToken"):  # the TrainingRuntime has them
        del patch[key]
    per_node = spec.launch.nproc_per_node
    count = {"numProcPerNode": per_node} if isinstance(per_node, int) else {}
    return {
        "apiVersion": f"{_TRAINER}/v1alpha1",
        "kind": "TrainJob",
        "metadata": _metadata(spec, section, name),
        "spec": {
            "runtimeRef": {"apiGroup": _TRAINER, "kind": "TrainingRuntime", "name": RUNTIME},
            "trainer": {
                **{key: container[key] for key in ("image", "command", "env")},
                "numNodes": nodes,
                **count,
                "resourcesPerNode": container["resources"],
            },
            "runtimePatches": [{"manager": _PATCHER, "trainingRuntimeSpec": _nested(patch)}],
        },
    }


def build_cron_job(spec: JobSpec, request: Request, cron: str, zone: str) -> dict[str, Any]:
    """Return the CronJob that runs a job by a cron expression in a time zone.

    Raises:
        JobFileError: As ``build_manifest``, or if the job has several nodes.
    """
    section = _section(spec)
    if (spec.launch.nnodes or 1) > 1:
        raise JobFileError(
            f"{spec.source}: a CronJob cannot start a TrainJob, which nnodes: "
            f"{spec.launch.nnodes} needs; leave out --in-cluster, so that cron of this machine "
            "submits the job"
        )
    rules = {"allow": "Allow", "forbid": "Forbid", "replace": "Replace"}
    if request.overlap not in rules:
        raise UsageError("a CronJob knows no overlap: queue; use allow, forbid or replace")
    metadata = _metadata(spec, section, _base(spec.name, _MAX_CRON))
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": metadata,
        "spec": {
            "schedule": cron,
            "timeZone": zone,
            "concurrencyPolicy": rules[request.overlap],
            "startingDeadlineSeconds": 3600,
            "jobTemplate": {
                "metadata": {"labels": metadata["labels"]},
                "spec": _job_spec(spec, section, request),
            },
        },
    }


def _section(spec: JobSpec) -> Kubernetes:
    if spec.kubernetes is None:
        raise ValueError(f"{spec.name} does not run in Kubernetes")
    return spec.kubernetes


def _metadata(spec: JobSpec, section: Kubernetes, name: str) -> dict[str, Any]:
    where = {} if section.namespace is None else {"namespace": section.namespace}
    labels = {**_MANAGED, JOB_LABEL: _label(spec.name), **section.labels}
    return {"name": name, **where, "labels": labels}


def _label(job: str) -> str:
    return job[:63].rstrip("._-")


def _job_spec(spec: JobSpec, section: Kubernetes, request: Request) -> dict[str, Any]:
    """Return the specification of a Job: a lost pod is replaced, another failure ends the job."""
    return {
        "backoffLimit": _RESTARTS,
        "ttlSecondsAfterFinished": _KEPT_S,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "Ignore",
                    "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                },
                {
                    "action": "FailJob",
                    "onExitCodes": {"operator": "NotIn", "values": [0, _PREEMPTED]},
                },
            ]
        },
        "template": {
            "metadata": {"labels": {**_MANAGED, JOB_LABEL: _label(spec.name)}},
            "spec": {
                **_pod(spec, section),
                "containers": [_container(spec, section, request, None)],
            },
        },
    }


def _pod(spec: JobSpec, section: Kubernetes) -> dict[str, Any]:
    """Return the specification of a pod without its containers."""
    empty: dict[str, dict[str, Any]] = {"tmp": {}, "shm": {"medium": "Memory"}}
    if section.home is None:
        empty["home"] = {}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "terminationGracePeriodSeconds": math.ceil(spec.launch.grace_period_s) + _RECORD_S,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": section.user,
            "runAsGroup": section.user,
            "fsGroup": section.user,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "volumes": [
            *({"name": name, "emptyDir": source} for name, source in empty.items()),
            *(
                {"name": name, "persistentVolumeClaim": {"claimName": claim}}
                for claim, name in _claims(section).items()
            ),
        ],
        **section.pod,
    }


def _claims(section: Kubernetes) -> dict[str, str]:
    """Return the names of the volumes by their claims."""
    own = () if section.home is None else (section.home,)
    claims = sorted({*section.volumes.values(), *own})
    return {claim: f"claim-{number}" for number, claim in enumerate(claims)}


def _container(
    spec: JobSpec, section: Kubernetes, request: Request, name: str | None
) -> dict[str, Any]:
    """Return the container; ``name`` is that of its TrainJob, ``None`` in a Job."""
    claims = _claims(section)
    home = "home" if section.home is None else claims[section.home]
    mounts = {_MOUNT: home, "/tmp": "tmp", "/dev/shm": "shm"}  # noqa: S108 - in a container
    mounts |= {path: claims[claim] for path, claim in section.volumes.items()}
    return {
        "name": CONTAINER,
        "image": section.image,
        "command": ["zeusrun", "pod"],
        "env": _env(spec, section, request, name),
        "resources": {"limits": dict(section.resources)},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": mounts[path], "mountPath": path} for path in mounts],
    }


def _without_own(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a patch may say of a container that the trainer section describes."""
    return {key: container[key] for key in ("name", "securityContext", "volumeMounts")}


def _nested(pod: Mapping[str, Any]) -> dict[str, Any]:
    job = {"name": CONTAINER, "template": {"spec": {"template": {"spec": pod}}}}
    return {"template": {"spec": {"replicatedJobs": [job]}}}


def _env(
    spec: JobSpec, section: Kubernetes, request: Request, name: str | None
) -> list[dict[str, Any]]:
    """Return the variables: the job file first, so that nothing is replaced in it."""
    label = "metadata.labels['batch.kubernetes.io/job-name']"
    values = {
        "ZEUSRUN_JOB": _escape(_read_job(spec)),
        "ZEUSRUN_REQUEST": _escape(json.dumps(_stored(spec, section, request))),
        "ZEUSRUN_HOME": f"{_MOUNT}/home",
        "HOME": "/tmp",  # noqa: S108 - in a container
        "USER": "zeusrun",  # torch asks for it, and the image may not know the number
        **_history(spec, section),
    }
    fields = {"ZEUSRUN_NAMESPACE": "metadata.namespace"}
    if name is None:
        fields["ZEUSRUN_NAME"] = label
    found: list[dict[str, Any]] = [{"name": key, "value": text} for key, text in values.items()]
    found += [
        {"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for key, path in fields.items()
    ]
    whose = f"kubernetes:$(ZEUSRUN_NAMESPACE)/{'$(ZEUSRUN_NAME)' if name is None else name}"
    found.append({"name": "ZEUSRUN_ALLOCATION", "value": whose})
    for key, reference in section.secrets.items():
        secret, _, item = reference.partition("/")
        source = {"secretKeyRef": {"name": secret, "key": item}}
        found.append({"name": key, "valueFrom": source})
    return found


def _stored(spec: JobSpec, section: Kubernetes, request: Request) -> dict[str, Any]:
    """Return the options of a submit that differ from the defaults, and where its files are."""
    given, plain = asdict(request), asdict(type(request)())
    kept = ("overrides", "batch_size", "why", "until", "quiet")
    changed = {key: given[key] for key in kept if given[key] != plain[key]}
    return {"file": spec.source.name, "folder": section.folder, **changed}


def _history(spec: JobSpec, section: Kubernetes) -> dict[str, str]:
    """Return the variable that names the history; raises ``UsageError`` if pods have none."""
    if HISTORY in section.secrets or spec.history.url is not None:
        return {}
    name = default_name(os.environ)
    if not name.startswith(("http://", "https://")):
        raise UsageError(
            f"{spec.source}: pods need a history that they can reach: set history to the address "
            "of a zeusrun server, or, for a database, add its URL from a Secret: "
            f"run_on.kubernetes.secrets: {{{HISTORY}: zeusrun/history}}"
        )
    return {HISTORY: name}


def _read_job(spec: JobSpec) -> str:
    """Return the text of the job file; raises ``JobFileError`` if it cannot be in a manifest."""
    if spec.secrets:
        section, name = next(iter(spec.secrets))
        where = f"{section}.{name}" if section == "env" else section
        raise JobFileError(
            f"{spec.source}: {where} contains a secret, and a manifest must not. Put it into a "
            "Secret, and name that: run_on.kubernetes.secrets: {VARIABLE: SECRET/KEY}"
        )
    try:
        text = spec.source.read_text("utf-8-sig")
    except OSError as error:
        raise JobFileError(f"{spec.source} cannot be read: {error.strerror}") from error
    if len(text.encode()) > _MAX_BYTES:
        raise JobFileError(f"{spec.source} is too long for a pod: {_MAX_BYTES:,} bytes at most")
    return text


def _escape(text: str) -> str:
    """Return a text that Kubernetes leaves as it is: it replaces ``$(NAME)``, and ``$$``."""
    return re.sub(r"\$(?=[$(])", "$$$$", text)
