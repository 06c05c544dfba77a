"""Submits whose jobs a scheduler runs: what a backend does for them, and how they are followed."""

from __future__ import annotations

import functools
import io
import signal
import sys
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, TypeAlias

import typer
from rich.text import Text
from typer import Argument

from zeusrun.commands import options
from zeusrun.errors import ExitCode, LaunchError, UsageError, ZeusrunError
from zeusrun.launcher.processes.signals import CaughtSignals
from zeusrun.plain_text import plain_log_line
from zeusrun.run_on.registry import BACKENDS, COMPLETE, check_exists, describe_job, is_remote, load
from zeusrun.view.console import lasting_console
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.launcher.queue.admission import Request
    from zeusrun.run_on.registry import SchedulerJob

Shown: TypeAlias = "tuple[object, str]"
"""A record for ``--json``, and the same as text."""

_POLL_S = 0.2


class Source(Protocol):
    """Where a submit is seen from outside."""

    def read_lines(self, *, final: bool = False) -> Iterable[str]:
        """Return what it has printed since the last call; ``final``: unfinished lines, too."""

    def read_job(self) -> SchedulerJob | None:
        """Return its job as it was a moment ago; ``None``: no response."""

    def has_ended(self) -> bool:
        """Whether nothing more comes."""


class Order(NamedTuple):
    """A submit that the scheduler will run."""

    spec: JobSpec
    request: Request
    home: Path
    history: History
    received: Sequence[int]  # the signals to this process


class Submitter(ABC):
    """Submits jobs to a scheduler. Each backend has a ``SUBMITTER``; see ``run_on/registry.py``."""

    backend: str
    """The name of the backend in ``BACKENDS``."""
    jobs_wait: bool = True
    """Whether the scheduler can hold a job until earlier jobs end; if not, ``queue`` waits."""

    @abstractmethod
    def show(self, spec: JobSpec, request: Request) -> Shown:
        """Return what ``queue`` would submit, for ``--dry-run``."""

    @abstractmethod
    def queue(self, order: Order) -> str:
        """Take a ticket, and submit to the scheduler; return the name of the job."""

    @abstractmethod
    def open_output(self, name: str, *, follow: bool) -> AbstractContextManager[Source]:
        """Open the output of a job; raises ``UsageError`` if the output is not available here."""

    @abstractmethod
    def stop_job(self, name: str, interrupts: int) -> None:
        """Ask a job to stop; after the second interrupt, end the job at once."""

    @abstractmethod
    def conclude(
        self,
        order: Order,
        source: Any,  # noqa: ANN401 - what ``open_output`` has returned
        interrupts: int,
    ) -> tuple[int, dict[str, Any] | None]:
        """Return the exit code of a finished submit, and its result as JSON or ``None``."""

    @abstractmethod
    def run_inside(self, name: str, received: Sequence[int]) -> int:
        """Run a submit inside the job that the scheduler has started; return the exit code."""

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
        if detach and request.overlap == "queue" and not self.jobs_wait:
            raise UsageError(
                f"a job in {self.backend} cannot wait for an earlier job; leave out --detach, so "
                "that this command waits for it"
            )
        shown = lasting_console(sys.stderr if as_json else sys.stdout)
        with CaughtSignals() as signals:
            order = Order(spec, request, *options.open_own(spec), signals.received)
            name = self.queue(order)
            begun()
            if detach:
                if as_json:
                    print_json({"queued": name})
                elif not request.quiet:
                    typer.echo(f"queued as {name}; `zeusrun logs -f {name}` follows it")
                return ExitCode.REACHED
            with self.open_output(name, follow=True) as source:
                stop = functools.partial(self.stop_job, name)
                follower = Follower(name, source, stop, shown, signals.received, request.quiet)
                try:
                    follower.follow()
                except LaunchError as error:
                    raise LaunchError(f"{error}; {name} continues without this process") from error
            code, result = self.conclude(order, source, follower.interrupts)
        if as_json and result is not None:
            print_json(result)
        return code


def submitter_of(spec: JobSpec) -> Submitter | None:
    """Return what submits a job to its scheduler; ``None``: it runs on machines that it names."""
    backend = None if spec.run_on is None else spec.run_on.scheduler
    return None if backend is None else load_submitter(backend)


def load_submitter(backend: str) -> Submitter:
    """Import the submitter of a backend."""
    submitter: Submitter = load(backend, "submit").SUBMITTER
    return submitter


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
            self.shown.print(
                f"{self.name} is asked to stop{again}", highlight=False, soft_wrap=True
            )
        if len(self.received) > interrupts:
            error = ZeusrunError(f"{self.name} continues without this process")
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
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # for `zeusrun logs -f`
    with CaughtSignals() as signals:  # process 1 of a pod ignores signals that it does not handle
        code = load_submitter(backend).run_inside(name, signals.received)
    raise typer.Exit(code)


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
