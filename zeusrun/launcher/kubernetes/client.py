"""Kubernetes by its API: creates, reads, watches and deletes jobs, and follows their logs.

Uses the cluster of kubectl, or, within a pod, its own. Every field is read as Kubernetes writes it:
https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import contextlib
import functools
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from zeusrun.errors import LaunchError, UsageError
from zeusrun.launcher.schedulers import KUBERNETES
from zeusrun.plugins import check_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from zeusrun.launcher.schedulers import SchedulerJob, State

_TIMEOUT_S = (5.0, 20.0)  # to connect, to read
_SILENT_S = (5.0, 10.0)  # then a stream is opened again
_HEAD = "batch.kubernetes.io/job-completion-index"  # "0", or absent

GONE = "GONE"
"""State of a job that does not exist any more."""


class _Kind(NamedTuple):
    """How the API calls a kind of job, and which label of a pod has the name of its job."""

    group: str
    version: str
    plural: str
    label: str = ""


_KINDS = {
    "Job": _Kind("batch", "v1", "jobs", "batch.kubernetes.io/job-name"),
    "TrainJob": _Kind(
        "trainer.kubeflow.org", "v1alpha1", "trainjobs", "jobset.sigs.k8s.io/jobset-name"
    ),
    "CronJob": _Kind("batch", "v1", "cronjobs"),
}


@dataclass(frozen=True)
class Pod:
    """The pod of a job that runs zeusrun's head."""

    name: str
    uid: str
    phase: str  # such as Pending
    node: str | None = None
    cause: str | None = None  # why it waits
    begun: bool = False  # whether its container has started
    exit_code: int | None = None  # of zeusrun, once it has ended
    end_cause: str | None = None  # such as OOMKilled


@dataclass(frozen=True)
class KubernetesJob:
    """A job as Kubernetes describes it now."""

    state: str  # QUEUED, RUNNING, GONE, or how it ended: Complete, Failed
    kind: str = "Job"
    cause: str | None = None
    pod: Pod | None = None  # the newest

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""
        return self.state not in {"QUEUED", "RUNNING"}

    @property
    def state_of_ticket(self) -> State:
        """What this says of the ticket of its submit."""
        return "ended" if self.has_ended else "running" if self.state == "RUNNING" else "queued"


class NoClusterError(LaunchError):
    """This machine knows no cluster."""


class _Api:
    """The API of the cluster in use; an error of it is a ``LaunchError``."""

    def __init__(self) -> None:
        """Connect as kubectl does; raises ``NoClusterError`` if nothing says how."""
        check_extra("run_on: kubernetes", "kubernetes", "kubernetes")
        from kubernetes import client, config  # noqa: PLC0415 - an extra, and 600 ms

        self.namespace = "default"
        try:
            api = config.new_client_from_config()
            context = config.list_kube_config_contexts()[1]["context"]
            self.namespace = context.get("namespace") or self.namespace
        except (config.ConfigException, OSError) as error:
            try:
                config.load_incluster_config(configuration := client.Configuration())
            except config.ConfigException:
                why = str(error).rstrip(".")
                raise NoClusterError(
                    f"kubectl has no cluster here: {why}. Set KUBECONFIG, or train on this machine "
                    "with --set run_on=local"
                ) from error
            api = client.ApiClient(configuration)
        api.set_default_header("Content-Type", "application/json")  # 37 sends none
        self.host = api.configuration.host
        self.objects, self.core = client.CustomObjectsApi(api), client.CoreV1Api(api)
        self.error = client.ApiException

    def __call__(self, method: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - its JSON
        """Call a method; raises ``ApiError``."""
        import urllib3  # noqa: PLC0415 - of the extra

        try:
            return method(*args, **{"_request_timeout": _TIMEOUT_S, **options})
        except self.error as error:
            raise ApiError(*_explain(error)) from error
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise ApiError(None, f"{self.host} does not respond: {reason}") from error


class ApiError(LaunchError):
    """The API refuses a request, or does not respond: then ``code`` is ``None``."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


def _explain(error: Any) -> tuple[int, str]:  # noqa: ANN401 - of an extra
    """Return the status code of an error of the API, and its message."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        return int(error.status), str(json.loads(error.body)["message"])
    return int(error.status or 0), str(error.reason)


@functools.cache
def _api() -> _Api:
    return _Api()


def _parts(name: str) -> tuple[str, str]:
    namespace, _, own = name.removeprefix(KUBERNETES).partition("/")
    return namespace, own


def create_job(manifest: Mapping[str, Any]) -> str:
    """Create a job, and return its name in records; raises ``ApiError``: 409 if there is one."""
    api, kind = _api(), _KINDS[manifest["kind"]]
    namespace = manifest["metadata"].get("namespace") or api.namespace
    strict = {"body": dict(manifest), "field_validation": "Strict"}
    api(api.objects.create_namespaced_custom_object, *kind[:2], namespace, kind.plural, **strict)
    return f"{KUBERNETES}{namespace}/{manifest['metadata']['name']}"


def replace_cron_job(manifest: Mapping[str, Any]) -> str:
    """Create a CronJob, or replace it; return its name; raises ``ApiError``."""
    api, kind, name = _api(), _KINDS["CronJob"], manifest["metadata"]["name"]
    namespace = manifest["metadata"].get("namespace") or api.namespace
    place = (*kind[:2], namespace, kind.plural, name)
    while True:
        try:
            return create_job(manifest)
        except ApiError as error:
            if error.code != 409:
                raise
        try:
            found = api(api.objects.get_namespaced_custom_object, *place)
            version = {"resourceVersion": found["metadata"]["resourceVersion"]}
            body = {**manifest, "metadata": {**manifest["metadata"], **version}}
            api(api.objects.replace_namespaced_custom_object, *place, body=body)
        except ApiError as error:
            if error.code not in {404, 409}:  # else somebody has just changed it
                raise
        else:
            return f"{KUBERNETES}{namespace}/{name}"


def delete_job(name: str, kind: str) -> bool:
    """Delete a job, whose pods then end within their grace period; return whether it existed."""
    api, (namespace, own) = _api(), _parts(name)
    place = (*_KINDS[kind][:2], namespace, _KINDS[kind].plural, own)
    try:
        api(api.objects.delete_namespaced_custom_object, *place, propagation_policy="Foreground")
    except ApiError as error:
        if error.code != 404:
            raise
        return False
    return True


def read_job(name: str) -> KubernetesJob:
    """Return the state of a job; raises ``ApiError``."""
    api, (namespace, own) = _api(), _parts(name)
    for kind in ("Job", "TrainJob"):
        place = (*_KINDS[kind][:2], namespace, _KINDS[kind].plural, own)
        try:
            found = api(api.objects.get_namespaced_custom_object, *place)
        except ApiError as error:
            if error.code == 404:
                continue
            raise
        pods = find_pods(name, kind)
        return _judge(found, kind, pods[-1] if pods else None)
    return KubernetesJob(GONE)


def _judge(found: Mapping[str, Any], kind: str, pod: Pod | None) -> KubernetesJob:
    status = found.get("status") or {}
    conditions = {
        each["type"]: each for each in status.get("conditions") or () if each["status"] == "True"
    }
    ended = next((name for name in ("Complete", "Failed") if name in conditions), None)
    told = conditions.get(ended or "Suspended") or {}
    cause = told.get("message") or told.get("reason") or (None if pod is None else pod.cause)
    runs = pod is not None and pod.begun and pod.exit_code is None
    return KubernetesJob(ended or ("RUNNING" if runs else "QUEUED"), kind, cause, pod)


def find_pods(name: str, kind: str) -> list[Pod]:
    """Return the pods that have run the head of a job, the newest last; raises ``ApiError``."""
    api, (namespace, own) = _api(), _parts(name)
    selector = f"{_KINDS[kind].label}={own}"
    answer = api(
        api.core.list_namespaced_pod, namespace, label_selector=selector, _preload_content=False
    )
    found = sorted(
        json.loads(answer.data)["items"], key=lambda each: each["metadata"]["creationTimestamp"]
    )
    return [read_pod(each) for each in found if _is_head(each)]


def _is_head(pod: Mapping[str, Any]) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    return bool(annotations.get(_HEAD, "0") == "0")


def read_pod(found: Mapping[str, Any]) -> Pod:
    """Return a pod from its JSON."""
    metadata, status = found["metadata"], found.get("status") or {}
    containers = status.get("containerStatuses") or [{}]
    state = containers[0].get("state") or {}
    waiting, ended = state.get("waiting") or {}, state.get("terminated") or {}
    placed: Mapping[str, Any] = next(
        (c for c in status.get("conditions") or () if c["type"] == "PodScheduled"), {}
    )
    unplaced = placed if placed.get("status") == "False" else {}
    cause = waiting or unplaced
    texts = [cause[key] for key in ("reason", "message") if cause.get(key)]
    return Pod(
        metadata["name"],
        metadata["uid"],
        status.get("phase") or "Pending",
        found["spec"].get("nodeName"),
        ": ".join(texts) or None,
        bool(state.get("running") or ended),
        ended.get("exitCode"),
        ended.get("reason"),
    )


def watch_pods(name: str, kind: str, timeout_s: int) -> Iterator[Pod]:
    """Yield the pod of the head whenever it changes, for some time; raises ``ApiError``."""
    api, (namespace, own) = _api(), _parts(name)
    selector = f"{_KINDS[kind].label}={own}"
    options = {"label_selector": selector, "watch": True, "timeout_seconds": timeout_s}
    for line in _stream(api, api.core.list_namespaced_pod, namespace, **options):
        event = json.loads(line)
        if event["type"] == "ERROR":  # such as 410: too old
            return
        if event["type"] in {"ADDED", "MODIFIED"} and _is_head(event["object"]):
            yield read_pod(event["object"])


def follow_log(name: str, pod: Pod, since_s: int | None) -> Iterator[tuple[str, str]]:
    """Yield the lines of a pod, each after its time, until it ends or is silent for a moment.

    ``since_s``: only those of so many seconds. Raises ``ApiError``.
    """
    api, namespace = _api(), _parts(name)[0]
    options: dict[str, Any] = {"follow": True, "timestamps": True}
    if since_s is not None:
        options["since_seconds"] = since_s
    for line in _stream(api, api.core.read_namespaced_pod_log, pod.name, namespace, **options):
        at, _, text = line.decode(errors="replace").partition(" ")
        yield at, text


def _stream(api: _Api, method: Any, *args: Any, **options: Any) -> Iterator[bytes]:  # noqa: ANN401
    """Yield the lines of an answer as they come; one that is cut off ends it."""
    import urllib3  # noqa: PLC0415 - of the extra

    answer = api(method, *args, _preload_content=False, _request_timeout=_SILENT_S, **options)
    rest = b""
    try:
        with contextlib.suppress(urllib3.exceptions.HTTPError, OSError):
            for part in answer.stream(1 << 16):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
        if rest:
            yield rest
    finally:
        answer.close()


def read_jobs(names: Iterable[str]) -> dict[str, KubernetesJob]:
    """Return the state of each job; one that is missing is unknown: no response.

    A machine without a cluster, such as a pod, takes the jobs for ended: it cannot wait for them.
    """
    found = {}
    for name in set(names):
        try:
            found[name] = read_job(name)
        except (NoClusterError, UsageError):
            found[name] = KubernetesJob(GONE)
        except LaunchError:
            continue
    return found


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    if not isinstance(job, KubernetesJob):
        return f"{name}: Kubernetes does not respond"
    why = "" if job.cause is None else f" ({' '.join(job.cause.split())})"
    if job.state == "RUNNING" and job.pod is not None:
        return f"{name} runs on {job.pod.node or 'a node'}"
    verb = {"QUEUED": "is queued", GONE: "does not exist"}.get(job.state, f"is {job.state}")
    return f"{name} {verb}{why}"


def cancel_job(name: str) -> None:
    """Delete a job, which ends its pods; raises ``LaunchError``."""
    if not delete_job(name, "Job"):
        delete_job(name, "TrainJob")


interrupt_job = cancel_job
"""Nothing less than that reaches a pod without the right to run commands in it."""


def how_to_see(name: str) -> str:
    """Return the command that says why a job does not end."""
    namespace, own = _parts(name)
    return f"kubectl -n {namespace} describe pods -l {_KINDS['Job'].label}={own}"
