"""``status --watch``: what ``status`` shows, the GPUs and the next schedules, on a whole screen."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import select
import signal
import sys
import termios
import threading
import time
from typing import TYPE_CHECKING, Any

from rich.live import Live
from rich.text import Text

from zeusrun.clock import read_clock, timestamp
from zeusrun.commands import options
from zeusrun.commands.machine import open_gpus, read_gpu
from zeusrun.commands.now import read_now
from zeusrun.errors import DeviceError, UsageError, ZeusrunError
from zeusrun.launcher.power.control import held_by
from zeusrun.view.console import lasting_console
from zeusrun.view.schedule import next_table
from zeusrun.view.tables import status_table
from zeusrun.view.units import moment
from zeusrun.view.watch import Screen, gpus_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import RenderableType

    from zeusrun.gpu.nvml_gpu import NvmlGpu

_POLL_S = 0.1  # how often the size of the terminal is looked at
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_NOTHING = Text("nothing runs now; 'zeusrun history' shows what ran", style="dim")


def watch_status(job: str | None, every_s: float) -> None:
    """Show what goes on, of one job or of all, until the user presses q or Ctrl-C.

    Raises:
        UsageError: If there is no terminal, or the job is unknown.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise UsageError("--watch needs a terminal; without --watch, status prints what runs, once")
    received: list[int] = []

    def end(number: int, _frame: object) -> None:
        received.append(number)
        if len(received) == 1:
            raise KeyboardInterrupt  # at once: a read may take long

    console = lasting_console(sys.stdout)
    with contextlib.ExitStack() as opened:
        watched = _Watched(job, opened)
        opened.enter_context(_keys(end))
        live = Live(Screen(_title(), [], _none), console=console, screen=True, auto_refresh=False)
        with live, contextlib.suppress(KeyboardInterrupt):
            while not received:
                live.update(watched.look(), refresh=True)
                until_t, size = time.monotonic() + every_s, console.size
                while time.monotonic() < until_t:
                    time.sleep(min(_POLL_S, every_s))
                    if console.size != size:
                        size = console.size
                        live.refresh()
    if received[0] != signal.SIGINT:
        signal.raise_signal(received[0])


@contextlib.contextmanager
def _keys(end: Callable[[int, object], None]) -> Iterator[None]:
    """Call ``end`` for a signal that ends a process, and let q send one; keys are not shown."""
    terminal, over = sys.stdin.fileno(), threading.Event()
    before, changed = termios.tcgetattr(terminal), termios.tcgetattr(terminal)
    changed[3] &= ~(termios.ECHO | termios.ICANON)
    changed[6][termios.VSUSP] = b"\0"  # Ctrl-Z would leave the screen to the shell
    handlers = {number: signal.signal(number, end) for number in _ENDING}
    main = threading.main_thread().ident or 0

    def listen() -> None:
        while not over.is_set():
            if select.select([terminal], [], [], _POLL_S)[0]:
                pressed = b""
                with contextlib.suppress(OSError):  # the terminal is gone
                    pressed = os.read(terminal, 1024)
                if not pressed or b"q" in pressed:
                    signal.pthread_kill(main, signal.SIGINT)  # this also interrupts a read
                    return

    thread = threading.Thread(target=listen)
    try:
        termios.tcsetattr(terminal, termios.TCSADRAIN, changed)
        thread.start()
        yield
    finally:
        over.set()
        thread.join()
        with contextlib.suppress(termios.error):  # the terminal is gone
            termios.tcsetattr(terminal, termios.TCSAFLUSH, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _Watched:
    """Reads again and again. What cannot be read is shown as it was last."""

    def __init__(self, job: str | None, opened: contextlib.ExitStack) -> None:
        """Open the home; ``opened`` closes the GPUs."""
        self._job, self._stack = job, opened
        self._home, self._store = options.open_home(job)
        if job is not None:
            options.known_job(self._store, options.job_name(job))
        self._gpus: list[NvmlGpu | DeviceError] | None = None
        self._parts: Callable[[int], Sequence[RenderableType]] = _none
        self._reopens = True

    def look(self) -> Screen:
        """Read everything, and return it as a screen."""
        told: list[str] = []
        try:
            if self._reopens:  # so that a server which did not respond is asked again
                self._home, self._store = options.open_home(self._job, show=told.append)
            self._parts = self._read_parts(told)
        except (ZeusrunError, OSError) as error:
            told.append(str(error))
        self._reopens = bool(told)
        return Screen(_title(), told, self._parts)

    def _read_parts(self, told: list[str]) -> Callable[[int], Sequence[RenderableType]]:
        now = read_now(self._home, self._store, self._job)
        told += [*([] if now.problem is None else [str(now.problem)]), *now.faults]
        queued, gpus, clock = now.describe_queue(), self._read_gpus(told), read_clock()

        def parts(width: int) -> Sequence[RenderableType]:
            rows = now.found, now.waiting, now.deferred, queued
            status = status_table(*rows, host=platform.node(), width=width, brief=True)
            idle = not (any(rows) or now.problem)
            return [
                _NOTHING if idle else status,
                gpus_table(gpus, width),
                next_table(now.schedules, clock, width),
            ]

        return parts

    def _read_gpus(self, told: list[str]) -> list[dict[str, Any]]:
        try:
            if self._gpus is None:  # to open one takes up to seconds
                self._gpus = open_gpus(self._stack)
        except DeviceError as error:
            told.append(str(error))
            return []
        return [read_gpu(each, functools.partial(held_by, self._home)) for each in self._gpus]


def _title() -> str:
    now = moment(timestamp(), "%Y-%m-%d %H:%M:%S")
    return f"zeusrun status · {platform.node()} · {now} · q ends it"


def _none(_width: int) -> Sequence[RenderableType]:
    return []
