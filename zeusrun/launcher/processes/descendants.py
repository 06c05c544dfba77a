"""Finds and ends the processes of a run, whoever has adopted them."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

_FAMILY_PERIOD_S = 1.0
_SWEEP_GRACE_S = 3.0
_NATURAL_EXIT_S = 0.5


class Family:
    """The processes of a run: descendants as they are seen, and whoever carries its environment."""

    def __init__(self, root_pid: int, run_dir: str) -> None:
        self._root_pid = root_pid
        self._run_dir = run_dir
        self._seen: set[psutil.Process] = set()
        self._next_look_t = 0.0

    def look(self) -> None:
        """Record the descendants of torchrun, about once a second."""
        now_t = time.monotonic()
        if now_t >= self._next_look_t:
            self._next_look_t = now_t + _FAMILY_PERIOD_S
            with contextlib.suppress(psutil.Error):
                self._seen.update(psutil.Process(self._root_pid).children(recursive=True))

    def sweep(self, *, at_once: bool) -> tuple[str, ...]:
        """End what has outlived torchrun; return its names."""
        return end_processes(self._seen | processes_of_run(self._run_dir), at_once=at_once)


def processes_of_run(run_dir: str) -> set[psutil.Process]:
    """Return the live processes whose environment names the run directory, whoever adopted them."""
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get("ZEUSRUN_RUN_DIR") == run_dir:
                found.add(process)
    return found


def end_processes(processes: Iterable[psutil.Process], *, at_once: bool = False) -> tuple[str, ...]:
    """End processes one at a time: time to go by themselves, SIGTERM, SIGKILL; or SIGKILL at once.

    A ``psutil.Process`` knows its start time, so a reused pid is never signalled.

    Returns:
        ``name (pid)`` of each that did not go by itself.
    """
    remaining = [process for process in processes if _alive(process)]
    if not remaining:
        return ()
    if not at_once:
        _, remaining = psutil.wait_procs(remaining, timeout=_NATURAL_EXIT_S)
        remaining = [process for process in remaining if _alive(process)]
    names = tuple(sorted(_name(process) for process in remaining))
    if not at_once:
        for process in remaining:
            with contextlib.suppress(psutil.Error):
                process.terminate()
        _, remaining = psutil.wait_procs(remaining, timeout=_SWEEP_GRACE_S)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(remaining, timeout=_SWEEP_GRACE_S)
    return names


def _alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _name(process: psutil.Process) -> str:
    try:
        return f"{process.name()} ({process.pid})"
    except psutil.Error:
        return f"process {process.pid}"
