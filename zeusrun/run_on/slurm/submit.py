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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.follow import Follower, tell_queued
from zeusrun.commands.recurrence import run_recurrence, send_notices
from zeusrun.errors import BusyError, ExitCode, JobFileError, LaunchError, UsageError, ZeusrunError
from zeusrun.files.home import trusted_home
from zeusrun.files.tail import LineTail
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.processes.signals import PREEMPTING, CaughtSignals
from zeusrun.launcher.queue.admission import Queue, end_allocated
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.launcher.recurrence import exit_code
from zeusrun.maintenance.recover import recover_lost
from zeusrun.notify.notices import lost_notices
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.registry import cancel_job
from zeusrun.run_on.slurm.allocation import open_allocation
from zeusrun.run_on.slurm.client import name_of, read_jobs, requeue_job, stop_job, submit_script
from zeusrun.run_on.slurm.queued import QueuedFiles, build_script, find_files, new_files
from zeusrun.run_on.slurm.section import Slurm
from zeusrun.trial import TrialStatus
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.request import Request
    from zeusrun.run_on.slurm.allocation import SlurmAllocation
    from zeusrun.run_on.slurm.client import SlurmJob
    from zeusrun.schedule.store import Schedule

_ASK_S = 3.0  # between two questions to Slurm
_WRITTEN_S = 10.0  # a shared file system shows what the batch step wrote last


def show(spec: JobSpec, request: Request, *, as_json: bool) -> None:  # noqa: ARG001 - see Submitter
    """Show the batch script that a submit would queue."""
    home = trusted_home(os.environ)
    script = build_script(spec, QueuedFiles(home / "slurm" / "ID"), home)
    options.answer({"script": script}, script, as_json=as_json)


def submit(
    spec: JobSpec, request: Request, begun: Callable[[], None], *, detach: bool, as_json: bool
) -> int:
    """Queue a submit in Slurm, and follow it to its end; return its exit code.

    ``detach`` returns at once. ``begun`` is called once it is queued.
    """
    shown = lasting_console(sys.stderr if as_json else sys.stdout)
    with CaughtSignals() as signals:
        home, history = options.open_own(spec)
        files = new_files(home)
        name = _queue(spec, request, files, home, history)
        begun()
        if detach:
            return tell_queued(name, quiet=request.quiet, as_json=as_json)
        source = _QueuedSource(name, files)
        follower = Follower(name, source, source.stop, shown, signals.received, request.quiet)
        follower.follow()
        if (result := source.result) is None:
            return _conclude(spec, home, history, source, follower.interrupts)
    if as_json and "trials" in result:  # else its batch step has printed an error
        print_json(result)
    return int(result["exit_code"])


def _queue(
    spec: JobSpec, request: Request, files: QueuedFiles, home: Path, history: History
) -> str:
    """Take a ticket and hand the script to Slurm; return the name of its job."""
    queue = Queue(spec.name, home, history, request.until, (), options.tell)
    with queue.hold_elsewhere(request.overlap, waits=False) as (held, before, undo):
        undo.callback(shutil.rmtree, files.folder, ignore_errors=True)
        request = replace(request, job_file=str(spec.source), ticket=held.ticket.number)
        files.write_request(request)
        files.write("script.sh", os.fsencode(build_script(spec, files, home)))
        files.write("output.log", b"")
        earlier = [each.allocation for each in before if each.allocation]
        given = section.model_dump(exclude_none=True) if (section := Slurm.of(spec.run_on)) else ()
        name = submit_script(files.folder / "script.sh", earlier, spec.source.parent, given)
        undo.callback(cancel_job, name)
        held.write(allocation=name)
        files.write_request(replace(request, allocation=name))
    if request.overlap == "replace":
        end_allocated(before)
    return name


@dataclass
class _QueuedSource:
    """A submit in Slurm, by the files of its batch step. See ``Source``."""

    name: str  # of its job
    files: QueuedFiles
    follows: bool = True
    job: SlurmJob | None = None  # as Slurm described it last
    result: dict[str, Any] | None = None  # what the batch step wrote at its end
    _asked_t: float | None = None
    _ended_t: float | None = None

    def __post_init__(self) -> None:
        self._tail = LineTail(self.files.output)

    def read_lines(self, *, final: bool = False) -> Iterator[str]:
        while lines := self._tail.read_lines(final=final):
            yield from (line.decode(errors="replace") for line in lines)

    def read_job(self) -> SlurmJob | None:
        now_t = time.monotonic()
        if self._asked_t is None or now_t > self._asked_t + _ASK_S:
            self._asked_t = now_t
            self.job = read_jobs([self.name]).get(self.name, self.job)
        return self.job

    def has_ended(self) -> bool:
        if not self.follows:
            return True
        if (result := self.files.read_result()) is not None:
            self.result = result
            return True
        job, now_t = self.read_job(), time.monotonic()
        if job is None or not job.has_ended:
            return False
        self._ended_t = self._ended_t or now_t
        return now_t > self._ended_t + (_WRITTEN_S if job.nodes else 0.0)

    def stop(self, interrupts: int) -> None:
        """Ask the batch step to stop; the second time, cancel its job."""
        stop_job(self.name, at_once=interrupts > 1)


@contextlib.contextmanager
def open_output(name: str, *, follow: bool) -> Iterator[_QueuedSource]:
    """Open what the batch step of a job prints; raises ``UsageError`` if that is not here."""
    home = trusted_home(os.environ)
    files = find_files(home, name)
    if files is None:
        raise UsageError(f"{home} has no output of {name}; `squeue` knows all jobs")
    yield _QueuedSource(name, files, follow)


def add_schedule(spec: JobSpec, schedule: Schedule, *, dry_run: bool, as_json: bool) -> None:
    """Slurm starts no job by itself again and again: ``scrontab`` is switched off at most sites."""
    del schedule, dry_run, as_json
    raise UsageError(
        f"{spec.source}: Slurm has no schedule of its own; leave out --in-cluster, and cron of "
        "this machine submits"
    )


def _conclude(
    spec: JobSpec, home: Path, history: History, source: _QueuedSource, interrupts: int
) -> int:
    """Record what the end of a job left, which could not do so itself; return the exit code."""
    name, recovered = source.name, recover_lost(history, spec.name, timestamp(), home)
    lost = [each for each in recovered if each.status is TrialStatus.LOST]
    send_notices(spec, home, options.tell, lost_notices(lost))
    # Another submit may have recorded it first, or the batch step, which could not tell.
    trial = options.find_allocated(name, history)
    cancelled = ExitCode.SIGNAL_BASE + (signal.SIGINT if interrupts else signal.SIGTERM)
    if trial is not None and trial.status.finished:
        options.tell(f"{trial.trial} is recorded as {trial.status.value}: {trial.reason}")
        return cancelled if trial.status is TrialStatus.CANCELLED else exit_code(trial, None, ())
    state = "GONE" if source.job is None else source.job.state
    text = f"{name} ended as {state} before it began to train"
    if state == "CANCELLED":
        options.tell(text)
        return cancelled
    raise LaunchError(f"{text}; `zeusrun logs {name}` shows why")


def batch(name: Annotated[str, Argument(help="Of the queued submit.")]) -> None:
    """Run a submit that was queued in Slurm; only its batch step calls this."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # somebody follows the file
    home = trusted_home(os.environ)
    files = QueuedFiles(home / "slurm" / name)
    request = files.read_request()
    if request.allocation not in {"", name_of(os.environ.get("SLURM_JOB_ID", ""))}:
        raise UsageError(
            f"this command is for the batch step of a Slurm job: {request.allocation} runs it"
        )
    with CaughtSignals() as signals:  # until the result is written, or the job is queued again
        files.remove_result()  # of the time before Slurm started the job again
        try:
            result = _run_inside(request, home, signals.received)
        except ZeusrunError as error:
            options.tell(str(error))  # before somebody reads the result
            result = {"exit_code": int(error.exit_code)}
        if result is not None:
            with contextlib.suppress(ZeusrunError):  # the history has it
                files.write("result.json", json.dumps(result).encode())
    raise typer.Exit(ExitCode.BUSY if result is None else result["exit_code"])


def _run_inside(request: Request, home: Path, signals: Sequence[int]) -> dict[str, Any] | None:
    """Run a recurrence in the allocation; return its result, ``None`` if it is queued again."""
    spec = load_spec(Path(request.job_file), list(request.overrides))
    requeues = (section := Slurm.of(spec.run_on)) is not None and section.requeue
    with (
        open_allocation(os.environ, spec.launch.grace_period_s) as allocation,
        contextlib.ExitStack() as stack,
    ):
        nodes, wanted = len(allocation.hosts), spec.launch.nnodes or 1
        if nodes != wanted:
            text = f"{spec.source}: 'launch.nnodes' is {wanted} now, but {allocation.name} has"
            raise JobFileError(f"{text} {nodes}; submit the job again")
        held = Tickets(home).adopt(request.ticket, spec.name, allocation.name)
        stack.callback(held.release)
        if not allocation.is_known:
            options.tell(
                "squeue does not respond here, so the time limit is unknown: docs/slurm.md"
            )
        late = request.until is not None and read_clock() > request.until
        if late and not allocation.restarts:  # else it had begun in time
            raise BusyError(f"{spec.name}: its deadline has passed; this run is skipped")
        try:
            result = run_recurrence(spec, request, allocation=allocation, ticket=held)
            preempted = result["trials"][-1]["status"] == TrialStatus.PREEMPTED.value
        except BusyError as error:
            # It may have been preempted before a run began.
            cause = allocation.find_cause() if signals and signals[0] in PREEMPTING else None
            preempted = cause is not None and cause[0] is not ReasonCode.CANCELLED
            if not (preempted and requeues):
                raise
            options.tell(str(error))
            result = {"exit_code": int(error.exit_code)}
        if not (preempted and requeues):
            return result
        held.leave()  # Slurm kills this process
        if not _requeue(allocation):
            return result
        stack.pop_all()
    return None


def _requeue(allocation: SlurmAllocation) -> bool:
    """Queue this job again, unless the user has cancelled it; return whether it will run again."""
    cause = allocation.ask()
    if cause is not None and cause[0] is ReasonCode.CANCELLED:
        return False
    try:
        requeue_job(allocation.name)
    except LaunchError as error:
        job = read_jobs([allocation.name]).get(allocation.name)
        # Somebody else has done so; until its processes end, the job is COMPLETING.
        if job is None or (job.restarts <= allocation.restarts and job.state != "PENDING"):
            options.tell(f"{error}; the next submit continues the run")
            return False
    return True
