"""Submits that Kubernetes runs: created and followed from anywhere, run in a pod."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from zeusrun.analysis.savings import find_savings
from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.follow import Order, Shown, Submitter
from zeusrun.commands.recurrence import run_recurrence
from zeusrun.errors import (
    BusyError,
    ExitCode,
    HistoryError,
    JobFileError,
    LaunchError,
    UsageError,
    ZeusrunError,
)
from zeusrun.files.private import build_known
from zeusrun.history.base import NEWEST, UnavailableError
from zeusrun.history.registry import remember_choice
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.yaml_reader import write_job_yaml
from zeusrun.launcher.attempts.recurrence import SubmitResult, exit_code
from zeusrun.launcher.queue.admission import Queue, Request, check_not_ended
from zeusrun.maintenance.recover import cancel_preempted
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.hosts.verbs import join_head
from zeusrun.run_on.kubernetes.client import (
    CONTAINER,
    ApiError,
    KubernetesJob,
    cancel_job,
    create_job,
    describe_job,
)
from zeusrun.run_on.kubernetes.manifest import build_manifest, new_name
from zeusrun.run_on.kubernetes.output import PodOutput
from zeusrun.run_on.kubernetes.section import Kubernetes
from zeusrun.run_on.registry import is_job
from zeusrun.trial import TrialStatus
from zeusrun.view.export import result_json

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Outcome, Trial

_POLL_S = 1.0
_RESOLVED_S = 1800.0  # the other pods may have to load their image
_DELIVERED_S = 600.0  # a pod may have no disk for what a server does not take
_INTERRUPTED = ExitCode.SIGNAL_BASE + signal.SIGINT


class KubernetesSubmitter(Submitter):
    """Submits jobs to Kubernetes."""

    backend, jobs_wait = "kubernetes", False

    def show(self, spec: JobSpec, request: Request) -> Shown:
        """Return the manifest that a submit would create."""
        manifest = build_manifest(spec, request, f"{new_name(spec.name)[:-8]}00000000")
        return manifest, write_job_yaml(manifest)

    def queue(self, order: Order) -> str:
        """Take a ticket, wait for submits before it, and create the job; return its name."""
        spec, request, home, history, received = order
        manifest = build_manifest(
            spec, request, new_name(spec.name)
        )  # what is wrong with it, first
        queue = Queue(spec.name, home, history, request.until, received, options.tell)
        with queue.hold_elsewhere(request.overlap, waits=True) as (held, _, undo):
            try:
                name = create_job(manifest)
            except ApiError as error:
                raise _explain_refusal(error, spec) from error
            undo.callback(cancel_job, name)
            remember_choice(home, spec.name, spec.history.url)
            held.write(allocation=name, state="queued")
        return name

    def open_output(self, name: str, *, follow: bool) -> PodOutput:
        """Open the output of the pods of a job."""
        return PodOutput(name, follow=follow)

    def stop_job(self, name: str, interrupts: int) -> None:
        """Delete the job, so that its pods save and end; raise after the second interrupt."""
        cancel_job(name)
        if interrupts > 1:
            error = ZeusrunError(f"{name} is deleted; its pods end within their grace period")
            error.exit_code = _INTERRUPTED
            raise error

    def conclude(
        self, order: Order, source: PodOutput, interrupts: int
    ) -> tuple[int, dict[str, Any] | None]:
        """Return the exit code and the result, from the history and the state of the pod."""
        spec, _, home, history, _ = order
        trials = [t for t in history.trials(spec.name, NEWEST) if t.allocation == source.name]
        if trials and interrupts and trials[-1].status is TrialStatus.PREEMPTED:
            cancel_preempted(history, trials[-1], home, timestamp())
            trials[-1] = options.find_trial(trials[-1].trial, history)
            options.tell(f"{trials[-1].trial} is CANCELLED: {trials[-1].reason}")
        last = trials[-1] if trials else None
        if interrupts and (last is None or last.status is TrialStatus.CANCELLED):
            code: int = _INTERRUPTED
        else:
            code = _conclude(source.name, source.job, last)
        if last is None:
            return code, None
        savings = find_savings(history.trials(spec.name, NEWEST))
        result = SubmitResult(trials[0].recurrence, tuple(trials), code)
        return code, result_json(spec.name, result, savings)

    def run_inside(self, name: str, received: Sequence[int]) -> int:  # noqa: ARG002 - the pod knows it
        """Run a submit in a pod. Only the command in the manifest calls this."""
        spec, request = _read_job(os.environ)
        hosts = _list_pods(request.allocation, spec.launch.nnodes or 1)
        if (os.environ.get("JOB_COMPLETION_INDEX") or "0") == "0":
            if hosts[1:]:
                _wait_for_names(spec.name, hosts, received)
            return _run_head(spec, request, hosts, received)
        port = ((spec.run_on and spec.run_on.ports) or (0,))[0]
        try:
            join_head(f"{hosts[0]}:{port}", lambda: check_not_ended(spec.name, received))
        except LaunchError as error:  # the head is gone: this code restarts all pods
            error.exit_code = ExitCode.BUSY
            raise
        return ExitCode.REACHED


def _explain_refusal(error: ApiError, spec: JobSpec) -> LaunchError:
    """Return what a user should do if the API did not take a manifest."""
    advice = {
        401: "Log in to the cluster; then `kubectl get pods` works, too",
        403: "deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace",
        None: "`kubectl get pods` tells whether that is so",
    }.get(error.code, "Correct run_on.kubernetes; --dry-run shows the manifest")
    if error.code == 404 and (spec.launch.nnodes or 1) > 1:
        advice = "Several nodes need Kubeflow Trainer 2.2 or later"
    return LaunchError(f"Kubernetes did not take the job: {error}. {advice}")


def _conclude(name: str, job: KubernetesJob | None, last: Trial | None) -> int:
    """Tell the user if a job ended without a recorded run; return the exit code."""
    pod = None if job is None else job.pod
    code = None if pod is None else pod.exit_code
    if last is None and code != 0:
        options.tell(f"{describe_job(name, job)}, and began no run")
    elif last is not None and not last.status.finished:
        why = "" if pod is None or pod.end_cause is None else f" ({pod.end_cause})"
        options.tell(
            f"{last.trial} did not record its end{why}: if it does not within two minutes, the "
            "server records it as LOST"
        )
        return ExitCode.TRAINING_FAILED if code is None else code
    if code is not None:
        return code
    if last is None and job is not None and job.state == "Failed":
        return ExitCode.LAUNCH  # at its deadline, or by an init container
    # Somebody has deleted it.
    if last is None or last.status is TrialStatus.CANCELLED:
        return ExitCode.SIGNAL_BASE + signal.SIGTERM
    return exit_code(last, None, ())


def _run_head(
    spec: JobSpec, request: Request, hosts: tuple[str, ...], received: Sequence[int]
) -> int:
    """Run a recurrence in the head of a job; return its exit code."""
    _, history = options.open_own(spec)
    earlier = None
    with contextlib.suppress(UnavailableError):  # the choice of a trial waits for the history
        earlier = options.find_allocated(request.allocation, history)
    if earlier is not None and earlier.status is TrialStatus.REACHED:
        typer.echo(f"{earlier.trial} has reached the target already")  # its pods started again
        return ExitCode.REACHED
    if request.until is not None and read_clock() > request.until and earlier is None:
        raise BusyError(f"{spec.name}: its deadline has passed; this run is skipped")
    kept = Kubernetes.of(spec.run_on).home is not None
    allocation = PodAllocation(request.allocation, hosts, kept)
    result = run_recurrence(spec, request, allocation=allocation)
    until_t = time.monotonic() + (0.0 if kept else _DELIVERED_S)
    with contextlib.suppress(HistoryError):
        while time.monotonic() < until_t and not received:
            try:
                history.deliver()
                break
            except UnavailableError:
                time.sleep(_POLL_S)
    return int(result["exit_code"])


@dataclass(frozen=True)
class PodAllocation:
    """A job of Kubernetes, seen by its head. See ``Allocation``."""

    name: str  # in records: kubernetes:ml/digits-1a2b3c4d
    hosts: tuple[str, ...]  # this one first
    keeps_files: bool  # whether the home of its pods is a volume

    def time_left_s(self) -> None:
        """There is no limit."""

    def find_cause(self) -> None:
        """Whoever deletes the pod, the run is preempted: its job or the next one continues it."""

    def check_sentinel(self) -> None:
        """Kubernetes sends its signal to this process."""

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:  # noqa: ARG002 - see Allocation
        """Return the outcome of a trial: if a pod is lost, all are started again, to continue."""
        if outcome.reason_code is not ReasonCode.HOST_LOST or not saved:
            return outcome
        return replace(outcome, status=TrialStatus.PREEMPTED, reason_code=ReasonCode.PREEMPTED)


def _read_job(environment: Mapping[str, str]) -> tuple[JobSpec, Request]:
    """Return the job and the options of the submit, from the variables of the manifest.

    Raises:
        JobFileError: If the job file does not fit the files of this image.
        UsageError: If this is no pod of a submit.
    """
    name = environment.get("ZEUSRUN_ALLOCATION", "")
    try:
        text, record = environment["ZEUSRUN_JOB"], json.loads(environment["ZEUSRUN_REQUEST"])
        file, folder = Path(record["file"]).name, Path(record["folder"] or Path.cwd())
        request = build_known(Request, record, overrides=tuple(record.get("overrides", ())))
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise UsageError("this command is for a pod that `zeusrun submit` has made") from error
    if not is_job(name):
        raise UsageError(f"ZEUSRUN_ALLOCATION is {name!r}, which names no job of Kubernetes")
    with tempfile.TemporaryDirectory() as temporary:
        copy = Path(temporary, file)
        copy.write_text(text, encoding="utf-8")
        try:
            spec = load_spec(copy, request.overrides, folder)
        except JobFileError as error:
            raise JobFileError(
                f"in the image, {str(error).replace(str(copy), file)}. Paths are relative to "
                f"{folder} there; run_on.kubernetes.folder names another folder of the image"
            ) from error
    return spec, replace(request, allocation=name, overlap="allow")


def _list_pods(name: str, nodes: int) -> tuple[str, ...]:
    """Return the hosts of a job, its head first, as the headless service of JobSet names them."""
    job = name.rpartition("/")[2]
    if nodes == 1:
        return (socket.gethostname(),)
    return tuple(f"{job}-{CONTAINER}-0-{number}.{job}" for number in range(nodes))


def _wait_for_names(job: str, hosts: Sequence[str], signals: Sequence[int]) -> None:
    """Wait until pods have addresses: they start one after the other; raises ``LaunchError``."""
    until_t = time.monotonic() + _RESOLVED_S
    for host in hosts:
        while True:
            check_not_ended(job, signals)
            try:
                socket.getaddrinfo(host, None)
                break
            except OSError as error:
                if time.monotonic() > until_t:
                    raise LaunchError(f"the pod {host} has no address: {error}") from error
            time.sleep(_POLL_S)


SUBMITTER = KubernetesSubmitter()
