"""The verbs that run a job: ``submit``, ``rerun`` and ``schedule fire``."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import sys
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from zeusrun import __version__
from zeusrun.analysis.savings import find_savings
from zeusrun.choice.problem import Forced
from zeusrun.clock import read_clock
from zeusrun.commands import options
from zeusrun.commands.compose import compose
from zeusrun.errors import BusyError, ExitCode, HistoryError, UsageError, ZeusrunError
from zeusrun.files.home import trusted_home
from zeusrun.history.base import NEWEST, UnavailableError
from zeusrun.jobfile.hosts import parse_hostfile
from zeusrun.jobfile.spec import load_spec
from zeusrun.jobfile.validators import Overlap
from zeusrun.launcher.begin import plan
from zeusrun.launcher.events import FoundLost, Noted, TrialEnded, Warned
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.launcher.queue.admission import admitted, check_not_ended
from zeusrun.launcher.recurrence import submit as run_submit
from zeusrun.launcher.rundir.ownership import files_of
from zeusrun.maintenance.retention import collect, read_bounds, remove
from zeusrun.notify.notices import build_notices, failure_notice, lost_notices, send
from zeusrun.reasons import ReasonCode
from zeusrun.schedule.deferral import decide_start
from zeusrun.schedule.occurrence import fire as run_occurrence
from zeusrun.schedule.store import Schedules
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json, result_json
from zeusrun.view.live import SubmitView
from zeusrun.view.tables import plan_sheet, savings_block

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.context import Submission
    from zeusrun.launcher.events import Emit, SubmitEvent
    from zeusrun.notify.notices import Notice
    from zeusrun.schedule.due import PlannedStart
    from zeusrun.schedule.store import Schedule
    from zeusrun.trial import Trial

_FIRINGS = 5  # of a schedule, that a machine reports
_POLL_S = 0.2  # a wait for the history ends so soon after a signal

OverlapRule = Annotated[
    Overlap,
    Option(
        "--overlap",
        help="If the job is already running: allow starts a second run, forbid exits with 75, "
        "queue waits for its end, replace ends it first.",
    ),
]


def submit(
    job: options.JobFile,
    *,
    overrides: options.Overrides = None,
    batch_size: Annotated[
        int | None, Option(metavar="N", help="Use this candidate instead of the policy's choice.")
    ] = None,
    overlap: OverlapRule = "allow",
    wait: Annotated[
        bool, Option("--wait", help="Wait for GPUs that another job uses; by default exit 75.")
    ] = False,
    metrics_port: Annotated[
        str | None,
        Option(metavar="[HOST:]PORT", help="Serve Prometheus the running training, on loopback."),
    ] = None,
    nodes_from: Annotated[
        str | None,
        Option(metavar="FILE", help="Run on the hosts of this hostfile; -: standard input."),
    ] = None,
    fan_out: Annotated[
        str | None,
        Option(metavar="COMMAND", help="Starts the words after it on {host}: run_on.fan_out."),
    ] = None,
    dry_run: options.DryRun = False,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the job once: choose, launch, meter, record."""
    changes = [*(overrides or []), *_read_nodes(nodes_from, fan_out)]
    spec = load_spec(job, changes)
    forced = None if batch_size is None else Forced(batch_size, "chosen by --batch-size")
    if dry_run:
        with contextlib.closing(compose(spec, forced)) as submission:
            _show_plan(submission, as_json=as_json)
        return
    run = functools.partial(
        run_recurrence,
        spec,
        forced,
        overlap=overlap,
        wait=wait,
        as_json=as_json,
        quiet=quiet,
    )
    if metrics_port is None:
        raise typer.Exit(run())
    from zeusrun.export.prometheus import MetricsPort, parse_address  # noqa: PLC0415 - 20 ms

    if quiet and not parse_address(metrics_port)[1]:
        raise UsageError(
            f"--metrics-port {metrics_port} lets the system choose a port, and --quiet does not "
            "print it; name a port such as 9400"
        )
    with MetricsPort(spec.name, metrics_port) as port:
        code = run(note=f"metrics for Prometheus: {port.url}", emit=port.take)
    raise typer.Exit(code)


def _read_nodes(nodes_from: str | None, fan_out: str | None) -> list[str]:
    """Return the settings of ``--nodes-from`` and ``--fan-out`` as overrides of the job file."""
    changes = [] if fan_out is None else [f"run_on.fan_out={json.dumps(fan_out)}"]
    if nodes_from is None:
        return changes
    try:
        text = sys.stdin.read() if nodes_from == "-" else Path(nodes_from).read_text("utf-8")
        hosts = parse_hostfile(text)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise UsageError(f"--nodes-from {nodes_from}: {why}") from error
    listed = [re.sub(r"([^@]*:.*)", r"[\1]", each.name) for each in hosts]  # IPv6
    words = [
        name if each.slots is None else f"{name}:{each.slots}"
        for name, each in zip(listed, hosts, strict=True)
    ]
    return ["run_on.hostfile=null", f"run_on.hosts={json.dumps(words)}", *changes]


def rerun(
    trial: options.TrialName,
    *,
    overrides: options.Overrides = None,
    as_json: options.AsJson = False,
    quiet: options.Quiet = False,
) -> None:
    """Run the job of a past run again, with the same batch size."""
    home, store = options.open_home(trial)
    found = options.find_trial(trial, store)
    job_copy = files_of(store, home, found).job_copy
    if not job_copy.is_file():
        raise UsageError(
            f"the copy of the job file of {found.trial} is gone: {job_copy}; submit the job file "
            f"with --batch-size {found.global_batch_size}"
        )
    spec = load_spec(job_copy, overrides or [])
    raise typer.Exit(
        run_recurrence(
            spec,
            Forced(found.global_batch_size, f"as in {found.trial}, by rerun"),
            warning=_warn_of_timeout(found, spec),
            as_json=as_json,
            quiet=quiet,
        )
    )


def _warn_of_timeout(stopped: Trial, spec: JobSpec) -> str | None:
    """Return a warning if the time limit that stopped a trial will probably stop it again."""
    if stopped.reason_code is not ReasonCode.TIMEOUT or spec.timeout_s is None:
        return None
    return (
        f"{stopped.trial} was stopped by its timeout_s, which still applies, and will probably "
        f"stop this run, too. To let it finish: zeusrun rerun {stopped.trial} --set timeout_s=null"
    )


def fire(job: str, occurrence: float) -> None:
    """Run an occurrence that a tick found due."""

    def run(schedule: Schedule, begun: Callable[[], None]) -> int:
        spec = load_spec(Path(schedule.job_file))
        if spec.name != schedule.job:
            raise UsageError(
                f"{schedule.job_file}: now describes {spec.name}, but {schedule.job} is scheduled; "
                f"run `zeusrun schedule remove {schedule.job}`, then add it again"
            )
        deadline_s = schedule.rules.deadline_s
        until = None if deadline_s is None else occurrence + deadline_s

        def begins() -> None:
            begun()
            # A heading in the log; a skipped run gets none.
            when = schedule.rules.timetable.local(occurrence)
            start = next(e.start for e in schedule.firings if e.occurrence == occurrence)
            started = "" if start is None else f", started {start}"
            typer.echo(f"── {schedule.job}, run of {when:%Y-%m-%d %H:%M %z}{started} ──")

        return run_recurrence(spec, overlap=schedule.overlap, until=until, wait=True, begun=begins)

    home = trusted_home(os.environ)

    def plan(schedule: Schedule, now: float) -> PlannedStart:
        return decide_start(schedule, occurrence, now, home, os.environ)

    raise typer.Exit(run_occurrence(Schedules(home), job, occurrence, run, plan))


def run_recurrence(
    spec: JobSpec,
    forced: Forced | None = None,
    *,
    warning: str | None = None,
    note: str | None = None,
    emit: Emit = lambda _event: None,
    overlap: Overlap = "allow",
    until: float | None = None,
    wait: bool = False,
    begun: Callable[[], None] = lambda: None,
    as_json: bool = False,
    quiet: bool = False,
) -> int:
    """Wait until the job may start, then run one recurrence and show it; return the exit code.

    ``forced`` is the user's own choice; ``note`` is shown first. ``emit`` gets every event, too.
    With ``wait``, also wait for GPUs of other jobs. No wait lasts beyond ``until``, in Unix
    seconds; ``begun`` is called after it.
    """
    shown = lasting_console(sys.stderr if as_json else sys.stdout)
    trials: list[Trial] = []
    began = False
    # Signals are caught until everything is recorded, notified and cleaned up.
    with CaughtSignals() as signals, SubmitView(shown, quiet=quiet) as view:
        messages = _HistoryMessages(spec.name, view, signals)
        home, history = options.open_own(spec, show=messages.append, pause=messages.pause)
        notify = functools.partial(_notify, spec, home, view)
        if warning is not None:
            view.show(Warned(warning))
        if note is not None:
            view.show(Noted(note))

        def consume(event: SubmitEvent) -> None:
            messages.show()
            messages.note(event)
            view.show(event)
            emit(event)
            if isinstance(event, FoundLost):
                notify(lost_notices(event.trials))

        try:
            with admitted(
                spec,
                home,
                history,
                {**os.environ, **spec.env},
                overlap=overlap,
                wait_for_gpus=wait,
                until=until,
                signals=signals.received,
                show=lambda text: view.show(Noted(text)),
            ) as gpus:
                begun()
                submission = replace(
                    compose(
                        spec,
                        forced,
                        gpus,
                        place=(home, history),
                        signals=signals.received,
                        show=lambda text: view.show(Warned(text)),  # also with --quiet
                    ),
                    describe_machine=functools.partial(_describe_machine, home),
                )
                with contextlib.closing(submission):
                    check_not_ended(spec.name, signals.received)
                    began = True
                    result = run_submit(submission, consume)
                if result.attempts > 1 and result.exit_code == ExitCode.TARGET_MISSED:
                    view.show(Warned(f"the target was missed in {result.attempts} attempts"))
                with contextlib.suppress(HistoryError):  # the recurrence is recorded
                    trials = history.trials(spec.name, NEWEST)
                notify(build_notices(trials, result))
        except ZeusrunError as error:
            if began or not isinstance(error, BusyError):  # a skipped run is not a failure
                notify([failure_notice(spec.name, error)])
            raise
        finally:
            messages.show()
        _remove_old_runs(spec, history, home, view, signals.received)
    savings = find_savings(trials)
    for block in [] if quiet else savings_block(savings):
        shown.print(block, soft_wrap=not shown.is_terminal)  # as SubmitView prints
    if as_json:
        print_json(result_json(spec.name, result, savings))
    return result.exit_code


class _HistoryMessages:
    """The messages of a shared history, from any thread; the main thread shows them."""

    def __init__(self, job: str, view: SubmitView, signals: CaughtSignals) -> None:
        self._job, self._view, self._signals = job, view, signals
        self._texts: deque[str] = deque()
        self.append = self._texts.append
        self._next, self._replaced = "it", 0

    def note(self, event: SubmitEvent) -> None:
        """Note which attempt comes next."""
        if isinstance(event, TrialEnded):
            self._replaced += event.replaced
            self._next = f"attempt {event.trial.attempt + 1 - self._replaced}"

    def show(self) -> None:
        """Show the messages that have come."""
        while self._texts:
            self._view.show(Warned(self._texts.popleft()))

    def pause(self, seconds: float) -> None:
        """Wait for the history; raises ``BusyError`` if a signal comes."""
        self.show()
        until_t = time.monotonic() + seconds
        while (left_s := until_t - time.monotonic()) > 0:
            check_not_ended(self._job, self._signals.received, self._next)
            time.sleep(min(_POLL_S, left_s))


def _notify(spec: JobSpec, home: Path, view: SubmitView, notices: Sequence[Notice]) -> None:
    if spec.notify.url is None and not spec.notify.command:
        return
    try:
        send(home, spec, notices, os.environ)
    except (OSError, HistoryError) as error:  # the recurrence is recorded
        view.show(Warned(f"no notice could be sent: {error}"))


def _remove_old_runs(
    spec: JobSpec, history: History, home: Path, view: SubmitView, signals: Sequence[int]
) -> None:
    """Remove run directories beyond the job's ``keep``. After a signal the next run continues."""
    try:
        old = collect(history, home, spec.name, read_bounds(spec.keep), read_clock())
    except UnavailableError:
        return  # the next submit removes them
    except HistoryError as error:  # the recurrence is recorded
        view.show(Warned(f"old runs are not removed: {error}"))
        return
    for run in old:
        if not signals:
            remove(run)


def _show_plan(submission: Submission, *, as_json: bool) -> None:
    trial, command, remarks = plan(replace(submission, spec=submission.spec.masked()))
    env = {k: v for k, v in sorted(command.env.items()) if os.environ.get(k) != v}
    if as_json:
        print_json({"trial": trial.to_json(), "argv": list(command.argv), "env": env})
    else:
        sheet = plan_sheet(trial, shlex.join(command.argv), env, remarks)
        options.console().print(sheet, soft_wrap=True)


def _describe_machine(home: Path) -> dict[str, Any]:
    """Return the GPUs and the schedules of this machine, as far as they can be read."""
    facts: dict[str, Any] = {"version": __version__, "gpus": [], "schedules": []}
    with contextlib.suppress(ZeusrunError):
        facts["gpus"] = _describe_gpus(home)
    schedules = Schedules(home)
    if schedules.directory.is_dir():
        from zeusrun.view.schedule import schedule_json  # noqa: PLC0415 - few have a schedule

        for job in schedules.jobs():
            with contextlib.suppress(ZeusrunError):  # `schedule list` says what is wrong with it
                record = schedule_json(schedules.read(job), read_clock())
                for private in ("environment", "job_file", "python"):
                    record.pop(private, None)
                facts["schedules"].append({**record, "firings": record["firings"][-_FIRINGS:]})
    return facts


def _describe_gpus(home: Path) -> list[dict[str, Any]]:
    from zeusrun.gpu.snapshot import read_gpus  # noqa: PLC0415 - psutil takes 20 ms
    from zeusrun.launcher.power.control import held_by  # noqa: PLC0415 - see above

    gpus = read_gpus(os.environ, lambda uuid: held_by(home, uuid), everything=True)
    return [
        {name: value for name, value in each.to_json().items() if name != "processes"}
        for each in gpus
    ]
