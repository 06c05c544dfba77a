"""Submits that Kubernetes runs: created and followed from anywhere, run in a pod."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import time
from typing import TYPE_CHECKING, Any

import typer
import yaml

from zeusrun.analysis.savings import find_savings
from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.follow import Follower, tell_queued
from zeusrun.commands.node import join
from zeusrun.commands.recurrence import run_recurrence
from zeusrun.errors import BusyError, ExitCode, LaunchError, UsageError, ZeusrunError
from zeusrun.export.kubeflow import StatusReporter
from zeusrun.files.home import trusted_home
from zeusrun.history.base import NEWEST, UnavailableError
from zeusrun.history.registry import remember_choice
from zeusrun.jobfile.kubernetes_section import HISTORY, TOKEN
from zeusrun.launcher.kubernetes import pod as pods
from zeusrun.launcher.kubernetes.client import (
    ApiError,
    KubernetesJob,
    cancel_job,
    create_job,
    describe_job,
    replace_cron_job,
)
from zeusrun.launcher.kubernetes.manifest import build_cron_job, build_manifest, new_name
from zeusrun.launcher.kubernetes.output import PodOutput
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import check_not_ended, end_allocated, queue_elsewhere
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.recover import cancel_preempted
from zeusrun.launcher.recurrence import SubmitResult, exit_code
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json, result_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.launcher.request import Request
    from zeusrun.schedule.store import Schedule
    from zeusrun.trial import Trial

_POLL_S = 1.0
_NAMES = 5  # tries, if a name is taken
_DELIVERED_S = 600.0  # a pod may have no disk for what a server does not take


def show_manifest(spec: JobSpec, request: Request, *, as_json: bool) -> None:
    """Show the manifest that a submit would create."""
    print_manifest(build_manifest(spec, request, f"{new_name(spec.name)[:-5]}00000"), as_json)


def print_manifest(manifest: dict[str, Any], as_json: bool) -> None:
    """Print a manifest as YAML, which kubectl takes, too."""
    if as_json:
        print_json(manifest)
    else:
        typer.echo(yaml.dump(manifest, Dumper=_Dumper, sort_keys=False, width=100), nl=False)


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as such, and what is there twice, twice."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)


def submit_to_kubernetes(
    spec: JobSpec,
    request: Request,
    *,
    detach: bool = False,
    as_json: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> int:
    """Create the job of a submit, and follow it to its end; return its exit code.

    ``detach`` returns at once. ``begun`` is called once it is created.
    """
    shown = lasting_console(sys.stderr if as_json else sys.stdout)
    if request.forced is not None:
        request.forced.check(spec.batch_size.candidates)
    if detach and request.overlap == "queue":
        raise UsageError(
            "Kubernetes lets no job wait for another one; leave out --detach, so that this "
            "command waits, or --overlap queue"
        )
    with CaughtSignals() as signals:
        home, history = options.open_own(spec)
        check_token(spec, home)
        build_manifest(spec, request, new_name(spec.name))  # whatever is wrong with it, first
        name = _create(spec, request, home, history, signals.received)
        begun()
        if detach:
            return tell_queued(name, quiet=request.quiet, as_json=as_json)
        with PodOutput(name) as output:
            follower = Follower(
                name, output, lambda n: _stop(name, n), shown, signals.received, request.quiet
            )
            follower.follow()
        code, trials = _conclude(spec, home, history, follower, output.job)
    if as_json and trials:
        savings = find_savings(history.trials(spec.name, NEWEST))
        result = SubmitResult(trials[0].recurrence, tuple(trials), code)
        print_json(result_json(spec.name, result, savings))
    return code


def add_cron_job(spec: JobSpec, schedule: Schedule, *, dry_run: bool, as_json: bool) -> None:
    """Create the CronJob of a schedule, or replace it."""
    if spec.kubernetes is None:
        raise UsageError(f"--in-cluster is for run_on: kubernetes, which {spec.source} has not")
    rules, zone = schedule.rules, schedule.rules.timetable.tz
    if zone is None:
        raise UsageError("a cluster has no time zone of its own; set schedule.tz: Europe/Paris")
    lacks = {
        "start_within": rules.may_defer,
        "overlap: queue": schedule.overlap == "queue",
        f"nnodes: {spec.launch.nnodes}": (spec.launch.nnodes or 1) > 1,
    }
    for what in (name for name, found in lacks.items() if found):
        raise UsageError(
            f"a CronJob cannot do {what}; leave out --in-cluster, and cron of this machine submits "
            "the job"
        )
    manifest = build_cron_job(
        spec, rules.timetable.expression, zone, schedule.overlap, rules.deadline_s
    )
    if dry_run:
        print_manifest(manifest, as_json)
        return
    check_token(spec, trusted_home(os.environ))
    try:
        name = replace_cron_job(manifest)
    except ApiError as error:
        raise LaunchError(explain_refusal(error, spec)) from error
    if as_json:
        print_json({"cron_job": name})
        return
    namespace, _, own = name.partition(":")[2].partition("/")
    typer.echo(
        f"{spec.name} runs {rules.timetable.describe()} in the cluster, as CronJob {own}; "
        f"`kubectl -n {namespace} delete cronjob {own}` removes it"
    )


def check_token(spec: JobSpec, home: Path) -> None:
    """Raise ``UsageError`` if this machine needs a token for the history, and pods have none."""
    section = spec.kubernetes
    if section is None or {TOKEN, HISTORY} & set(section.secrets):
        return
    if os.environ.get(TOKEN) or (home / "token").exists():
        raise UsageError(
            f"{spec.source}: this machine has a token for the history, and pods need one: "
            f"`kubectl create secret generic zeusrun --from-literal=token=...`, then "
            f"run_on.kubernetes.secrets: {{{TOKEN}: zeusrun/token}}"
        )


def _create(
    spec: JobSpec, request: Request, home: Path, history: History, received: Sequence[int]
) -> str:
    """Take a ticket, wait for submits before it, and create the job; return its name."""
    remember_choice(home, spec.name, spec.history.url)
    held, before = queue_elsewhere(spec.name, home, history, request.overlap)
    with contextlib.ExitStack() as undo:
        undo.callback(held.release)
        if request.overlap == "replace":
            end_allocated(before)
        _wait_for(before, home, spec.name, received)
        name = _create_new(spec, request)
        undo.callback(cancel_job, name)
        held.write(allocation=name, state="queued")
        held.leave()
        undo.pop_all()
    return name


def _wait_for(before: Sequence[Ticket], home: Path, job: str, received: Sequence[int]) -> None:
    numbers = {ticket.number for ticket in before}
    while numbers:
        check_not_ended(job, received)
        time.sleep(_POLL_S)
        with Tickets(home) as tickets:
            numbers &= {ticket.number for ticket in tickets.present()}


def _create_new(spec: JobSpec, request: Request) -> str:
    left = _NAMES
    while True:
        try:
            return create_job(build_manifest(spec, request, new_name(spec.name)))
        except ApiError as error:
            left -= 1
            if error.code != 409 or not left:
                raise LaunchError(explain_refusal(error, spec)) from error


def explain_refusal(error: ApiError, spec: JobSpec) -> str:
    """Return what a user should do if the API did not take a manifest."""
    text = f"Kubernetes did not take the job: {error}"
    if error.code in {401, 403}:
        return f"{text}. deploy/kubernetes/zeusrun.yaml has what zeusrun needs in a namespace"
    if error.code == 404 and (spec.launch.nnodes or 1) > 1:
        return f"{text}. Several nodes need Kubeflow Trainer 2.2 or later"
    if error.code is None:
        return f"{text}. `kubectl get pods` tells whether that is so"
    return f"{text}. Correct run_on.kubernetes; --dry-run shows the manifest"


def _stop(name: str, interrupts: int) -> None:
    """Delete the job, so that its pods save and end; the second time, do not wait for that."""
    if interrupts > 1:
        error = ZeusrunError(f"{name} is deleted; its pods end within their grace period")
        error.exit_code = ExitCode.SIGNAL_BASE + signal.SIGINT
        raise error
    cancel_job(name)


def _conclude(
    spec: JobSpec, home: Path, history: History, follower: Follower, job: KubernetesJob | None
) -> tuple[int, list[Trial]]:
    """Return the exit code of a submit whose job has ended, and its trials."""
    name, pod = follower.name, None if job is None else job.pod
    interrupted = ExitCode.SIGNAL_BASE + signal.SIGINT
    trials = _find_trials(history, spec.name, name)
    if trials and follower.interrupts and trials[-1].status is TrialStatus.PREEMPTED:
        cancel_preempted(history, trials[-1], home, timestamp())
        trials = _find_trials(history, spec.name, name)
        options.tell(f"{trials[-1].trial} is {trials[-1].status.value}: {trials[-1].reason}")
    code = None if pod is None else pod.exit_code
    if follower.interrupts:
        return interrupted, trials
    if trials and not trials[-1].status.finished:
        why = "" if pod is None or pod.end_cause is None else f" ({pod.end_cause})"
        options.tell(
            f"{trials[-1].trial} did not record its end{why}: if it does not within two minutes, "
            "the server records it as LOST"
        )
        return code or ExitCode.TRAINING_FAILED, trials
    if code is not None:
        if not trials and code:
            options.tell(f"{describe_job(name, job)} before it began to train")
        return code, trials
    if trials:  # its pods are gone
        return exit_code(trials[-1], None, ()), trials
    text = f"{describe_job(name, job)} and began no training"
    if job is None or job.has_ended:
        options.tell(text)
        return ExitCode.SIGNAL_BASE + signal.SIGTERM, trials
    raise LaunchError(text)


def _find_trials(history: History, job: str, name: str) -> list[Trial]:
    return [trial for trial in history.trials(job, NEWEST) if trial.allocation == name]


def pod() -> None:
    """Run a submit in a pod; only the manifest of one calls this."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # somebody follows it
    with CaughtSignals() as signals:  # as process 1, it would ignore them otherwise
        spec, request = pods.read_job(os.environ)
        hosts = pods.list_pods(request.allocation, spec.launch.nnodes or 1)
        if int(os.environ.get("JOB_COMPLETION_INDEX") or 0):
            pods.wait_for_names(spec.name, hosts[:1], signals.received)
            ports = None if spec.run_on is None else spec.run_on.ports
            join(f"{hosts[0]}:{ports[0] if ports else 0}")
            return
        if hosts[1:]:
            pods.wait_for_names(spec.name, hosts, signals.received)
        code = _run_inside(spec, request, hosts, signals.received)
    raise typer.Exit(code)


def _run_inside(
    spec: JobSpec, request: Request, hosts: tuple[str, ...], received: Sequence[int]
) -> int:
    """Run a recurrence in the head of a job; return its exit code."""
    _, history = options.open_own(spec)
    earlier = _find_trials(history, spec.name, request.allocation)
    if earlier and earlier[-1].status is TrialStatus.REACHED:  # its pods were started again
        typer.echo(f"{earlier[-1].trial} has reached the target already")
        return ExitCode.REACHED
    if request.until is not None and read_clock() > request.until and not earlier:
        raise BusyError(f"{spec.name}: its deadline has passed; this run is skipped")
    allocation = pods.PodAllocation(request.allocation, hosts)
    with StatusReporter(os.environ) as reporter:
        result = run_recurrence(spec, request, emit=reporter.take, allocation=allocation)
    until_t = time.monotonic() + (
        _DELIVERED_S if spec.kubernetes and not spec.kubernetes.home else 0
    )
    while time.monotonic() < until_t and not received:
        try:
            history.deliver()
            break
        except UnavailableError:
            time.sleep(_POLL_S)
    return int(result["exit_code"])
