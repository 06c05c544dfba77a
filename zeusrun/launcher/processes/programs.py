"""Starts programs other than torchrun: in the background, for a moment, or in the foreground.

Every function raises ``OSError`` if the program cannot be started. No shell is involved.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.launcher.processes.signals import ENDING, CaughtSignals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

_STDERR_BYTES = 2000
_PASSED_ON = (*ENDING, signal.SIGQUIT, signal.SIGUSR2)  # SIGUSR2: Slurm's --signal
_FROM_TERMINAL = 0x80  # SI_KERNEL of sigaction(2): the terminal signals a whole process group
_RECHECK_S = 0.5  # should a thread of a library have taken SIGCHLD

Detached = subprocess.Popen[bytes]
"""A process that outlives this one."""


def start_detached(
    argv: Sequence[str], environment: Mapping[str, str], log: int, inherited: Sequence[int] = ()
) -> Detached:
    """Start a command that outlives this process; its output goes to the descriptor ``log``.

    It also gets the descriptors ``inherited``.
    """
    return subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
        argv,
        env=dict(environment),
        cwd="/",
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
        pass_fds=inherited,
    )


def run_briefly(
    argv: Sequence[str],
    content: bytes = b"",
    environment: Mapping[str, str] | None = None,
    timeout_s: float | None = None,
) -> tuple[int, bytes, str]:
    """Run a command with ``content`` as input; return its exit code, output and error output.

    Raises ``TimeoutError`` if it took too long; it has been killed.
    """
    try:
        done = subprocess.run(  # noqa: S603 - an argument vector, never a shell
            argv,
            input=content,
            env=environment,
            capture_output=True,
            check=False,
            timeout=timeout_s,
            start_new_session=True,  # Ctrl-C is for zeusrun
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"it took longer than {timeout_s:g} s") from error
    return done.returncode, done.stdout, done.stderr.decode(errors="replace").strip()


def run_bounded(
    argv: Sequence[str], content: bytes, environment: Mapping[str, str], timeout_s: float
) -> tuple[int, str]:
    """Run a command with ``content`` as input; return its exit code and end of its error output.

    Does not wait for processes that the command leaves in the background. Raises ``TimeoutError``
    if it took too long; it has been killed, with its process group.
    """
    with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as stderr:
        stdin.write(content)
        stdin.seek(0)
        process = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
            argv,
            env=dict(environment),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired as error:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise TimeoutError(f"it took longer than {timeout_s:g} s") from error
        stderr.seek(max(0, stderr.seek(0, os.SEEK_END) - _STDERR_BYTES))
        return code, stderr.read(_STDERR_BYTES).decode(errors="replace").strip()


@dataclass(frozen=True)
class ForegroundExit:
    """How a command ended: its code (128 + n for signal n), and monotonic seconds."""

    code: int
    started_t: float
    ended_t: float


def run_foreground(
    argv: Sequence[str], environment: Mapping[str, str], meanwhile: AbstractContextManager[object]
) -> ForegroundExit:
    """Run a command in the place of this process: its terminal, streams and signals.

    Signals of ``_PASSED_ON`` go to the command and do not end this process. A signal that the
    command has got from the terminal itself is not repeated. ``meanwhile`` is entered just before
    the command starts and left just after it has ended; its threads get none of these signals.
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
                got = signal.sigtimedwait(waited_for, _RECHECK_S)
                if got and got.si_signo in passed_on and not _has_got(process.pid, got):
                    with contextlib.suppress(PermissionError):  # another user's, as sudo is
                        process.send_signal(got.si_signo)
            ended_t = time.monotonic()
    finally:
        while signal.sigtimedwait(waited_for, 0):
            pass  # too late for the command; the caller still has to report
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, child_handler)
    code = process.returncode
    return ForegroundExit(code if code >= 0 else 128 - code, started_t, ended_t)


def _has_got(pid: int, got: signal.struct_siginfo) -> bool:
    """Whether the terminal has sent a signal to the command, too."""
    in_our_group = os.getpgid(pid) == os.getpgrp()  # not under timeout or setsid
    # A hang-up goes to the leader of the session only, which is this process under ssh -t.
    only_us = got.si_signo == signal.SIGHUP and os.getsid(0) == os.getpid()
    return got.si_code == _FROM_TERMINAL and in_our_group and not only_us


def _start_unblocked(
    argv: Sequence[str], environment: Mapping[str, str], mask: Iterable[int]
) -> subprocess.Popen[bytes]:
    """Start a command under a signal mask; signals that come meanwhile are pending afterwards."""
    with CaughtSignals(_PASSED_ON) as signals:
        blocked = signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        try:
            # The user may have opened descriptors for the command, as in <(...) of a shell.
            return subprocess.Popen(argv, env=environment, close_fds=False)  # noqa: S603 - no shell
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
            for number in signals.received:
                signal.raise_signal(number)
