"""Runs a command of the user in the place of this process: its terminal, streams and signals."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.launcher.processes.signals import ENDING, CaughtSignals

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager

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
