"""Submits whose jobs a scheduler runs: what a backend does for them, and how they are followed."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Protocol

import typer
from rich.text import Text
from typer import Argument

from zeusrun.commands import options
from zeusrun.errors import ExitCode, UsageError, ZeusrunError
from zeusrun.plain_text import plain_log_line
from zeusrun.run_on.registry import BACKENDS, COMPLETE, check_exists, describe_job, is_remote, load
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager

    from rich.console import Console

    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.request import Request
    from zeusrun.run_on.registry import SchedulerJob
    from zeusrun.schedule.store import Schedule

_POLL_S = 0.2


class Source(Protocol):
    """Where a submit is seen from outside."""

    def read_lines(self, *, final: bool = False) -> Iterable[str]:
        """Return what it has printed since the last call; ``final``: unfinished lines, too."""

    def read_job(self) -> SchedulerJob | None:
        """Return its job as it was a moment ago; ``None``: no response."""

    def has_ended(self) -> bool:
        """Whether nothing more comes."""


class Submitter(Protocol):
    """The module of a backend that submits. See ``run_on/registry.py``."""

    def show(self, spec: JobSpec, request: Request, *, as_json: bool) -> None:
        """Show what a submit would hand to the scheduler."""

    def submit(
        self,
        spec: JobSpec,
        request: Request,
        begun: Callable[[], None],
        *,
        detach: bool,
        as_json: bool,
    ) -> int:
        """Queue a submit, and follow it to its end; return its exit code.

        ``detach`` returns at once. ``begun`` is called once it is queued.
        """

    def open_output(self, name: str, *, follow: bool) -> AbstractContextManager[Source]:
        """Open what a job prints, or has printed; raises ``UsageError`` if that is not here."""

    def add_schedule(
        self, spec: JobSpec, schedule: Schedule, *, dry_run: bool, as_json: bool
    ) -> None:
        """Let the scheduler itself start the job; raises ``UsageError`` if it cannot."""

    def run_inside(self, name: str) -> None:
        """Run a submit in the job that the scheduler has started for it."""


def submitter_of(spec: JobSpec) -> Submitter | None:
    """Return what submits a job to its scheduler; ``None``: it runs on machines that it names."""
    backend = None if spec.run_on is None else spec.run_on.scheduler
    found: Submitter | None = None if backend is None else load(backend, "submit")
    return found


@dataclass
class Follower:
    """Shows what a submit prints, and how its job waits, until it ends."""

    name: str  # of its job
    source: Source
    stop: Callable[[int], None]  # gets the number of interrupts so far
    shown: Console
    received: Sequence[int]  # the signals to this process
    quiet: bool = False
    interrupts: int = field(default=0, init=False)  # so many were passed on
    _said: str | None = field(default=None, init=False)

    def follow(self) -> None:
        """Raise ``ZeusrunError`` if this process is to end; the job goes on."""
        while not self.source.has_ended():
            self._show_state()
            self._print()
            self._take_signals()
            time.sleep(_POLL_S)
        self._print(final=True)

    def _print(self, *, final: bool = False) -> None:
        for line in self.source.read_lines(final=final):
            text = Text(plain_log_line(line), overflow="ignore")
            # On a terminal, break lines between words.
            self.shown.print(text, soft_wrap=not self.shown.is_terminal)

    def _show_state(self) -> None:
        job = self.source.read_job()
        text = describe_job(self.name, job)
        if text != self._said and not self.quiet:
            self.shown.print(Text(f"· {text}"), soft_wrap=True)
        self._said = text

    def _take_signals(self) -> None:
        interrupts = self.received.count(signal.SIGINT)
        if interrupts > self.interrupts:
            self.interrupts = interrupts
            self.stop(interrupts)
            then = "wait no longer" if is_remote(self.name) else "end it at once"
            again = "" if interrupts > 1 else f"; press Ctrl-C again to {then}"
            self.shown.print(f"{self.name} is asked to stop{again}", highlight=False)
        if len(self.received) > interrupts:
            error = ZeusrunError(f"{self.name} goes on without this process")
            hung_up = signal.SIGHUP in self.received
            error.exit_code = ExitCode.SIGNAL_BASE + signal.SIGHUP if hung_up else ExitCode.BUSY
            raise error


def inside(
    backend: Annotated[str, Argument(help="Such as slurm.")],
    name: Annotated[str, Argument(help="Of the queued submit, if the backend names it.")] = "",
) -> None:
    """Run a submit where its scheduler has started it; only the scheduler calls this."""
    if backend not in BACKENDS:
        raise UsageError(f"{backend} is no scheduler that this version of zeusrun knows")
    load(backend, "submit").run_inside(name)


def tell_queued(name: str, *, quiet: bool, as_json: bool) -> int:
    """Say that a submit is queued, which nobody follows; return the exit code."""
    if as_json:
        print_json({"queued": name})
    elif not quiet:
        typer.echo(f"queued as {name}; `zeusrun logs -f {name}` follows it")
    return ExitCode.REACHED


def show_source(name: str, source: Source) -> None:
    """Print what a submit in a scheduler prints, until nothing more comes."""
    job = source.read_job()
    check_exists(name, job)
    if (not is_remote(name)) if job is None else job.state != COMPLETE:  # else an error says why
        options.tell(describe_job(name, job))
    ended, silent = False, True
    while not ended:
        ended = job is None or source.has_ended()
        for line in source.read_lines(final=ended):
            silent = False
            typer.echo(plain_log_line(line))
        time.sleep(0.0 if ended else _POLL_S)
    if silent and is_remote(name) and job is not None and job.has_ended:
        raise UsageError(
            f"{name} has no log, or its log is gone; `zeusrun history` shows recorded runs"
        )
