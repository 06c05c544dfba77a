"""Finds and ends the processes that a run has left."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from collections.abc import Iterable

_WATCHDOG = "/zeusrun/launcher/processes/watchdog.py"
_SWEEP_GRACE_S = 3.0
_NATURAL_EXIT_S = 0.5


def processes_of_run(run_dir: str) -> set[psutil.Process]:
    """Return the live processes whose environment names the run directory.

    For a run whose watchdog was killed: its orphans may have any parent. A watchdog is left out: if
    its launcher has just died, it is killing the run, also processes with another environment.
    """
    found = set()
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid == os.getpid() or process.environ().get("ZEUSRUN_RUN_DIR") != run_dir:
                continue
            if not any(word.endswith(_WATCHDOG) for word in process.cmdline()[:4]):
                found.add(process)
    return found


def end_processes(processes: Iterable[psutil.Process], *, at_once: bool = False) -> tuple[str, ...]:
    """End processes: wait for their own end, then SIGTERM, then SIGKILL; or SIGKILL at once.

    Return ``name (pid)`` of each that did not end by itself. psutil compares start times, so a
    reused pid is never signalled.
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
