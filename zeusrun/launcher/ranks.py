"""The processes of the ranks: found by what they say of themselves, and checked before a signal."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.sidecar import STACK_SIGNAL

if TYPE_CHECKING:
    from zeusrun.sidecar import Started

_SIGNALS_CAUGHT = re.compile(r"^SigCgt:\s*([0-9a-f]+)$", re.MULTILINE)


class RankProcesses:
    """The living ranks of one run."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = str(run_dir)
        self._processes: dict[int, psutil.Process] = {}

    def take(self, event: Started) -> None:
        """Remember a rank that has said that it starts.

        What it says is checked: a process that does not carry the mark of this run is none of its
        ranks. A ``psutil.Process`` knows its start time, so that a reused pid is never signalled.
        """
        self._processes.pop(event.rank, None)
        with contextlib.suppress(psutil.Error, OSError, ValueError, OverflowError):
            process = psutil.Process(event.pid)
            if process.environ().get("ZEUSRUN_RUN_DIR") == self._run_dir:
                self._processes[event.rank] = process

    def all_live(self) -> bool:
        """Whether none of the known ranks has ended; then torchrun is about to act."""
        return all(_state(process) is not None for process in self._processes.values())

    def state(self, rank: int) -> str | None:
        """Return the state of a rank in the kernel's words; ``None`` if it is gone or unknown."""
        process = self._processes.get(rank)
        return None if process is None else _state(process)

    def ask_for_stack(self, rank: int, told_in: Path) -> bool:
        """Ask a rank for its stacks; return whether it can tell them.

        The signal would kill a process that does not catch it, and one that has closed the file
        would write into whatever has taken its number since. So both are looked up.

        Args:
            rank: Of those that ``take`` was told of.
            told_in: The file that it has open for its answer.
        """
        process = self._processes.get(rank)
        if process is None or STACK_SIGNAL is None:
            return False
        try:
            if not _catches(process.pid, STACK_SIGNAL) or not _has_open(process.pid, told_in):
                return False
            process.send_signal(STACK_SIGNAL)
        except (psutil.Error, OSError):  # it ends just now
            return False
        return True

    def kill(self) -> bool:
        """Kill every rank with all that it has started; return whether any rank is known.

        A data loader that is stuck would outlive its rank, and hold its memory.
        """
        doomed: list[psutil.Process] = []
        for process in self._processes.values():
            with contextlib.suppress(psutil.Error):
                doomed += [process, *process.children(recursive=True)]
        for process in doomed:
            with contextlib.suppress(psutil.Error):
                process.kill()
        return bool(doomed)


def _state(process: psutil.Process) -> str | None:
    try:
        state = str(process.status()) if process.is_running() else psutil.STATUS_ZOMBIE
    except psutil.Error:
        return None
    return None if state in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD} else state


def _catches(pid: int, number: int) -> bool:
    """Whether a process has a handler for a signal (proc_pid_status(5))."""
    found = _SIGNALS_CAUGHT.search(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _has_open(pid: int, path: Path) -> bool:
    wanted = path.lstat()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            if os.path.samestat(descriptor.stat(), wanted):
                return True
    return False
