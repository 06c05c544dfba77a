"""Kubernetes by its API: creates, reads and deletes jobs, and follows their logs.

Uses the cluster of kubectl, or, within a pod, its own. Every field is read as Kubernetes writes it:
https://kubernetes.io/docs/reference/kubernetes-api/
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from zeusrun.errors import LaunchError, UsageError
from zeusrun.plugins import check_extra
from zeusrun.run_on.registry import COMPLETE, GONE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from zeusrun.run_on.registry import SchedulerJob, State

PREFIX = "kubernetes:"
LOOK = "kubectl -n {} get jobs,trainjobs,pods"

_TIMEOUT_S = (5.0, 20.0)  # to connect, to read
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # of a pod
_READ_S = (5.0, 8.0)  # somebody waits for it
_SILENT_S = (5.0, 10.0)  # then a stream is opened again
_INDEX = "batch.kubernetes.io/job-completion-index"  # "0" or absent: the head

CONTAINER = "node"
"""The container with zeusrun, of several in a pod; Kubeflow's runtimes name theirs so."""

QUEUED, RUNNING, DELETED = "QUEUED", "RUNNING", "DELETED"

_VERSIONS = {"Job": "batch/v1", "TrainJob": "trainer.kubeflow.org/v1alpha1"}
# What a submit creates, and the label of its pods that has its name.
_LABELS = {"Job": "batch.kubernetes.io/job-name", "TrainJob": "jobset.sigs.k8s.io/jobset-name"}


@dataclass(frozen=True)
class Pod:
    """The pod of a job that runs zeusrun's head."""

    name: str
    uid: str
    node: str | None = None
    cause: str | None = None  # why it waits
    begun: bool = False  # whether its container has started
    exit_code: int | None = None  # of zeusrun, once it has ended
    end_cause: str | None = None  # such as OOMKilled
    grace_s: float = 0.0  # seconds within which it ends after it is deleted


@dataclass(frozen=True)
class KubernetesJob:
    """A job as Kubernetes describes it now."""

    state: str  # QUEUED, RUNNING, DELETED, GONE, or how it ended: Complete, Failed
    cause: str | None = None
    pod: Pod | None = None  # the newest

    @property
    def has_ended(self) -> bool:
        """Whether it does not run any more, and will not run again."""
        return self.state not in {QUEUED, RUNNING, DELETED}

    @property
    def grace_s(self) -> float:
        """Seconds within which its pods end after it is deleted."""
        return 0.0 if self.pod is None else self.pod.grace_s

    @property
    def state_of_ticket(self) -> State:
        """What this says of the ticket of its submit."""
        return "ended" if self.has_ended else "queued" if self.state == QUEUED else "running"


class NoClusterError(LaunchError):
    """This machine knows no cluster."""


class ApiError(LaunchError):
    """The API refuses a request, or does not respond: then ``code`` is ``None``."""

    def __init__(self, code: int | None, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Api:
    """The API of the cluster in use."""

    def __init__(self) -> None:
        """Connect as kubectl does; raises ``NoClusterError`` if nothing says how."""
        check_extra("run_on: kubernetes", "kubernetes", "kubernetes")
        from kubernetes import client, config  # noqa: PLC0415 - an extra, and 600 ms
        from urllib3.exceptions import HTTPError  # noqa: PLC0415 - of the extra
        from yaml import YAMLError  # noqa: PLC0415 - only for these errors

        configuration = client.Configuration()
        configuration.retries = 0
        broken = (config.ConfigException, OSError, YAMLError, ValueError, TypeError, LookupError)
        try:
            config.load_kube_config(client_configuration=configuration)
            context = config.list_kube_config_contexts()[1]["context"]
            self.namespace = context.get("namespace") or "default"
        except broken as error:
            try:
                config.load_incluster_config(configuration)
                self.namespace = _OWN_NAMESPACE.read_text(encoding="utf-8").strip()
            except (config.ConfigException, OSError):
                why = " ".join(str(error).split()).rstrip(".")
                given = config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION
                if not any(Path(each).expanduser().exists() for each in given.split(os.pathsep)):
                    why = f"there is no file {given}"
                raise NoClusterError(
                    f"kubectl has no cluster here: {why}. Set KUBECONFIG, or train on this machine "
                    "with --set run_on=local"
                ) from error
        api = client.ApiClient(configuration)
        api.set_default_header("Content-Type", "application/json")  # 37 sends none
        self.host, self.refusal = configuration.host, client.ApiException
        self.silence = (HTTPError, OSError)
        self.objects, self.core = client.CustomObjectsApi(api), client.CoreV1Api(api)

    def call(self, method: Any, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - its JSON
        """Call a method; raises ``ApiError``."""
        try:
            return method(*args, **{"_request_timeout": _TIMEOUT_S, **options})
        except self.refusal as error:
            message = error.reason
            with contextlib.suppress(ValueError, TypeError, KeyError):
                message = json.loads(error.body)["message"]
            raise ApiError(int(error.status or 0) or None, str(message)) from error
        except self.silence as error:
            raise ApiError(None, f"{self.host} does not respond: {_find_cause(error)}") from error

    def change(
        self, verb: str, kind: str, place: Sequence[str], **options: object
    ) -> dict[str, Any]:
        """Call a verb on the job of a kind at a namespace and a name; raises ``ApiError``."""
        method = getattr(self.objects, f"{verb}_namespaced_custom_object")
        (namespace, *name), version = place, _VERSIONS[kind].split("/")
        answer = self.call(method, *version, namespace, f"{kind.lower()}s", *name, **options)
        return cast("dict[str, Any]", answer)

    def find(
        self, verb: str, kind: str, place: Sequence[str], **options: object
    ) -> dict[str, Any] | None:
        """Call a verb as ``change`` does; return ``None`` if there is no such job."""
        try:
            return self.change(verb, kind, place, **options)
        except ApiError as error:
            if error.code != 404:
                raise
            return None

    def stream(self, method: Any, *args: Any, **options: Any) -> Iterator[bytes]:  # noqa: ANN401 - of the extra
        """Yield the lines of an answer as they come; one that is cut off ends it."""
        options |= {"_preload_content": False, "_request_timeout": _SILENT_S}
        answer, rest = self.call(method, *args, **options), b""
        with contextlib.closing(answer), contextlib.suppress(*self.silence):
            for part in answer.stream(1 << 16):
                *lines, rest = (rest + part).split(b"\n")
                yield from lines
            if rest:  # not if it was cut off
                yield rest


def _find_cause(error: BaseException | None) -> str:
    """Return why no answer came, in the words of the system or of TLS."""
    while error is not None:
        if isinstance(error, OSError) and (error.strerror or isinstance(error, TimeoutError)):
            return error.strerror or "it took too long"
        error = error.__cause__ or error.__context__
    return "its answer is not that of an API"


@functools.cache
def _api() -> _Api:
    return _Api()


def _place(name: str) -> list[str]:
    """Return the namespace of a job, and its own name."""
    return name.removeprefix(PREFIX).split("/")


def create_job(manifest: Mapping[str, Any]) -> str:
    """Create a job, and return its name in records; raises ``ApiError``: 409 if there is one."""
    api, metadata = _api(), manifest["metadata"]
    namespace = metadata.get("namespace") or api.namespace
    given = {"body": dict(manifest), "field_validation": "Strict"}
    place = (namespace, metadata["name"])
    try:
        api.change("create", manifest["kind"], [namespace], **given)
    except ApiError as error:
        lost = error.code is None or error.code >= 500  # perhaps only the answer
        if not lost or api.find("get", manifest["kind"], place) is None:
            raise
    return f"{PREFIX}{'/'.join(place)}"


def read_job(name: str) -> KubernetesJob:
    """Return the state of a job; raises ``ApiError``."""
    for kind in _LABELS:
        found = _api().find("get", kind, _place(name), _request_timeout=_READ_S)
        if found is not None:
            return _judge(found, _find_pod(name, kind))
    return KubernetesJob(GONE)


def _judge(found: Mapping[str, Any], pod: Pod | None) -> KubernetesJob:
    if "deletionTimestamp" in found["metadata"]:  # it may count as failed while its pods save
        return KubernetesJob(DELETED, None, pod)
    conditions = _conditions(found, "True")
    ended = next((name for name in (COMPLETE, "Failed") if name in conditions), None)
    told = conditions.get(ended or "Suspended", {})
    cause = told.get("message") or told.get("reason") or (None if pod is None else pod.cause)
    runs = pod is not None and pod.begun  # once it has ended, a controller is about to act on it
    return KubernetesJob(ended or (RUNNING if runs else QUEUED), cause, pod)


def _conditions(found: Mapping[str, Any], status: str) -> dict[str, Any]:
    """Return the conditions of an object that have a status, by type."""
    all_ = (found.get("status") or {}).get("conditions") or ()
    return {each["type"]: each for each in all_ if each["status"] == status}


def _find_pod(name: str, kind: str) -> Pod | None:
    api, (namespace, job) = _api(), _place(name)
    options = {"_preload_content": False, "_request_timeout": _READ_S}
    label = f"{_LABELS[kind]}={job}"
    answer = api.call(api.core.list_namespaced_pod, namespace, label_selector=label, **options)
    pods = json.loads(answer.data)["items"]
    heads = [p for p in pods if (p["metadata"].get("annotations") or {}).get(_INDEX, "0") == "0"]
    newest = max(heads, key=lambda each: each["metadata"]["creationTimestamp"], default=None)
    return None if newest is None else _read_pod(newest)


def _read_pod(found: Mapping[str, Any]) -> Pod:
    containers = (found.get("status") or {}).get("containerStatuses") or ()
    container: dict[str, Any] = next((each for each in containers if each["name"] == CONTAINER), {})
    state = container.get("state") or {}
    ended = state.get("terminated") or {}
    waits = state.get("waiting") or _conditions(found, "False").get("PodScheduled", {})
    texts = [waits[key] for key in ("reason", "message") if waits.get(key)]
    return Pod(
        found["metadata"]["name"],
        found["metadata"]["uid"],
        found["spec"].get("nodeName"),
        ": ".join(texts) or None,
        bool(state.get("running") or ended),
        ended.get("exitCode"),
        ended.get("reason"),
        float(found["spec"].get("terminationGracePeriodSeconds") or 0),
    )


def follow_log(
    name: str, pod: Pod, since_s: int | None, *, follow: bool
) -> Iterator[tuple[str, str]]:
    """Yield the lines of a pod, each after its time; with ``follow``, until it ends or is silent.

    ``since_s``: only those of so many seconds. Raises ``ApiError``.
    """
    api, options = _api(), {"follow": follow, "timestamps": True, "container": CONTAINER}
    since = {} if since_s is None else {"since_seconds": since_s}
    method, namespace = api.core.read_namespaced_pod_log, _place(name)[0]
    for line in api.stream(method, pod.name, namespace, **options, **since):
        at, _, text = line.decode(errors="replace").partition(" ")
        yield at, text


def read_jobs(names: Iterable[str]) -> dict[str, KubernetesJob]:
    """Return the state of each job; one that is missing is unknown: no response.

    A pod, which has no rights, takes the jobs of others for ended: it cannot wait for them.
    """
    names = set(names)
    if "ZEUSRUN_ALLOCATION" in os.environ:
        return dict.fromkeys(names, KubernetesJob(GONE))
    found = {}
    for name in names:
        try:
            found[name] = read_job(name)
        except ApiError as error:
            if error.code is None:  # nor does it respond for the others
                break
        except (NoClusterError, UsageError):
            break
    return found


def describe_job(name: str, job: SchedulerJob | None) -> str:
    """Return where a job is, in a sentence without its end."""
    if not isinstance(job, KubernetesJob):
        return f"{name}: Kubernetes does not respond"
    why = "" if job.cause is None else f" ({' '.join(job.cause.split())})"
    if job.state == RUNNING and job.pod is not None:
        return f"{name} runs on {job.pod.node or 'a node'}"
    verb = {QUEUED: "is queued", GONE: "does not exist", DELETED: "is being deleted"}.get(
        job.state, f"is {job.state}"
    )
    return f"{name} {verb}{why}"


def explain_end(name: str, *, saved: bool) -> None:
    """Return ``None``: the lease of the trial shows the server of the history that it has ended."""


def cancel_job(name: str) -> None:
    """Delete a job, whose pods then end within their grace period; raises ``ApiError``."""
    options = {"propagation_policy": "Foreground"}
    for kind in _LABELS:
        if _api().find("delete", kind, _place(name), **options) is not None:
            return


interrupt_job = cancel_job
"""Nothing less than that reaches a pod without the right to run commands in it."""
