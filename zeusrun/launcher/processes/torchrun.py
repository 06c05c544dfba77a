"""A running torchrun: started, asked to end, and nothing of it left behind.

Facts that shape it (torch 2.13): every rank has a session of its own, so a signal to torchrun's
process group does not reach it. Torchrun passes SIGTERM on to the whole process group of each rank,
data loader workers included, and kills after its own grace; if torchrun is killed, its ranks train
on. A loader worker that is killed ends its rank in mid-epoch, so zeusrun asks the ranks themselves
first.
"""

from __future__ import annotations

import contextlib
import math
import secrets
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from zeusrun.errors import LaunchError, advice_on
from zeusrun.launcher.processes.descendants import Family
from zeusrun.launcher.rundir.layout import open_torchrun_log, prepare_to_stop, write_stop

if TYPE_CHECKING:
    from collections.abc import Callable

    from typing_extensions import Self

    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.layout import RunPaths

TICK_S = 0.1
_MARGIN_S = 5.0  # torchrun needs about 1 s after its grace to notice and go


class StopLevel(IntEnum):
    """How firmly a run is ended; it only ever rises."""

    NONE = 0
    TELL = 1  # the stop file: the script ends at its next epoch
    TERMINATE = 2  # SIGTERM to the ranks; to torchrun only if they cannot be asked
    KILL = 3  # at once


@dataclass(frozen=True)
class ProcessExit:
    """How torchrun ended.

    Attributes:
        code: Its exit code: 1 for any failure, so never a cause.
        ended_t: Monotonic second.
        outlived: Processes of the run that were still there and had to be ended, as ``name (pid)``.
    """

    code: int
    ended_t: float
    outlived: tuple[str, ...]


class TorchrunProcess:
    """A running torchrun. A context manager: nothing of the run is left when it is over.

    Attributes:
        ended_t: Monotonic second at which torchrun was seen to have ended; ``None`` before.
        exit: How it ended; only after the context manager has been left.
    """

    def __init__(self, command: Command, paths: RunPaths, grace_period_s: float) -> None:
        """Prepare; the process starts on entering.

        Args:
            command: What to start; its output goes to ``paths.torchrun_log``.
            paths: Files of the run; ``stop`` is created at ``StopLevel.TELL`` and above.
            grace_period_s: How long the ranks may take to finish after SIGTERM.
        """
        self._command, self._paths, self._grace_s = command, paths, grace_period_s
        self._level = StopLevel.NONE
        self._kill_at_t = math.inf
        self._torchrun_told = False
        self.ended_t: float | None = None

    def __enter__(self) -> Self:
        """Start the watchdog, then torchrun.

        Raises:
            LaunchError: If one of them cannot be started.
        """
        with contextlib.ExitStack() as entered:
            mark = entered.enter_context(Watchdog()).mark
            command = replace(self._command, env={**self._command.env, **mark})
            self._process = _start(command, self._paths)
            self._entered = entered.pop_all()
        self._family = Family(self._process.pid, str(self._paths.run_dir))
        prepare_to_stop(self._paths)
        return self

    def __exit__(self, *_error: object) -> None:
        """End torchrun if it still runs, then every process of the run that outlived it."""
        with self._entered:  # the watchdog is dismissed last
            if self.is_running():
                self._end()
            ended_t = time.monotonic() if self.ended_t is None else self.ended_t
            outlived = self._family.sweep(at_once=self._level is StopLevel.KILL)
            self.exit = ProcessExit(self._process.returncode, ended_t, outlived)
            with contextlib.suppress(OSError):
                self._paths.stop_ending.unlink()

    def is_running(self) -> bool:
        """Whether torchrun still runs."""
        if self.ended_t is None and self._process.poll() is not None:
            self.ended_t = time.monotonic()
        return self.ended_t is None

    def stop(self, level: StopLevel, ask_ranks: Callable[[], bool]) -> None:
        """End the run as firmly as asked; called once a tick, also while nothing is to end.

        Args:
            level: How firmly; it never falls again.
            ask_ranks: Called at ``StopLevel.TERMINATE``; returns whether the ranks have been asked
                to end, so that torchrun is left alone. Once it returns False, torchrun gets a
                SIGTERM, and it is not called any more.
        """
        if level > self._level:
            self._level = level
            with contextlib.suppress(OSError):  # on a broken disk the signal must do
                write_stop(self._paths, ending=level >= StopLevel.TERMINATE)
            if level is StopLevel.TERMINATE:
                self._kill_at_t = time.monotonic() + self._grace_s
        if self._level is StopLevel.TERMINATE and not (self._torchrun_told or ask_ranks()):
            self._process.send_signal(signal.SIGTERM)
            self._torchrun_told = True
        margin_s = _MARGIN_S if self._torchrun_told else 0.0
        if self._level is StopLevel.KILL or time.monotonic() > self._kill_at_t + margin_s:
            self._process.kill()  # the kernel kills its ranks with it

    def wait(self) -> None:
        """Wait for a tick, or less if torchrun ends."""
        self._family.look()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(TICK_S)

    def _end(self) -> None:
        """End torchrun after an exception has left the loop of the caller."""
        self._process.terminate()
        try:
            self._process.wait(self._grace_s + _MARGIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Watchdog:
    """The process that ends a run whose launcher dies; see ``watchdog.py``. A context manager.

    Raises:
        LaunchError: On entering, if it cannot be started.
    """

    def __init__(self) -> None:
        self.mark = {"ZEUSRUN_LAUNCH": secrets.token_hex(8)}  # for the environment of what it ends

    def __enter__(self) -> Self:
        """Start it; nothing waits for it to be up: the pipe is there already."""
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                [*argv, *(f"{name}={value}" for name, value in self.mark.items())],
                env={},  # without the mark that it looks for
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            advice = advice_on(error, "check the interpreter that runs zeusrun")
            raise LaunchError(f"no process can be started: {error}; {advice}") from error
        return self

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def __exit__(self, *_error: object) -> None:
        """Dismiss it: what the launcher itself has not ended is not to be ended."""
        with contextlib.suppress(OSError):  # it was killed
            cast("IO[bytes]", self._process.stdin).write(b"\n")
        with contextlib.suppress(OSError):
            cast("IO[bytes]", self._process.stdin).close()
        try:
            self._process.wait(_MARGIN_S)
        except subprocess.TimeoutExpired:  # it was stopped
            self._process.kill()
            self._process.wait()


def _start(command: Command, paths: RunPaths) -> subprocess.Popen[bytes]:
    try:
        with open_torchrun_log(paths) as log:
            return subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                command.argv,
                env=dict(command.env),
                cwd=command.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
    except OSError as error:
        advice = advice_on(error, "check launch and workdir in the job file")
        raise LaunchError(
            f"torchrun could not be started: {error.filename or command.argv[0]}: "
            f"{error.strerror}; {advice}"
        ) from error
