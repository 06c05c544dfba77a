"""Runs a rank: redirects its output to the log, counts steps, runs the script, records its end.

With ``--plain`` the process only redirects the output and then becomes the script.
"""

from __future__ import annotations

import builtins
import contextlib
import faulthandler
import functools
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from zeusrun.files.private import NO_SPACE, open_for_writing
from zeusrun.sidecar.events import Ended, Started, append_event
from zeusrun.sidecar.orders import ENDING, LEAVE_SIGNAL, MISSING, PREFIX_COLUMNS, STACK_SIGNAL
from zeusrun.sidecar.step_clock import StepClock
from zeusrun.worker.ending import SIGTERM_EXIT_CODE, end, end_with_parent, exit_code, leave
from zeusrun.worker.failure import record_failure
from zeusrun.worker.hooks.install import install_hooks
from zeusrun.worker.process.script import run_script, show_failure

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from zeusrun.worker.hooks.install import Hooks


def main(known: frozenset[str]) -> None:
    """Run the rank.

    The functions that call the script must have no variable for the exception that ends it: the
    exception has their frames, too, and would live until the interpreter collects its garbage.

    Args:
        known: The modules that every Python has imported when a script begins.
    """
    end_with_parent()
    rank, arguments = _begin(), sys.argv[1:]
    end(*rank.conclude(show_failure(run_script(arguments, known))), rank.pid)


@dataclass(frozen=True)
class _Rank:
    """One rank, as it began: the script may change its variables, and fork."""

    pid: int
    sidecar: str
    hooks: Hooks

    def conclude(self, error: BaseException | None) -> tuple[BaseException | None, bool, float]:
        """Record how the script ended; return the arguments of ``end``."""
        environment = self.hooks.environment
        signal.signal(LEAVE_SIGNAL, signal.SIG_IGN)  # the script has ended
        with contextlib.suppress(Exception):  # the script may have replaced what this needs
            if os.getpid() == self.pid:  # else the script has forked this process: no rank
                error, failure = self._send_last(error)
                code, rank = exit_code(error), environment.number
                if failure is not None:
                    record_failure(environment.error_path, rank, environment.restart, failure)
                self.record(Ended(time.monotonic(), rank, code, environment.had_group()))
                if code and self._is_ended_by_zeusrun():
                    error = SystemExit(0)
        return error, environment.had_group(gloo=True), environment.grace_period_s

    def _send_last(
        self, error: BaseException | None
    ) -> tuple[BaseException | None, BaseException | None]:
        """Send what is not sent yet; return what ends the rank, and its failure if it is one."""
        self.hooks.flush()
        if exit_code(error):
            return error, error
        if self.hooks.environment.external_sigterm:
            return SystemExit(SIGTERM_EXIT_CODE), None
        try:
            self.hooks.environment.send()
        except OSError as failure:
            print(f"zeusrun: could not record the metrics: {failure}", file=sys.stderr)  # noqa: T201
            return SystemExit(1), failure
        return error, None

    def _is_ended_by_zeusrun(self) -> bool:
        """Whether zeusrun is ending the ranks.

        Then this rank exits with 0 even if it failed: at a failure torchrun would end the other
        ranks, which may still be saving, and start all of them again. The sidecar has the true
        exit code.
        """
        try:
            with open(f"{self.hooks.environment.plan.run_dir}/stop", "rb") as file:  # noqa: PTH123
                return file.read(len(ENDING)) == ENDING
        except OSError:
            return False

    def record(self, event: Started | Ended) -> None:
        """Write an event to the sidecar."""
        with _going_on("could not record an event"):
            append_event(self.sidecar, event)


def _begin() -> _Rank:
    """Prepare this process; with ``--plain``, become the script."""
    if "SLURM_JOB_ID" not in os.environ:  # Slurm may send it to every process of a step
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)  # torchrun ignores it, and children inherit
    run_dir = os.environ["ZEUSRUN_RUN_DIR"]
    number = int(os.environ.get("ZEUSRUN_SLOT") or os.environ.get("RANK", "0"))
    log = os.path.join(run_dir, "logs", f"rank{number}")  # noqa: PTH118
    appending = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    with _going_on("this rank has no log of its own"):
        descriptor = open_for_writing(f"{log}.log", appending)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
    _drop_what_does_not_fit([each.buffer for each in (sys.stdout, sys.stderr) if each])
    if sys.argv[1] == "--plain":
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-u", *sys.argv[2:]])  # noqa: S606 - that is --plain
    if os.isatty(0):
        _keep_terminal()
    with _going_on("stacks cannot be dumped"):
        # The handler is written in C, so it works while the main thread waits in a collective.
        stacks = open_for_writing(f"{log}.stack", appending)
        faulthandler.register(STACK_SIGNAL, file=stacks, all_threads=True)
    clock = None
    with _going_on("steps are not counted"):
        clock = StepClock(os.path.join(run_dir, "clock", f"rank{number}"))  # noqa: PTH118
    signal.signal(LEAVE_SIGNAL, leave)
    rank = _Rank(os.getpid(), os.environ["ZEUSRUN_SIDECAR"], install_hooks(clock))
    restart = rank.hooks.environment.restart
    rank.record(Started(time.monotonic(), number, rank.pid, restart))
    return rank


@contextlib.contextmanager
def _going_on(problem: str) -> Iterator[None]:
    """Print an error of the disk and continue: it must not end the training."""
    try:
        yield
    except OSError as error:
        print(f"zeusrun: {problem}: {error}", file=sys.stderr)  # noqa: T201


def _drop_what_does_not_fit(files: Sequence[Any]) -> None:
    """Let a script go on that prints to a full disk; the log then lacks what did not fit."""
    dropped = 0  # of both: whatever is written next ends a line that was cut

    def write_or_drop(write: Callable[[bytes], Any], content: bytes, /) -> int | None:
        nonlocal dropped
        size, written = memoryview(content).nbytes, 0  # a disk may take a part
        try:
            if dropped:
                write(b" %d %s\n" % (dropped, MISSING))
                dropped = 0
            if (written := write(content)) is None:  # to a pipe that does not block
                return None
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise
        dropped += size - written
        return size

    for file in files:  # of the object: its class stays what scripts expect
        file.write = functools.partial(write_or_drop, file.write)


def _keep_terminal() -> None:
    """Let the script ask for the size of the terminal, and ask questions there.

    Both go to standard output, which is the log. zeusrun shows a question once its line has ended.
    """
    get_size, ask = os.get_terminal_size, builtins.input

    @functools.wraps(get_size)
    def get_terminal_size(descriptor: int = 1, /) -> os.terminal_size:
        try:
            return get_size(descriptor)
        except OSError:
            if descriptor not in (1, 2):
                raise
            size = get_size(0)
            return os.terminal_size((max(1, size.columns - PREFIX_COLUMNS), size.lines))

    @functools.wraps(ask)
    def ask_in_line(prompt: object = "", /) -> str:
        sys.stdout.write(f"{prompt}\n")
        sys.stdout.flush()
        return ask()

    os.get_terminal_size, builtins.input = get_terminal_size, ask_in_line
