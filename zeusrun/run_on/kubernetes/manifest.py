"""The manifest of a job: a Job for one pod, a TrainJob of Kubeflow Trainer for several.

What does not depend on the job is in ``job.yaml``.
"""

from __future__ import annotations

import json
import math
import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import yaml

from zeusrun.errors import JobFileError, UsageError
from zeusrun.files.home import trusted_home
from zeusrun.history.registry import find_default
from zeusrun.jobfile.secrets import load_secrets, looks_secret
from zeusrun.jobfile.values import user_path
from zeusrun.redaction import hide_password
from zeusrun.run_on.kubernetes.client import CONTAINER
from zeusrun.run_on.kubernetes.section import HISTORY, Kubernetes
from zeusrun.run_on.kubernetes.template import PATCHED, merge, read_template

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.queue.admission import Request

_TRAINER = "trainer.kubeflow.org"
_MAX_BASE = 37  # with what Job and JobSet append to it, at most 63
_OF_JOB = {"ZEUSRUN_NAME", "ZEUSRUN_ALLOCATION"}  # variables that name a Job by a label of its pods
_RECORD_S = 30  # after the grace period of the script
_START_S = 600  # of an attempt, or of a pod that takes the place of a lost one


def new_name(job: str) -> str:
    """Return a name for a new job in Kubernetes: letters, digits and ``-``."""
    return f"{_base(job)}-{uuid4().hex[:8]}"


def _base(job: str) -> str:
    text = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")
    return (text if text[:1].isalpha() else f"job-{text}")[:_MAX_BASE].rstrip("-")


def build_manifest(spec: JobSpec, request: Request, name: str) -> dict[str, Any]:
    """Return the Job or the TrainJob of a submit; ``name`` is that of the job in Kubernetes.

    Raises:
        JobFileError: If the job file contains a secret, or is too long.
        UsageError: If no pod can reach the history.
    """
    section, nodes = Kubernetes.of(spec.run_on), spec.launch.nnodes or 1
    job = _build_job(spec, section, request, name)
    made = job["spec"]["template"]
    if section.template is not None:
        path = user_path(spec.source.parent, section.template)
        made = merge(made, read_template(path, several=nodes > 1))
    job["metadata"] |= made["metadata"]
    part_s = math.ceil(spec.timeout_s or 0.0) + _grace_s(spec) + _START_S
    limit_s = part_s * (spec.attempts + job["spec"]["backoffLimit"])
    deadline = {"activeDeadlineSeconds": limit_s} if spec.timeout_s else {}
    job["spec"] |= {**deadline, "template": made}
    if nodes == 1:
        return job
    pod = made["spec"]
    (container,) = pod["containers"]
    # That of a Job is a label of its pods.
    allocation = f"kubernetes:$(ZEUSRUN_NAMESPACE)/{name}"
    container["env"] = [each for each in container["env"] if each["name"] not in _OF_JOB]
    container["env"].append({"name": "ZEUSRUN_ALLOCATION", "value": allocation})
    taken = {key: container.pop(key) for key in ("image", "command", "env")}
    if isinstance(spec.launch.nproc_per_node, int):
        taken["numProcPerNode"] = spec.launch.nproc_per_node
    taken |= {"numNodes": nodes, "resourcesPerNode": container.pop("resources")}
    patch = {key: pod[key] for key in pod if key in PATCHED}
    template = {"metadata": made["metadata"], "spec": patch}
    replicated = {"name": CONTAINER, "template": {"spec": {"template": template}}}
    runtime = {"template": {"spec": {"replicatedJobs": [replicated]}}}
    kind, _, runtime_name = section.runtime.rpartition("/")
    reference = {"kind": kind or "TrainingRuntime", "name": runtime_name}
    return {
        "apiVersion": f"{_TRAINER}/v1alpha1",
        "kind": "TrainJob",
        "metadata": job["metadata"],
        "spec": {
            "runtimeRef": {"apiGroup": _TRAINER, **reference},
            **deadline,
            "trainer": taken,
            "runtimePatches": [{"manager": "zeusrun.io/submit", "trainingRuntimeSpec": runtime}],
        },
    }


def _build_job(spec: JobSpec, section: Kubernetes, request: Request, name: str) -> dict[str, Any]:
    job: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("job.yaml").read_bytes())
    label = spec.name[:63].rstrip("._-")
    labels = {"app.kubernetes.io/managed-by": "zeusrun", "zeusrun.io/job": label}
    where = {} if section.namespace is None else {"namespace": section.namespace}
    job["metadata"] = {"name": name, **where}
    template = job["spec"]["template"]
    template["metadata"] = {"labels": labels}
    pod = template["spec"]
    pod["terminationGracePeriodSeconds"] = _grace_s(spec)
    pod["securityContext"] |= dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), section.user)
    (container,) = pod["containers"]
    container["image"] = section.image
    limits = {name: str(quantity) for name, quantity in section.resources.items()}
    container["resources"] = {"limits": limits}
    # First, so that Kubernetes replaces nothing in the job file.
    container["env"] = [*_own_variables(spec, section, request), *container["env"]]
    for variable, reference in section.secrets.items():
        secret, _, key = reference.partition("/")
        source = {"secretKeyRef": {"name": secret, "key": key}}
        container["env"].append({"name": variable, "valueFrom": source})
    if section.home is not None:
        pod["volumes"][0] = {"name": "home", **_claim(section.home)}
    for number, (path, text) in enumerate(section.volumes.items()):
        (claim, _, rule), name = text.partition(":"), f"volume-{number}"
        only = {"readOnly": True} if rule else {}
        pod["volumes"].append({"name": name, **_claim(claim, **only)})
        container["volumeMounts"].append({"name": name, "mountPath": path, **only})
    return job


def _grace_s(spec: JobSpec) -> int:
    return math.ceil(spec.launch.grace_period_s) + _RECORD_S


def _claim(name: str, **only: bool) -> dict[str, Any]:
    return {"persistentVolumeClaim": {"claimName": name, **only}}


def _own_variables(spec: JobSpec, section: Kubernetes, request: Request) -> list[dict[str, str]]:
    """Return the variables with the job file, the options of the submit, and the history."""
    given, plain = asdict(request), asdict(type(request)())
    kept = ("overrides", "batch_size", "why", "until", "quiet")
    record = {"file": spec.source.name, "folder": section.folder}
    record |= {key: given[key] for key in kept if given[key] != plain[key]}
    values = {
        "ZEUSRUN_JOB": _read_job(spec, request.overrides),
        "ZEUSRUN_REQUEST": json.dumps(record),
    }
    if HISTORY not in section.secrets:
        values[HISTORY] = _history(spec)
    return [{"name": name, "value": _escape(text)} for name, text in values.items()]


def _history(spec: JobSpec) -> str:
    """Return the address of the history; raises ``UsageError`` if a manifest cannot name it."""
    name = spec.history.url or find_default(trusted_home(os.environ), os.environ)[0]
    if not re.fullmatch(r"https?://[^/@]+(/.*)?", name) or hide_password(name) != name:
        raise UsageError(
            f"{spec.source}: pods need a history that they can reach: set history to the address "
            "of a zeusrun server, or take it from a Secret: "
            f"run_on.kubernetes.secrets: {{{HISTORY}: zeusrun/history}}"
        )
    return name


def _read_job(spec: JobSpec, overrides: Sequence[str]) -> str:
    """Return the text of the job file; raises ``JobFileError`` if it cannot be in a manifest."""
    try:
        text = spec.source.read_text("utf-8-sig")
    except OSError as error:
        raise JobFileError(f"{spec.source} cannot be read: {error.strerror}") from error
    # Overrides may hide one of the file, and bring another.
    found = [*spec.secrets, *load_secrets(spec.source)]
    if found or any(map(looks_secret, (text, *overrides))):
        section, name = found[0] if found else ("it", "")
        where = f"{section}.{name}" if section == "env" else section
        raise JobFileError(
            f"{spec.source}: {where} contains a secret, and a manifest must not. Put it into a "
            "Secret, and name that: run_on.kubernetes.secrets: {VARIABLE: SECRET/KEY}"
        )
    return text


def _escape(text: str) -> str:
    """Return a text that Kubernetes leaves as it is: it replaces ``$(NAME)``, and ``$$``."""
    return re.sub(r"\$(?=[$(])", "$$", text)
