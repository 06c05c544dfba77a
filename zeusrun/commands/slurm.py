"""Submits that Slurm starts: queued and followed on a login node, run in the batch step."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.live import Live
from rich.text import Text
from typer import Argument

from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.recurrence import Inside, run_recurrence, send_notices
from zeusrun.errors import BusyError, ExitCode, LaunchError, UsageError, ZeusrunError
from zeusrun.files.home import trusted_home
from zeusrun.files.tail import LineTail
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.processes.signals import PREEMPTING, CaughtSignals
from zeusrun.launcher.queue.admission import end_allocated, queue_elsewhere
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.recover import recover_lost
from zeusrun.launcher.recurrence import exit_code
from zeusrun.launcher.slurm.allocation import open_allocation
from zeusrun.launcher.slurm.client import (
    find_ended,
    id_of,
    name_of,
    read_jobs,
    requeue_job,
    stop_job,
    submit_script,
)
from zeusrun.launcher.slurm.queued import (
    Queued,
    QueuedFiles,
    build_script,
    files_of_id,
    find_files,
    new_files,
)
from zeusrun.notify.notices import lost_notices
from zeusrun.plain_text import plain_log_line
from zeusrun.reasons import ReasonCode
from zeusrun.trial import TrialStatus
from zeusrun.view import units
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.request import Request
    from zeusrun.launcher.slurm.allocation import Allocation
    from zeusrun.launcher.slurm.client import SlurmJob

_POLL_S = 0.2
_FIRST_S = 1.0
_ASK_S = 5.0  # between two questions to Slurm; the first ones come sooner
_WRITTEN_S = 10.0  # a shared file system shows what the batch step wrote last


def show_script(spec: JobSpec, *, as_json: bool) -> None:
    """Show the batch script that a submit would queue."""
    home = trusted_home(os.environ)
    script = build_script(spec, QueuedFiles(home / "slurm" / "ID"), home)
    if as_json:
        print_json({"script": script})
    else:
        typer.echo(script, nl=False)


def submit_to_slurm(
    spec: JobSpec,
    request: Request,
    *,
    detach: bool = False,
    as_json: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> int:
    """Queue a submit in Slurm, and follow it to its end; return its exit code.

    ``detach`` returns at once. ``begun`` is called once it is queued.
    """
    quiet = request.quiet
    shown = lasting_console(sys.stderr if as_json else sys.stdout)
    queued = Queued(spec.name, str(spec.source), request, color=shown.is_terminal and not detach)
    with CaughtSignals() as signals:
        home, history = options.open_own(spec)
        files = new_files(home)
        job_id = _queue(spec, queued, files, home, history)
        begun()
        name = name_of(job_id)
        if detach:
            if as_json:
                print_json({"queued": name})
            elif not quiet:
                typer.echo(f"queued as {name}; `zeusrun logs -f {name}` follows it")
            return ExitCode.REACHED
        follower = _Follower(spec, files, job_id, shown, signals, quiet=quiet)
        result = follower.follow()
        if result is None:
            return _conclude(spec, home, history, follower)
    if as_json and "trials" in result:  # else its batch step has printed an error
        print_json(result)
    return int(result["exit_code"])


def _queue(spec: JobSpec, queued: Queued, files: QueuedFiles, home: Path, history: History) -> str:
    """Take a ticket and hand the script to Slurm; return the id of its job."""
    held, before = queue_elsewhere(spec.name, home, history, queued.request.overlap)
    left = False
    try:
        queued = replace(queued, ticket=held.ticket.number)
        files.write_queued(queued)
        files.write("script.sh", os.fsencode(build_script(spec, files, home)))
        files.write("output.log", b"")
        earlier = [job_id for each in before if (job_id := id_of(each.allocation)) is not None]
        given = spec.slurm.model_dump(exclude_none=True) if spec.slurm else ()
        job_id = submit_script(files.script, earlier, spec.source.parent, given)
        held.write(allocation=name_of(job_id))
        files.write_queued(replace(queued, job_id=job_id))
        held.leave()
        left = True
    finally:
        if not left:
            held.release()
            shutil.rmtree(files.folder, ignore_errors=True)
    if queued.request.overlap == "replace":
        end_allocated(before)
    return job_id


class _Follower:
    """Shows what the batch step of a submit prints, and how its job waits, until it ends."""

    def __init__(
        self,
        spec: JobSpec,
        files: QueuedFiles,
        job_id: str,
        shown: Console,
        signals: CaughtSignals,
        *,
        quiet: bool,
    ) -> None:
        self.name = name_of(job_id)
        self._spec, self._files, self._id = spec, files, job_id
        self._shown, self._signals, self._quiet = shown, signals, quiet
        self._tail = LineTail(files.output)
        self.job: SlurmJob | None = None  # as Slurm described it last
        self._said: str | None = None
        self._runs = False  # what it prints says so
        self._stopped = 0  # so many interrupts were passed on
        live = shown.is_terminal and not quiet
        self._live = Live(console=shown, auto_refresh=False, transient=True) if live else None

    def follow(self) -> dict[str, Any] | None:
        """Return the result of the submit; ``None`` if its job ended without one.

        Raises ``ZeusrunError`` if this process is to end; the job goes on.
        """
        ask_t, pause_s, ended_t = 0.0, _FIRST_S, None
        with self._live or contextlib.nullcontext():
            while (result := self._files.read_result()) is None:
                self._print()
                self._take_signals()
                now_t = time.monotonic()
                if now_t >= ask_t:
                    ask_t, pause_s = now_t + pause_s, min(_ASK_S, pause_s + _FIRST_S)
                    self.job = read_jobs([self._id]).get(self._id, self.job)
                    self._runs &= self.job is not None and self.job.state != "PENDING"
                    self._show_state()
                if self.job is not None and self.job.has_ended:
                    ended_t = ended_t or now_t
                    if now_t > ended_t + (_WRITTEN_S if self.job.nodes else 0.0):
                        break
                time.sleep(_POLL_S)
        self._print(final=True)
        return result

    @property
    def stopped(self) -> bool:
        """Whether the user has stopped it from here."""
        return bool(self._stopped)

    def _print(self, *, final: bool = False) -> None:
        while lines := self._tail.read_lines(final=final):
            self._runs = True
            for line in lines:
                text = Text.from_ansi(plain_log_line(line.decode(errors="replace")))
                text.overflow = "ignore"  # broken between words, on a terminal
                self._shown.print(text, soft_wrap=self._live is None, highlight=False)

    def _show_state(self) -> None:
        text = describe_job(self.name, self.job)
        if self._live is not None:
            self._live.update(Text(text, style="dim"), refresh=True)
        elif text != self._said and not (self._quiet or self._runs):
            self._shown.print(Text(f"· {text}"), soft_wrap=True)
        self._said = text

    def _take_signals(self) -> None:
        received = self._signals.received
        interrupts = received.count(signal.SIGINT)
        if interrupts > self._stopped:
            self._stopped = interrupts
            stop_job(self._id, at_once=interrupts > 1)
            again = "" if interrupts > 1 else "; press Ctrl-C again to end it at once"
            self._shown.print(f"{self.name} is asked to stop{again}", highlight=False)
        if len(received) > interrupts:
            error = ZeusrunError(f"{self._spec.name}: {self.name} goes on without this process")
            hung_up = signal.SIGHUP in received
            error.exit_code = ExitCode.SIGNAL_BASE + signal.SIGHUP if hung_up else ExitCode.BUSY
            raise error


def describe_job(name: str, job: SlurmJob | None) -> str:
    """Return where a job of Slurm is, in a sentence without its end."""
    if job is None:
        return f"{name}: Slurm does not respond"
    if job.state != "PENDING":
        where = "" if job.nodes is None else f" on {job.nodes}"
        verb = "runs" if job.state == "RUNNING" else f"is {job.state}"
        return f"{name} {verb}{where}"
    why = "" if job.cause is None else f" ({job.cause})"
    start = ""
    if job.start_at is not None and job.start_at > read_clock():
        start = f", expected to start {units.moment(timestamp(job.start_at))}"
    return f"{name} is queued{why}{start}"


def show_output(name: str, *, follow: bool) -> None:
    """Print what the batch step of a job has printed, with ``follow`` until the job has ended."""
    home, job_id = trusted_home(os.environ), id_of(name) or ""
    files = find_files(home, job_id)
    if files is None:
        raise UsageError(f"{home} has no output of {name}; `squeue` knows all jobs")
    tail, running = LineTail(files.output), follow
    while True:
        while lines := tail.read_lines(final=not running):
            for line in lines:
                typer.echo(plain_log_line(line.decode(errors="replace")))
        if not running:
            return
        running = not find_ended([name])
        time.sleep(_POLL_S)


def _conclude(spec: JobSpec, home: Path, history: History, follower: _Follower) -> int:
    """Record what the end of a job left, which could not do so itself; return the exit code."""
    recovered = recover_lost(history, spec.name, timestamp(), home)
    lost = [t for t in recovered if (t.allocation, t.status) == (follower.name, TrialStatus.LOST)]
    send_notices(spec, home, options.tell, lost_notices(lost))
    state = "GONE" if follower.job is None else follower.job.state
    cancelled = ExitCode.SIGNAL_BASE + (signal.SIGINT if follower.stopped else signal.SIGTERM)
    # Another submit may have recorded it first, or the batch step, which could not tell.
    trial = options.find_allocated(follower.name, history)
    if trial is not None and trial.status.finished:
        status = trial.status
        then = "; the next submit continues it" if status is TrialStatus.PREEMPTED else ""
        options.tell(f"{trial.trial} is recorded as {status.value}: {trial.reason}{then}")
        return cancelled if status is TrialStatus.CANCELLED else exit_code(trial, None, ())
    error = ZeusrunError(
        f"{follower.name} ended as {state} before it began to train; `zeusrun logs "
        f"{follower.name}` shows why"
    )
    error.exit_code = cancelled if state == "CANCELLED" else ExitCode.LAUNCH
    raise error


def batch(name: Annotated[str, Argument(help="Of the queued submit.")]) -> None:
    """Run a submit that was queued in Slurm; only its batch step calls this."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # somebody follows the file
    home = trusted_home(os.environ)
    files = files_of_id(home, name)
    queued = files.read_queued()
    if queued.job_id not in {"", os.environ.get("SLURM_JOB_ID")}:
        job = name_of(queued.job_id)
        raise UsageError(f"this command is for the batch step of a Slurm job: {job} runs it")
    with CaughtSignals() as signals:  # until the result is written, or the job is queued again
        files.remove_result()  # of the time before Slurm started the job again
        try:
            code, result, again = _run_inside(queued, home, signals.received)
        except ZeusrunError as error:
            typer.echo(f"zeusrun: {error}", err=True)  # before somebody reads the result
            _write_result(files, {"exit_code": int(error.exit_code)})
            raise typer.Exit(error.exit_code) from error
        if not again:
            _write_result(files, result)
    raise typer.Exit(code)


def _write_result(files: QueuedFiles, result: dict[str, Any]) -> None:
    with contextlib.suppress(ZeusrunError):  # the history has it
        files.write("result.json", json.dumps(result).encode())


def _run_inside(
    queued: Queued, home: Path, signals: Sequence[int]
) -> tuple[int, dict[str, Any], bool]:
    """Run a recurrence in the allocation; return whether its job is queued again, too."""
    request = queued.request
    spec = load_spec(Path(queued.job_file), list(request.overrides))
    requeues = spec.slurm is not None and spec.slurm.requeue
    with open_allocation(os.environ, spec.launch.grace_period_s) as allocation:
        held = Tickets(home).adopt(queued.ticket, queued.job, allocation.name)
        inside, again = Inside(allocation, held, queued.color), False
        if not allocation.is_known:
            typer.echo(
                "zeusrun: squeue does not answer here, so the time limit is unknown, and the job "
                "may not be queued again; a container needs Slurm's commands",
                err=True,
            )
        try:
            if not allocation.restarts:  # else it had begun in time
                _check_deadline(spec, request)
            code = run_recurrence(spec, request, inside=inside)
            last = inside.result["trials"][-1]
            if last["status"] == TrialStatus.PREEMPTED.value and requeues:
                held.leave()  # Slurm kills this process
                again = _requeue(allocation)
        except BusyError as error:
            # It was preempted before a run began.
            cause = allocation.find_cause() if signals and signals[0] in PREEMPTING else None
            if cause is None or cause[0] is ReasonCode.CANCELLED or not requeues:
                raise
            held.leave()
            if not (again := _requeue(allocation)):
                raise
            typer.echo(f"zeusrun: {error}", err=True)
            code = ExitCode.BUSY
        finally:
            if not again:
                held.release()
    return code, inside.result, again


def _check_deadline(spec: JobSpec, request: Request) -> None:
    if request.until is not None and read_clock() > request.until:
        raise BusyError(f"{spec.name}: its deadline has passed; this run is skipped")


def _requeue(allocation: Allocation) -> bool:
    """Queue this job again, unless the user has cancelled it; return whether it will run again."""
    if allocation.was_cancelled():
        return False
    try:
        requeue_job(allocation.job_id)
    except LaunchError as error:
        job = read_jobs([allocation.job_id]).get(allocation.job_id)
        # Somebody else has done so; until its processes end, the job is COMPLETING.
        if job is None or (job.restarts <= allocation.restarts and job.state != "PENDING"):
            typer.echo(f"zeusrun: {error}; the next submit continues the run", err=True)
            return False
    return True
