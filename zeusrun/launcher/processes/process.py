"""The only Popen: torchrun, its watchdog, the guard of power limits, other commands.

Torchrun is started, watched, stopped gently, and what it leaves is swept.

Facts that shape it (torch 2.13): every rank has a session of its own, so a signal to torchrun's
process group does not reach it; torchrun passes SIGTERM on to the whole process group of each rank,
data loader workers included, and kills after its own grace; killed itself, it leaves its ranks
training. A loader's worker that is killed ends its rank in mid-epoch, so the ranks themselves are
asked first.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

from zeusrun.errors import DeviceError, LaunchError, advice_on
from zeusrun.gpu.power_limits.guard import DISMISSED
from zeusrun.launcher.processes.descendants import Family
from zeusrun.launcher.processes.signals import ENDING, CaughtSignals
from zeusrun.launcher.rundir.layout import open_torchrun_log, prepare_to_stop, tell_to_stop
from zeusrun.launcher.supervision.stop_rules import StopLevel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

    from typing_extensions import Self

    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.layout import RunPaths

TICK_S = 0.1
_MARGIN_S = 5.0  # torchrun needs about 1 s after its grace to notice and go


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


def run(
    command: Command,
    paths: RunPaths,
    *,
    grace_period_s: float,
    on_tick: Callable[[], StopLevel],
    end_ranks: Callable[[], bool] = lambda: False,
    on_end: Callable[[], None] = lambda: None,
) -> ProcessExit:
    """Run torchrun to its end, whatever it takes.

    Args:
        command: What to start; its output goes to ``paths.torchrun_log``.
        paths: Files of the run; ``stop`` is created at ``StopLevel.TELL`` and above.
        grace_period_s: How long the ranks may take to finish after SIGTERM.
        on_tick: Called about ten times a second; says how firmly to stop.
        end_ranks: Called after ``on_tick`` at ``StopLevel.TERMINATE``; returns whether the ranks
            have been asked to end, so that torchrun is left alone. Once it returns False, torchrun
            gets a SIGTERM, and it is not called any more.
        on_end: Called as soon as torchrun is gone or ``on_tick`` has failed, before what is left is
            ended.

    Raises:
        LaunchError: If torchrun could not be started.
        Exception: Whatever ``on_tick`` or ``on_end`` raises, after the run has been ended.
    """
    with Watchdog() as watchdog:
        marked = replace(command, env={**command.env, **watchdog.mark})
        process = _start(marked, paths)
        family = Family(process.pid, str(paths.run_dir))
        level, ended_at_t = StopLevel.NONE, float("inf")
        torchrun_told = False
        try:
            prepare_to_stop(paths)
            while process.poll() is None:
                wanted = on_tick()
                if wanted > level:
                    level = wanted
                    with contextlib.suppress(OSError):  # on a broken disk the signal must do
                        tell_to_stop(paths, ending=level >= StopLevel.TERMINATE)
                    if level is StopLevel.TERMINATE:
                        ended_at_t = time.monotonic() + grace_period_s
                if level is StopLevel.TERMINATE and not (torchrun_told or end_ranks()):
                    process.send_signal(signal.SIGTERM)
                    torchrun_told = True
                margin_s = _MARGIN_S if torchrun_told else 0.0
                if level is StopLevel.KILL or time.monotonic() > ended_at_t + margin_s:
                    process.kill()  # the kernel kills its ranks with it
                family.look()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(TICK_S)
        finally:
            ended_t = time.monotonic()
            try:
                on_end()
            finally:
                if process.poll() is None:
                    _end(process, grace_period_s)
                    ended_t = time.monotonic()
                outlived = family.sweep(at_once=level is StopLevel.KILL)
                with contextlib.suppress(OSError):
                    paths.stop_ending.unlink()
    return ProcessExit(process.returncode, ended_t, outlived)


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


class GuardProcess:
    """The process that restores power limits when this one dies; see ``gpu.guard``."""

    _READY_S = 10.0
    _GONE_S = 5.0

    def __init__(
        self,
        directory: Path,
        environment: Mapping[str, str],
        found_w: Mapping[str, float],
        descriptors: Sequence[int],
    ) -> None:
        """Start it, and wait until it watches.

        Args:
            directory: Of the records.
            environment: Its environment.
            found_w: The limits to go back to, in watts, by the GPU's UUID.
            descriptors: File descriptors that it inherits and keeps open.

        Raises:
            DeviceError: If it does not come up.
        """
        limits = [f"{uuid}={watts!r}" for uuid, watts in found_w.items()]
        try:
            self._process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                [sys.executable, "-c", _GUARD_MAIN, str(directory), *limits],
                env=dict(environment),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                pass_fds=tuple(descriptors),
                start_new_session=True,
            )
        except OSError as error:
            raise DeviceError(f"no guard could be started: {error}") from error
        if not self._is_ready():
            self._process.kill()
            complaint = b""
            with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang in the driver
                _, complaint = self._process.communicate(timeout=self._GONE_S)
            last = complaint.decode(errors="replace").strip().splitlines()[-1:]
            raise DeviceError(f"no guard could be started: {''.join(last) or 'it does not answer'}")

    def is_alive(self) -> bool:
        """See ``gpu.power_limit.Guard``."""
        return self._process.poll() is None

    def tell(self, set_w: Mapping[str, Sequence[float]]) -> None:
        """See ``gpu.power_limit.Guard``."""
        self._write(json.dumps(set_w).encode() + b"\n")

    def dismiss(self) -> None:
        """See ``gpu.power_limit.Guard``."""
        self._write(DISMISSED)
        cast("IO[bytes]", self._process.stdin).close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self._GONE_S)  # it goes on trying where a limit was not restored
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()

    def _write(self, line: bytes) -> None:
        """Write a line at once; a guard that has died is replaced, and one that hangs not fed."""
        told = cast("IO[bytes]", self._process.stdin).fileno()
        os.set_blocking(told, False)
        with contextlib.suppress(OSError):
            os.write(told, line)

    def _is_ready(self) -> bool:
        told = cast("IO[bytes]", self._process.stdout).fileno()
        with selectors.DefaultSelector() as selector:
            selector.register(told, selectors.EVENT_READ)
            answered = selector.select(self._READY_S)
        return bool(answered) and bool(os.read(told, 64))


# "-m" would put the working directory before the standard library; see torchrun.py.
_GUARD_MAIN = (
    "import sys; sys.path[:] = filter(None, sys.path); "
    "from zeusrun.gpu.power_limits.guard import main; main()"
)


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


def _end(process: subprocess.Popen[bytes], grace_period_s: float) -> None:
    """Leave no torchrun behind when the loop above was left by an exception."""
    process.terminate()
    try:
        process.wait(grace_period_s + _MARGIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_PASSED_ON = (*ENDING, signal.SIGQUIT, signal.SIGUSR2)  # Slurm's --signal
_FROM_TERMINAL = 0x80  # SI_KERNEL of sigaction(2): the terminal tells a whole process group
_RECHECK_S = 0.5  # should a thread of a library have taken SIGCHLD


@dataclass(frozen=True)
class ForegroundExit:
    """How a command of the user ended.

    Attributes:
        code: Its exit code, or 128 + n if signal n ended it, as a shell has it.
        started_t: Monotonic second just before it started.
        ended_t: Monotonic second just after it ended.
    """

    code: int
    started_t: float
    ended_t: float


def run_foreground(
    argv: Sequence[str], environment: Mapping[str, str], meanwhile: AbstractContextManager[object]
) -> ForegroundExit:
    """Run a command in the place of this process: its terminal, its streams, its signals.

    The signals in ``_PASSED_ON`` go to the command and do not end this process. Where the terminal
    has told the command already, it is not told twice.

    Args:
        argv: The command and its arguments; no shell is involved.
        environment: The command's.
        meanwhile: Entered just before the command starts and left just after it has ended.
            Threads that it starts get none of these signals.

    Raises:
        OSError: If the command could not be started, as ``subprocess.Popen`` raises it.
    """
    passed_on = [n for n in _PASSED_ON if signal.getsignal(n) is not signal.SIG_IGN]
    waited_for = {*passed_on, signal.SIGCHLD}
    child_handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # ignored, it would hide the exit
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    try:
        with meanwhile:
            started_t = time.monotonic()
            process = _start_unblocked(argv, environment, before)
            while process.poll() is None:
                told = signal.sigtimedwait(waited_for, _RECHECK_S)
                if told and told.si_signo in passed_on and not _knows(process.pid, told):
                    with contextlib.suppress(PermissionError):  # another user's, as sudo is
                        process.send_signal(told.si_signo)
            ended_t = time.monotonic()
    finally:
        while signal.sigtimedwait(waited_for, 0):
            pass  # came too late for the command, and what was measured is still to be told
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, child_handler)
    code = process.returncode
    return ForegroundExit(code if code >= 0 else 128 - code, started_t, ended_t)


def _knows(pid: int, told: signal.struct_siginfo) -> bool:
    """Whether the terminal has told a command, too; that it hung up it tells a session's leader."""
    in_our_group = os.getpgid(pid) == os.getpgrp()  # not under timeout or setsid
    only_us = told.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()  # as under ssh -t
    return told.si_code == _FROM_TERMINAL and in_our_group and not only_us


def _start_unblocked(
    argv: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> subprocess.Popen[bytes]:
    """Start a command under a signal mask; signals that come meanwhile are pending thereafter."""
    with CaughtSignals(_PASSED_ON) as signals:
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            # Descriptors that the user opened for it, as in <(...) of a shell, are its own, too.
            return subprocess.Popen(argv, env=environment, close_fds=False)  # noqa: S603 - no shell
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number in signals.received:
                signal.raise_signal(number)
