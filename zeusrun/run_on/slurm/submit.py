"""Submits that Slurm starts: queued and followed on a login node, run in the batch step."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.follow import Order, Shown, Submitter
from zeusrun.commands.recurrence import run_recurrence, send_notices
from zeusrun.errors import (
    BusyError,
    ExitCode,
    JobFileError,
    LaunchError,
    UsageError,
    ZeusrunError,
    writes_to,
)
from zeusrun.files.home import trusted_home
from zeusrun.files.private import build_known, check_version, make_folder, read_file, replace_file
from zeusrun.files.tail import LineTail
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.attempts.recurrence import exit_code
from zeusrun.launcher.processes.signals import PREEMPTING
from zeusrun.launcher.queue.admission import Queue, Request, end_allocated
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.maintenance.recover import recover_lost
from zeusrun.reasons import ReasonCode
from zeusrun.run_on.registry import GONE, cancel_job, interrupt_job
from zeusrun.run_on.slurm.allocation import open_allocation
from zeusrun.run_on.slurm.client import read_jobs, submit_script
from zeusrun.run_on.slurm.script import build_script
from zeusrun.run_on.slurm.section import Slurm
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.run_on.slurm.allocation import SlurmAllocation
    from zeusrun.run_on.slurm.client import SlurmJob

_ASK_S = 3.0  # between two questions to the scheduler
_WRITTEN_S = 10.0  # a shared file system shows what the batch step wrote last
_VERSION = 1
_MAX_BYTES = 64 << 20  # a result contains the trials of a recurrence
_KEPT_S = 30 * 86_400.0  # what a submit printed, for people who look for a failure


@dataclass(frozen=True)
class QueuedFiles:
    """The files of one submit that is queued."""

    folder: Path

    @property
    def output(self) -> Path:
        """What the batch step prints."""
        return self.folder / "output.log"

    def write(self, name: str, content: bytes) -> None:
        """Write a file for the owner alone; raises ``HistoryError``."""
        path = self.folder / name
        with writes_to(path):
            make_folder(self.folder)
            replace_file(path, content, durable=False)

    def write_request(self, request: Request) -> None:
        """Write what the batch step does; raises ``HistoryError``."""
        content = json.dumps({"version": _VERSION, **asdict(request)})
        self.write("request.json", content.encode())

    def read_request(self) -> Request:
        """Return what the batch step does; raises ``UsageError`` if that cannot be read."""
        path = self.folder / "request.json"
        try:
            record = json.loads(read_file(path, _MAX_BYTES))
            check_version(record, _VERSION, path, UsageError)
            return build_known(Request, record, overrides=tuple(record["overrides"]))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            why = getattr(error, "strerror", None) or error
            raise UsageError(
                f"{path}, which contains the request, cannot be read: {why}; submit the job again"
            ) from error

    def read_result(self) -> dict[str, Any] | None:
        """Return how the submit ended; ``None`` if it has not."""
        with contextlib.suppress(OSError, ValueError):
            found = json.loads(read_file(self.folder / "result.json", _MAX_BYTES))
            return found if isinstance(found, dict) else None
        return None


def new_files(folder: Path) -> QueuedFiles:
    """Return the files of a new submit, which do not exist yet; remove those of a month ago."""
    with contextlib.suppress(OSError):  # another submit does the same
        for output in folder.glob("*/output.log"):
            # A job that was started again writes its output alone.
            if output.stat().st_mtime < read_clock() - _KEPT_S:
                shutil.rmtree(output.parent, ignore_errors=True)
    return QueuedFiles(folder / uuid4().hex[:12])


def find_files(folder: Path, allocation: str) -> QueuedFiles | None:
    """Return the files of the submit that a job runs; ``None`` if they are gone."""
    with contextlib.suppress(OSError):
        for path in sorted(folder.iterdir(), key=_changed_at, reverse=True):
            with contextlib.suppress(UsageError):
                if QueuedFiles(path).read_request().allocation == allocation:
                    return QueuedFiles(path)
    return None


def _changed_at(path: Path) -> float:
    try:
        return path.lstat().st_mtime
    except OSError:  # another submit has removed the file
        return 0.0


class SlurmSubmitter(Submitter):
    """Submits to Slurm, whose nodes share a home with users.

    The script ends with ``zeusrun inside slurm FOLDER``: its batch step, which runs the submit. The
    submitter of another such scheduler inherits this one, and replaces what is Slurm's own: the
    attributes, and the methods above ``show``.
    """

    backend, lister, id_variable = "slurm", "squeue", "SLURM_JOB_ID"

    def build_script(self, spec: JobSpec, files: QueuedFiles, home: Path) -> str:
        """Return the batch script of a submit."""
        return build_script(spec, files.folder, home)

    def submit_script(self, script: Path, spec: JobSpec, earlier: Sequence[str]) -> str:
        """Queue a script by ``sbatch``."""
        given = Slurm.of(spec.run_on).model_dump(exclude_none=True)
        return submit_script(script, earlier, spec.source.parent, given)

    def read_job(self, name: str) -> SlurmJob | None:
        """Return a job as ``squeue`` shows it."""
        return read_jobs([name]).get(name)

    def stop_job(self, name: str, interrupts: int) -> None:
        """Send SIGINT to the batch step, or cancel the job."""
        job = self.read_job(name)
        is_running = job is not None and job.state == "RUNNING"
        (interrupt_job if is_running and interrupts == 1 else cancel_job)(name)

    def requeues(self, spec: JobSpec) -> bool:
        """Whether the job file lets Slurm start a job again."""
        return Slurm.of(spec.run_on).requeue

    def open_allocation(self, environment: Mapping[str, str], grace_s: float) -> SlurmAllocation:
        """Return the job of this process, whose end Slurm signals early enough."""
        return open_allocation(environment, grace_s)

    def show(self, spec: JobSpec, request: Request) -> Shown:
        """Return the batch script that a submit would queue."""
        del request  # the script reads it from a file
        home = trusted_home(os.environ)
        script = self.build_script(spec, QueuedFiles(home / self.backend / "ID"), home)
        return {"script": script}, script

    def queue(self, order: Order) -> str:
        """Take a ticket and hand the script to the scheduler; return the name of its job."""
        spec, request, home, history, received = order
        files = new_files(home / self.backend)
        queue = Queue(spec.name, home, history, request.until, received, options.tell)
        with queue.hold_elsewhere(request.overlap, waits=False) as (held, before, undo):
            undo.callback(shutil.rmtree, files.folder, ignore_errors=True)
            request = replace(request, job_file=str(spec.source), ticket=held.ticket.number)
            files.write_request(request)
            files.write("script.sh", os.fsencode(self.build_script(spec, files, home)))
            files.write("output.log", b"")
            earlier = [each.allocation for each in before if each.allocation]
            name = self.submit_script(files.folder / "script.sh", spec, earlier)
            undo.callback(cancel_job, name)
            held.write(allocation=name)
            files.write_request(replace(request, allocation=name))
        if request.overlap == "replace":
            end_allocated(before)
        return name

    def open_output(self, name: str, *, follow: bool) -> contextlib.nullcontext[_QueuedSource]:
        """Open the output of a batch step; raises ``UsageError`` if this home does not have it."""
        home = trusted_home(os.environ)
        files = find_files(home / self.backend, name)
        if files is None:
            raise UsageError(f"{home} has no output of {name}; `{self.lister}` lists all jobs")
        return contextlib.nullcontext(_QueuedSource(name, files, self.read_job, follow))

    def conclude(
        self, order: Order, source: _QueuedSource, interrupts: int
    ) -> tuple[int, dict[str, Any] | None]:
        """Return the result of the batch step; without a result, judge by the end of its job."""
        if (result := source.result) is None:
            return _conclude(order, source, interrupts), None
        # Without trials, the batch step has printed an error.
        return int(result["exit_code"]), result if "trials" in result else None

    def run_inside(self, name: str, received: Sequence[int]) -> int:
        """Run a queued submit. Only the batch step of the job calls this."""
        home = trusted_home(os.environ)
        files = QueuedFiles(home / self.backend / name)
        request = files.read_request()
        this = f"{self.backend}:{os.environ.get(self.id_variable, '')}"
        if request.allocation not in {"", this}:
            raise UsageError(f"this command is for the batch step that runs {request.allocation}")
        with contextlib.suppress(OSError):  # from before a restart of the job
            (files.folder / "result.json").unlink()
        try:
            result = self._run(request, home, received)
        except ZeusrunError as error:
            options.tell(str(error))  # before a follower reads the result
            result = {"exit_code": int(error.exit_code)}
        if result is None:
            return ExitCode.BUSY
        with contextlib.suppress(ZeusrunError):  # the history still has the result
            files.write("result.json", json.dumps(result).encode())
        return int(result["exit_code"])

    def _run(self, request: Request, home: Path, signals: Sequence[int]) -> dict[str, Any] | None:
        """Run a recurrence in the allocation; return its result, ``None`` if it is queued again."""
        spec = load_spec(Path(request.job_file), list(request.overrides))
        requeues = self.requeues(spec)
        with (
            self.open_allocation(os.environ, spec.launch.grace_period_s) as allocation,
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
                    f"{self.backend} does not respond here, so the time limit is unknown: "
                    f"docs/{self.backend}.md"
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
            held.leave()  # the scheduler kills this process
            if not allocation.requeue():
                return result
            stack.pop_all()
        return None


@dataclass
class _QueuedSource:
    """A queued submit, by the files of its batch step. See ``Source``."""

    name: str  # of its job
    files: QueuedFiles
    ask: Callable[[str], SlurmJob | None]
    follows: bool = True
    job: SlurmJob | None = None  # as its scheduler described it last
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
            self.job = self.ask(self.name) or self.job
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
        return now_t > self._ended_t + (_WRITTEN_S if job.has_begun else 0.0)


def _conclude(order: Order, source: _QueuedSource, interrupts: int) -> int:
    """Record what the end of a job left, which could not do so itself; return the exit code."""
    spec, _, home, history, _ = order
    name, recovered = source.name, recover_lost(history, spec.name, timestamp(), home)
    lost = [each for each in recovered if each.status is TrialStatus.LOST]
    send_notices(spec, home, options.tell, lambda notices: notices.lost_notices(lost))
    # Another submit may have recorded it first, or the batch step, which could not tell.
    trial = options.find_allocated(name, history)
    cancelled = ExitCode.SIGNAL_BASE + (signal.SIGINT if interrupts else signal.SIGTERM)
    if trial is not None and trial.status.finished:
        options.tell(f"{trial.trial} is recorded as {trial.status.value}: {trial.reason}")
        return cancelled if trial.status is TrialStatus.CANCELLED else exit_code(trial, None, ())
    state = GONE if source.job is None else source.job.state
    text = f"{name} ended as {state} before it began to train"
    if state == "CANCELLED":
        options.tell(text)
        return cancelled
    raise LaunchError(f"{text}; `zeusrun logs {name}` shows why")


SUBMITTER = SlurmSubmitter()
