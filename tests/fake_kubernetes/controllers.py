"""The controllers of jobs: they look at everything after each change, and do the next step."""

from __future__ import annotations

import itertools
import random
import string
import time

from tests.fake_kubernetes.store import (
    ENDED,
    Failure,
    condition,
    copy,
    now,
    owned,
    owner_of,
    set_condition,
)
from tests.fake_kubernetes.trainjobs import INDEX, TrainJobs, admit

TRACKED = "batch.kubernetes.io/job-tracking"


def prepare(cluster, resource, thing) -> dict:
    """Return an object as it is stored when it is created: with the defaults of its fields."""
    thing["status"] = {}
    if resource == "trainjobs":
        admit(cluster, thing)
    if resource == "jobs":
        spec = thing["spec"]
        usual = {"backoffLimit": 6, "completions": 1, "parallelism": 1, "suspend": False}
        thing["spec"] = {**usual, "completionMode": "NonIndexed", **spec}
        if spec["template"]["spec"].get("restartPolicy") != "Never":
            text = 'spec.template.spec.restartPolicy: this cluster has "Never" only'
            name = thing["metadata"]["name"]
            raise Failure(422, "Invalid", f'Job.batch "{name}" is invalid: {text}')
    return thing


def _template_of(job, index=None) -> dict:
    """Return a pod of a job, with the labels that every pod of a job has."""
    template = copy(job["spec"]["template"])
    meta, name, uid = template.get("metadata", {}), job["metadata"]["name"], job["metadata"]["uid"]
    labels = {"job-name": name, "controller-uid": uid}
    labels |= {f"batch.kubernetes.io/{key}": value for key, value in labels.items()}
    annotations = {}
    suffix = "".join(random.choices(string.ascii_lowercase + string.digits, k=5))
    pod_name = f"{name}-{suffix}"
    if index is not None:
        labels[INDEX] = annotations[INDEX] = str(index)
        pod_name = f"{name}-{index}-{suffix}"
        template["spec"]["hostname"] = f"{name}-{index}"
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{INDEX}']"}}
        for container in template["spec"]["containers"]:
            own = {"name": "JOB_COMPLETION_INDEX", "valueFrom": source}
            container["env"] = [*container.get("env", []), own]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod_name,
            "namespace": job["metadata"]["namespace"],
            "labels": {**meta.get("labels", {}), **labels},
            "annotations": {**meta.get("annotations", {}), **annotations},
            "ownerReferences": owned(job, "Job", "batch/v1"),
            "finalizers": [TRACKED],
        },
        "spec": template["spec"],
        "status": {"phase": "Pending", "conditions": []},
    }


def _matches(rule, pod):
    """Return the text of what in a failed pod a rule of a ``podFailurePolicy`` matches."""
    name = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
    for pattern in rule.get("onPodConditions") or []:
        for each in pod["status"]["conditions"]:
            wanted = (pattern["type"], pattern.get("status", "True"))
            if (each["type"], each["status"]) == wanted:
                return f"Pod {name} has condition {each['type']}"
    codes = rule.get("onExitCodes")
    for container in pod["status"].get("containerStatuses", []) if codes else []:
        code = container["state"].get("terminated", {}).get("exitCode", 0)
        meant = code and codes.get("containerName") in {None, container["name"]}
        if meant and (code in codes["values"]) == (codes["operator"] == "In"):
            return f"Container {container['name']} for pod {name} failed with exit code {code}"
    return None


def decide(policy, pod) -> tuple[str, str]:
    """Return what becomes of a failed pod: ``Count``, ``Ignore`` or ``FailJob``, and why."""
    for number, rule in enumerate((policy or {}).get("rules", [])):
        if text := _matches(rule, pod):
            return rule["action"], f"{text} matching {rule['action']} rule at index {number}"
    return "Count", ""


class Controllers:
    """All of them."""

    def __init__(self, cluster) -> None:
        self._cluster, self._store = cluster, cluster.store
        self._not_before: dict[str, float] = {}
        create = lambda job: self._store.add("jobs", prepare(cluster, "jobs", job))  # noqa: E731
        self._trainjobs = TrainJobs(cluster, create)

    def step(self):
        """Do what there is to do now."""
        self._trainjobs.step()
        pods = self._store.all("pods")
        for job in self._store.all("jobs"):
            uid = job["metadata"]["uid"]
            self._do_job(job, [pod for pod in pods if owner_of(pod).get("uid") == uid])
        alive = {job["metadata"]["uid"] for job in self._store.all("jobs")}
        for pod in pods:  # nobody else would let them go
            tracked = TRACKED in pod["metadata"].get("finalizers", [])
            if tracked and owner_of(pod).get("uid") not in alive:
                self._release(pod)

    def _release(self, pod):
        with self._store.edit("pods", pod) as free:
            free["metadata"]["finalizers"] = []

    def _do_job(self, old, pods):
        if "deletionTimestamp" in old["metadata"]:
            for pod in pods:
                self._release(pod)
        elif not (condition(old, "Complete") or condition(old, "Failed")):
            with self._store.edit("jobs", old) as job:
                self._count(job, pods)
                active = [pod for pod in pods if pod["status"]["phase"] not in ENDED]
                ended = self._judge(job)
                if ended or job["spec"]["suspend"]:
                    for pod in active:
                        if "deletionTimestamp" not in pod["metadata"]:
                            self._store.delete("pods", pod)
                else:
                    job["status"].setdefault("startTime", now())
                    active += self._create_pods(job, pods, active)
                if ended and not active:
                    self._finish(job, ended)
                self._write_status(job, active)

    def _judge(self, job) -> str | None:
        """Return how the job ends as soon as none of its pods is left; ``None`` while it goes on."""
        status, spec = job["status"], job["spec"]
        if status.get("failed", 0) > spec["backoffLimit"] and not condition(job, "FailureTarget"):
            text = "Job has reached the specified backoff limit"
            set_condition(job, "FailureTarget", "BackoffLimitExceeded", text)
        if condition(job, "FailureTarget"):
            return "Failed"
        if status.get("succeeded", 0) < spec["completions"]:
            return None
        text = "Reached expected number of succeeded pods"
        set_condition(job, "SuccessCriteriaMet", "CompletionsReached", text)
        return "Complete"

    def _finish(self, job, ended):
        why = condition(job, "FailureTarget") or condition(job, "SuccessCriteriaMet")
        set_condition(job, ended, why["reason"], why["message"])
        if ended == "Complete":
            job["status"]["completionTime"] = now()

    def _write_status(self, job, active):
        suspended = job["spec"]["suspend"]
        if suspended or condition(job, "Suspended"):
            word = "suspended" if suspended else "resumed"
            reason = f"Job{word.capitalize()}"
            set_condition(job, "Suspended", reason, f"Job {word}", status=str(suspended))
        doomed = [pod for pod in active if "deletionTimestamp" in pod["metadata"]]
        running = [pod for pod in active if pod["status"]["phase"] == "Running"]
        counts = {"active": len(active) - len(doomed), "terminating": len(doomed)}
        job["status"] |= {**counts, "ready": len(running)}

    def _count(self, job, pods):
        """Count the pods that have ended since the last time, and let them go."""
        for pod in pods:
            if pod["status"]["phase"] not in ENDED or TRACKED not in pod["metadata"]["finalizers"]:
                continue
            if pod["status"]["phase"] == "Succeeded":
                job["status"]["succeeded"] = job["status"].get("succeeded", 0) + 1
            else:
                action, text = decide(job["spec"].get("podFailurePolicy"), pod)
                if action == "FailJob" and not condition(job, "FailureTarget"):
                    set_condition(job, "FailureTarget", "PodFailurePolicy", text)
                if action != "Ignore":
                    job["status"]["failed"] = job["status"].get("failed", 0) + 1
                wait = time.monotonic() + self._cluster.backoff_s
                self._not_before[job["metadata"]["uid"]] = wait
            self._release(pod)

    def _create_pods(self, job, pods, active):
        """Create the pods that are missing, but not during the delay after one has failed."""
        spec = job["spec"]
        if time.monotonic() < self._not_before.get(job["metadata"]["uid"], 0):
            return []
        if "podFailurePolicy" not in spec:  # else a pod that is ending has its place until it ends
            active = [pod for pod in active if "deletionTimestamp" not in pod["metadata"]]
        if spec["completionMode"] == "Indexed":
            fine = [pod for pod in pods if pod["status"]["phase"] == "Succeeded"]
            taken = {int(pod["metadata"]["labels"][INDEX]) for pod in [*active, *fine]}
            missing = [index for index in range(spec["completions"]) if index not in taken]
        else:
            missing = [None] * (
                spec["completions"] - job["status"].get("succeeded", 0) - len(active)
            )
        places = max(0, spec["parallelism"] - len(active))
        templates = [_template_of(job, index) for index in itertools.islice(missing, places)]
        return [self._store.add("pods", each) for each in templates]
