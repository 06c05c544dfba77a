"""Kubeflow Trainer and JobSet: a TrainJob becomes a job with one pod for each node.

As in Trainer 2.3: what of the runtime has the label of the trainer gets the image, command and
environment of the TrainJob, and what its plugin for torch sets.
"""

from __future__ import annotations

import math

from tests.fake_kubernetes.store import (
    Failure,
    condition,
    copy,
    owned,
    owner_of,
    set_condition,
)

GROUP = "trainer.kubeflow.org"
STEP = f"{GROUP}/trainjob-ancestor-step"
INDEX = "batch.kubernetes.io/job-completion-index"
JOBSET = "jobset.sigs.k8s.io/"
PORT = 29500  # of the torch plugin since Trainer 2.3; it was 29400
_KEYS = {"volumeMounts": "mountPath", "ports": "containerPort"}
_NAMED = {
    *("containers", "initContainers", "volumes", "env", "imagePullSecrets", "schedulingGates"),
    "replicatedJobs",
}


def merge(base, patch, field=None):
    """Merge as a strategic merge patch does: some lists by a key, all others as a whole."""
    if isinstance(base, dict) and isinstance(patch, dict):
        merged = {name: merge(base.get(name), value, name) for name, value in patch.items()}
        return {name: value for name, value in {**base, **merged}.items() if value is not None}
    key = _KEYS.get(field, "name" if field in _NAMED else None)
    if not (isinstance(base, list) and isinstance(patch, list) and key):
        return copy(patch)
    found = {each[key]: each for each in base}
    for each in patch:
        found[each[key]] = merge(found.get(each[key], {}), each)
    return list(found.values())


def _count(quantity) -> int:
    text = str(quantity)
    return math.ceil(float(text[:-1]) / 1000) if text.endswith("m") else math.ceil(float(text))


def _processes(trainer, resources) -> str:
    """Return ``PET_NPROC_PER_NODE``: for nodes without GPUs their number of CPUs."""
    if "numProcPerNode" in trainer:
        return str(trainer["numProcPerNode"])
    limits, requests = resources.get("limits", {}), resources.get("requests", {})
    if any("gpu" in name and _count(value) for name, value in {**limits, **requests}.items()):
        return "auto"
    return str(max(1, _count(requests.get("cpu") or limits.get("cpu") or 0)))


def jobset_spec(trainjob, runtime) -> dict:
    """Return the spec of the JobSet of a TrainJob.

    Args:
        trainjob: The TrainJob.
        runtime: Its TrainingRuntime.
    """
    spec = copy(runtime["spec"]["template"]["spec"])
    for patch in trainjob["spec"].get("runtimePatches", []):
        template = patch.get("trainingRuntimeSpec", {}).get("template", {})
        spec = merge(spec, template.get("spec", {}))
    trainer, policy = trainjob["spec"].get("trainer", {}), runtime["spec"].get("mlPolicy", {})
    name = trainjob["metadata"]["name"]
    for replicated in spec["replicatedJobs"]:
        job = replicated["template"]
        if job.get("metadata", {}).get("labels", {}).get(STEP) != "trainer":
            continue
        nodes = trainer.get("numNodes") or policy.get("numNodes", 1)
        job["spec"] |= {"completions": nodes, "parallelism": nodes}
        pod = job["spec"]["template"]["spec"]
        for node in pod["containers"]:
            if node["name"] != "node":
                continue
            node.update(
                {key: trainer[key] for key in ("image", "command", "args") if key in trainer}
            )
            resources = merge(node.get("resources", {}), trainer.get("resourcesPerNode", {}))
            rank = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
            torch = [
                {"name": "PET_NNODES", "value": str(nodes)},
                {"name": "PET_NPROC_PER_NODE", "value": _processes(trainer, resources)},
                {"name": "PET_NODE_RANK", "valueFrom": rank},
                {"name": "PET_MASTER_ADDR", "value": f"{name}-node-0-0.{name}"},
                {"name": "PET_MASTER_PORT", "value": str(PORT)},
            ]
            added = {"env": [*trainer.get("env", []), *(torch if "torch" in policy else [])]}
            node["resources"] = resources
            node.update(merge(node, added))
    return spec


def find_runtime(cluster, trainjob) -> dict | None:
    """Return the runtime of a TrainJob; those of the whole cluster are under no namespace."""
    reference = trainjob["spec"]["runtimeRef"]
    local = reference.get("kind", "ClusterTrainingRuntime") == "TrainingRuntime"
    namespace = trainjob["metadata"]["namespace"] if local else ""
    return cluster.runtimes.get(namespace, {}).get(reference["name"])


def admit(cluster, trainjob):
    """Refuse what Trainer's webhook refuses, which is no error of the user's rights."""
    runtime = find_runtime(cluster, trainjob)
    problems = []
    if runtime is None:
        name = trainjob["spec"]["runtimeRef"]["name"]
        text = f'trainingruntimes.{GROUP} "{name}" not found: specified trainingRuntime must be '
        problems.append(f"spec.runtimeRef: Invalid value: {text}created before the TrainJob is")
    known = runtime["spec"]["template"]["spec"]["replicatedJobs"] if runtime else []
    known = {job["name"]: job["template"]["spec"]["template"]["spec"] for job in known}
    for patch in trainjob["spec"].get("runtimePatches", []) if runtime else []:
        template = patch.get("trainingRuntimeSpec", {}).get("template", {})
        for job in template.get("spec", {}).get("replicatedJobs", []):
            if job["name"] not in known:
                problems.append("must not have replicated job that doesn't exist in the runtime")
                continue
            names = {each["name"] for each in known[job["name"]]["containers"]}
            pod = job.get("template", {}).get("spec", {}).get("template", {}).get("spec", {})
            for container in pod.get("containers", []):
                if container["name"] not in names:
                    problems.append("must not have container that doesn't exist in the runtime job")
                elif container.get("env") and container["name"] == "node":
                    problems.append("must not have envs for the node container")
    if problems:
        text = f'admission webhook "validator.trainjob.{GROUP}" denied the request: '
        raise Failure(403, "Forbidden", text + ", ".join(problems))


class TrainJobs:
    """Their controller, and that of the JobSets below them.

    Args:
        cluster: The cluster.
        create_job: Adds a job to the store.
    """

    def __init__(self, cluster, create_job) -> None:
        self._cluster, self._store, self._create_job = cluster, cluster.store, create_job
        self._attempts: dict[str, int] = {}

    def step(self):
        """Do what there is to do now."""
        jobs = self._store.all("jobs")
        for trainjob in self._store.all("trainjobs"):
            uid = trainjob["metadata"]["uid"]
            done = condition(trainjob, "Complete") or condition(trainjob, "Failed")
            if not done and "deletionTimestamp" not in trainjob["metadata"]:
                self._do(trainjob, [job for job in jobs if owner_of(job).get("uid") == uid])

    def _do(self, old, jobs):
        attempt = str(self._attempts.setdefault(old["metadata"]["uid"], 0))
        stale = [
            job for job in jobs if job["metadata"]["labels"][f"{JOBSET}restart-attempt"] != attempt
        ]
        for job in stale:
            if "deletionTimestamp" not in job["metadata"]:
                self._store.delete("jobs", job, policy="Foreground")
        with self._store.edit("trainjobs", old) as trainjob:
            suspend = trainjob["spec"].get("suspend", False)
            if suspend or condition(trainjob, "Suspended"):
                word = "Suspended" if suspend else "Resumed"
                text = f"TrainJob is {word.lower()}"
                set_condition(trainjob, "Suspended", word, text, status=str(suspend))
            if stale:
                return
            for job in jobs:
                with self._store.edit("jobs", job) as child:
                    child["spec"]["suspend"] = suspend
            if jobs:
                self._judge(trainjob, jobs)
            else:
                self._create(trainjob, attempt)

    def _create(self, trainjob, attempt):
        spec = jobset_spec(trainjob, find_runtime(self._cluster, trainjob))
        meta = trainjob["metadata"]
        for replicated in spec["replicatedJobs"]:
            template = replicated["template"]
            labels = {
                f"{JOBSET}jobset-name": meta["name"],
                f"{JOBSET}jobset-uid": meta["uid"],
                f"{JOBSET}replicatedjob-name": replicated["name"],
                f"{JOBSET}replicatedjob-replicas": "1",
                f"{JOBSET}job-index": "0",
                f"{JOBSET}restart-attempt": attempt,
            }
            pod = template["spec"]["template"]
            pod["metadata"] = merge(pod.get("metadata", {}), {"labels": labels})
            pod["spec"]["subdomain"] = meta["name"]
            usual = {"completionMode": "Indexed", "suspend": trainjob["spec"].get("suspend", False)}
            job = {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": {
                    "name": f"{meta['name']}-{replicated['name']}-0",
                    "namespace": meta["namespace"],
                    "labels": {**template.get("metadata", {}).get("labels", {}), **labels},
                    "ownerReferences": owned(trainjob, "TrainJob", f"{GROUP}/v1alpha1"),
                },
                "spec": {**usual, **template["spec"]},
            }
            self._create_job(job)

    def _judge(self, trainjob, jobs):
        counts = [
            {
                "name": job["metadata"]["labels"][f"{JOBSET}replicatedjob-name"],
                "active": int(job["status"].get("active", 0) > 0),
                "ready": int(job["status"].get("ready", 0) >= job["spec"]["completions"]),
                "succeeded": int(bool(condition(job, "Complete"))),
                "failed": int(bool(condition(job, "Failed"))),
                "suspended": int(job["spec"]["suspend"]),
            }
            for job in jobs
        ]
        trainjob["status"]["jobsStatus"] = counts
        if all(condition(job, "Complete") for job in jobs):
            text = "jobset completed successfully"
            set_condition(trainjob, "Complete", "AllJobsCompleted", text)
        for job in jobs:
            if condition(job, "Failed"):
                self._do_failure(trainjob, job)
                return

    def _do_failure(self, trainjob, job):
        """Restart all jobs, or fail, as the failure policy of the runtime wants it."""
        runtime, uid = find_runtime(self._cluster, trainjob), trainjob["metadata"]["uid"]
        policy = runtime["spec"]["template"]["spec"].get("failurePolicy", {})
        why, name = (
            condition(job, "Failed"),
            job["metadata"]["labels"][f"{JOBSET}replicatedjob-name"],
        )
        action = "RestartJobSet"
        for rule in policy.get("rules", []):
            reasons, targets = rule.get("onJobFailureReasons"), rule.get("targetReplicatedJobs")
            if why["reason"] in (reasons or [why["reason"]]) and name in (targets or [name]):
                action = rule["action"]
                break
        if action == "FailJobSet":
            set_condition(trainjob, "Failed", "FailJobSetFailurePolicyAction", why["message"])
        elif not policy:
            set_condition(trainjob, "Failed", "FailedJobs", why["message"])
        elif self._attempts[uid] >= policy.get("maxRestarts", 0):
            text = "jobset failed due to reaching max number of restarts"
            set_condition(trainjob, "Failed", "ReachedMaxRestarts", text)
        else:
            self._attempts[uid] += 1
