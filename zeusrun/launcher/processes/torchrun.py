"""A running torchrun: started, asked to end, and nothing of it left behind.

Facts (torch 2.13): every rank has a session of its own, so a signal to torchrun's process group
does not reach it. Torchrun passes SIGTERM on to the process group of each rank, data loader workers
included, and kills after its own grace. A loader worker that is killed ends its rank in mid-epoch,
so zeusrun signals the ranks themselves first.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import psutil

from zeusrun.errors import SHORTAGES, LaunchError, advice_on
from zeusrun.files.private import open_for_writing, replace_file, write_file
from zeusrun.launcher.processes.descendants import (
    end_children,
    end_group,
    end_run,
    make_group,
    names_of,
)
from zeusrun.sidecar.orders import ENDING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import BinaryIO

    from typing_extensions import Self

    from zeusrun.launcher.processes.command import Command
    from zeusrun.launcher.rundir.layout import RunPaths

TICK_S = 0.1
_LET_LIVE = 0  # instead of a signal's number
_LONGEST_POLL_S = 1e6  # poll(2) takes milliseconds as a C integer
_MARGIN_S = 5.0  # torchrun needs about 1 s after its grace to notice and go


class StopLevel(IntEnum):
    """How firmly a run is ended; it never falls."""

    NONE = 0
    ASK = 1  # the stop file: the script ends at its next epoch
    TERMINATE = 2  # SIGTERM to the ranks; to torchrun if that is not enough
    KILL = 3  # at once


@dataclass(frozen=True)
class ProcessExit:
    """How torchrun ended."""

    code: int  # 1 for any failure, so never a cause
    ended_t: float  # monotonic second
    outlived: tuple[str, ...]  # processes that had to be ended afterwards, as ``name (pid)``
    left: tuple[str, ...] = ()  # those that could not be ended


class TorchrunProcess:
    """A running torchrun. A context manager: on leaving it, nothing of the run is left.

    If torchrun has ended by itself, a daemon with an empty ``ZEUSRUN_RUN_DIR`` lives on.

    Its output goes to ``paths.torchrun_log``. After SIGTERM, the ranks may take ``grace_period_s``
    to finish. ``exit`` exists only after the context manager has been left.
    """

    exit: ProcessExit

    def __init__(self, command: Command, paths: RunPaths, grace_period_s: float) -> None:
        self._command, self._paths, self._grace_s = command, paths, grace_period_s
        self._level = StopLevel.NONE
        self._kill_at_t = math.inf
        self._sigterm_sent = False
        self._code = -int(signal.SIGKILL)  # if the watchdog is killed, torchrun is
        self.ended_t: float | None = None  # monotonic second; ``None`` while it runs

    def __enter__(self) -> Self:
        """Start the watchdog, which starts torchrun; raises ``LaunchError``."""
        command = self._command
        argv = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchdog.py"))]
        argv.append(str(make_group(self._paths) or ""))
        try:
            with open_torchrun_log(self._paths) as log, _terminal(command) as terminal:
                argv.append("".join(map(str, terminal)))
                self._watchdog = subprocess.Popen(  # noqa: S603 - an argument vector, never a shell
                    [*argv, *command.argv],
                    env=dict(command.env),
                    cwd=command.cwd,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    bufsize=0,
                    pass_fds=terminal,
                    start_new_session=True,
                )
        except OSError as error:
            end_group(self._paths)
            advice = advice_on(error, "check launch and workdir in the job file")
            what = error.filename or sys.executable
            text = f"torchrun could not be started: {what}: {error.strerror}; {advice}"
            raise LaunchError(text) from error
        prepare_to_stop(self._paths)
        return self

    def __exit__(self, *_error: object) -> None:
        """End torchrun if it still runs, then every process of the run that outlived it."""
        outlived: tuple[str, ...] = ()
        kept = False
        try:
            by_itself = self.ended_t is not None and self._code >= 0
            if self.ended_t is None:
                self._send(signal.SIGTERM)
                self.wait(self._grace_s + _MARGIN_S)
                self._send(signal.SIGKILL)
                self.wait(_MARGIN_S)
            ended_t = time.monotonic() if self.ended_t is None else self.ended_t
            with contextlib.suppress(psutil.Error):  # the watchdog was killed
                outlived, kept = end_children(
                    psutil.Process(self._watchdog.pid),
                    at_once=self._level is StopLevel.KILL,
                    keep=by_itself and self._level < StopLevel.TERMINATE,
                )
            with contextlib.suppress(OSError):
                self._paths.stop_ending.unlink()
        finally:
            more, left = self._end_watchdog(let_live=kept)
        self.exit = ProcessExit(self._code, ended_t, outlived + more, left)

    def _end_watchdog(self, *, let_live: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Let the watchdog kill the rest; return ``Sweep`` as a tuple."""
        left: tuple[str, ...] = ()
        if let_live:
            self._send(_LET_LIVE)
        try:
            self._watchdog.communicate(timeout=_MARGIN_S)
        except subprocess.TimeoutExpired:  # it was stopped, or a process cannot be killed
            with contextlib.suppress(psutil.Error):
                left = names_of(psutil.Process(self._watchdog.pid).children(recursive=True))
            self._watchdog.kill()
            self._watchdog.communicate()
        ended: tuple[str, ...] = ()
        if self._watchdog.returncode != 0:  # it was killed: its orphans have any parent
            done = end_run(str(self._paths.run_dir), at_once=self._level is StopLevel.KILL)
            ended, left = done.names, left or done.left
        end_group(self._paths, keep=let_live)
        return ended, left

    def is_running(self) -> bool:
        """Whether torchrun still ran when ``wait`` returned last."""
        return self.ended_t is None

    @property
    def failed(self) -> bool:
        """Whether torchrun has ended, and not with 0."""
        return self.ended_t is not None and self._code != 0

    def stop(self, level: StopLevel, ask_ranks: Callable[[], bool]) -> None:
        """End the run as firmly as ``level`` says; called at every tick. The level never falls.

        At ``TERMINATE``, ``ask_ranks`` is called until it returns False: the ranks do not end by
        themselves. Then torchrun gets a SIGTERM.
        """
        if level > self._level:
            self._level = level
            with contextlib.suppress(OSError):  # on a broken disk the signal must do
                write_stop(self._paths, ending=level >= StopLevel.TERMINATE)
            if level is StopLevel.TERMINATE:
                self._kill_at_t = time.monotonic() + self._grace_s
        if self._level is StopLevel.TERMINATE and not (self._sigterm_sent or ask_ranks()):
            self._send(signal.SIGTERM)
            self._sigterm_sent = True
        margin_s = _MARGIN_S if self._sigterm_sent else 0.0
        if self._level is StopLevel.KILL or time.monotonic() > self._kill_at_t + margin_s:
            self._send(signal.SIGKILL)  # the kernel kills its ranks with it

    def wait(self, timeout_s: float = TICK_S) -> None:
        """Wait until torchrun ends, a tick at most."""
        output = cast("IO[bytes]", self._watchdog.stdout)
        if self.ended_t is None and is_readable(output.fileno(), timeout_s):
            self.ended_t = time.monotonic()
            self._code = int(output.read(8) or self._code)

    def _send(self, number: int) -> None:
        with contextlib.suppress(OSError):  # the watchdog was killed
            cast("IO[bytes]", self._watchdog.stdin).write(bytes([number]))


def open_torchrun_log(paths: RunPaths) -> BinaryIO:
    """Open torchrun's log to append to, before torchrun starts; raises ``OSError``."""
    for folder in (paths.logs, paths.clocks):
        folder.mkdir(mode=0o700, exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
    return open(open_for_writing(paths.torchrun_log, flags), "ab")  # noqa: PTH123 - a descriptor


def prepare_to_stop(paths: RunPaths) -> None:
    """Write the stop file under another name, so that a full disk cannot prevent it later."""
    try:
        write_file(paths.stop_ending, ENDING)
    except OSError:
        with contextlib.suppress(OSError):
            paths.stop_ending.unlink()


def write_stop(paths: RunPaths, *, ending: bool) -> None:
    """Write the file that asks the script to stop; raises ``OSError``.

    ``ending``: the ranks are also ended after a grace period. A rank whose script fails then exits
    with 0 (see the worker): otherwise torchrun would end the others, which may still save.
    """
    if ending:
        with contextlib.suppress(OSError):
            paths.stop_ending.replace(paths.stop)
            return
    replace_file(paths.stop, ENDING if ending else b"", durable=False)


@contextlib.contextmanager
def _terminal(command: Command) -> Iterator[tuple[int, ...]]:
    """Yield a descriptor of this process's terminal for a single rank; nothing without one.

    The rank has a session of its own, so the kernel would not stop it if it read in the background:
    it would take what is typed for the shell. There it gets a descriptor that it cannot read.
    """
    found: tuple[int, ...] = ()
    with contextlib.suppress(OSError):  # standard input is no terminal, or that of others
        if command.ranks == 1:
            in_front = os.tcgetpgrp(0) == os.getpgrp()
            size_only = os.O_WRONLY | os.O_NOCTTY
            found = (os.dup(0) if in_front else os.open("/proc/self/fd/0", size_only),)
    try:
        yield found
    finally:
        for descriptor in found:
            os.close(descriptor)


def is_readable(descriptor: int, timeout_s: float) -> bool:
    """Wait until a descriptor can be read or its other end is closed; return whether it is so.

    ``select`` would refuse descriptors from 1024 on, which a user's shell may have open.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(min(max(0.0, timeout_s), _LONGEST_POLL_S) * 1000))


def check_descriptors(world_size: int) -> None:
    """Raise ``LaunchError`` if torchrun and this process may not open as many files as they need.

    With 12 descriptors torchrun (torch 2.13) hangs without any output; with 24 it fails; 40 are
    enough for two ranks.
    """
    needed = 32 + 4 * world_size
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < needed:
        raise LaunchError(
            f"only {allowed} files may be open at once, and {world_size} "
            f"rank{'' if world_size == 1 else 's'} need {needed}; {SHORTAGES[errno.EMFILE]}"
        )
