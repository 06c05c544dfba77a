"""Which of the processes that compute on a GPU do not belong to the job.

NVML lists process ids. In a container they may be of the host's pid namespace, where a number means
another process than here. Then the answer is often unknown: ``None``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The kernel cuts names to 15 letters. The server of CUDA's Multi-Process Service computes for its
# clients, which may or may not be ours.
_MPS = "nvidia-cuda-mps"
MEASURE_VARIABLE = "ZEUSRUN_MEASURE"
"""Environment variable that marks the processes of one ``zeusrun measure``."""

# PROC_PID_INIT_INO of the kernel: the pid namespace in which the machine started.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class ForeignProcesses:
    """Finds the processes that are not the job's. Make one for each run.

    Attributes:
        found: The foreign processes at the last check, as NVML numbers them.
    """

    def __init__(
        self,
        owns: Callable[[int], bool] | None = None,
        *,
        measure: str | None = None,
        first_namespace: bool | None = None,
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            owns: Whether a process of this namespace is the job's. By default it is if this
                process is among its ancestors (orphans of a run become children of the watchdog),
                or if it or an ancestor has ``measure`` in its environment.
            measure: ``ZEUSRUN_MEASURE`` of a command that is measured: its orphans still have it.
            first_namespace: Whether this process numbers processes as NVML does; ``None``: find
                out.
        """
        self.found: frozenset[int] = frozenset()
        self._owns = owns if owns is not None else _Family(measure).has
        self._comparable = in_first_pid_namespace() if first_namespace is None else first_namespace
        self._before: frozenset[int] | None = None
        self._verdicts: dict[tuple[int, int], bool | None] = {}

    def check(self, listed: frozenset[int] | None) -> bool | None:
        """Check who computes on the job's GPUs now. Call it once before the launch.

        Args:
            listed: What ``Device.compute_processes`` returned, for one device or for all together;
                ``None`` if unknown.

        Returns:
            Whether any of them is foreign; ``None`` if unknown.
        """
        if self._before is None:
            self._before = listed or frozenset()
        if listed is None:
            self.found = frozenset()
            return None
        self._before &= listed  # a number may be reused by another process
        verdicts = {pid: self._judge(pid) for pid in listed}
        if any(verdicts[pid] is False for pid in listed - self._before):
            self._comparable = True  # NVML lists one of ours by its number here
        if not self._comparable:
            # What was there before the launch is not ours, in any namespace. The rest is unknown.
            verdicts = {pid: True if pid in self._before else None for pid in listed}
        self._verdicts = {key: self._verdicts[key] for key in self._verdicts if key[0] in listed}
        self.found = frozenset(pid for pid, foreign in verdicts.items() if foreign)
        if self.found:
            return True
        known = self._comparable and None not in verdicts.values()
        return False if known else None

    def _judge(self, pid: int) -> bool | None:
        """Return whether a process of this namespace is foreign; ``None`` if that is unknown."""
        process = _read_process(pid)
        if process is None:
            # It ended, or is hidden (mount option hidepid): a hidden one is another user's.
            return True if _is_forbidden(pid) else None
        key = (pid, process.started_ticks)
        if key not in self._verdicts:
            server = process.name.startswith(_MPS)
            self._verdicts[key] = None if server else not self._owns(pid)
        return self._verdicts[key]


def in_first_pid_namespace() -> bool:
    """Whether this process is in the machine's own pid namespace; false in most containers."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return False


class _Family:
    """This process, the processes that carry a mark, and the descendants of both."""

    def __init__(self, measure: str | None) -> None:
        self._head = os.getpid()
        self._mark = os.fsencode(f"{MEASURE_VARIABLE}={measure}") if measure else None

    def has(self, pid: int) -> bool:
        ancestor = pid
        while ancestor > 0:  # in a container this process may be number 1
            if ancestor == self._head or self._is_marked(ancestor):
                return True
            process = _read_process(ancestor)
            if process is None:
                break
            ancestor = process.parent
        return False

    def _is_marked(self, pid: int) -> bool:
        if self._mark is None:
            return False
        try:
            return self._mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        except OSError:  # it ended, or is another user's
            return False


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    started_ticks: int  # tells apart two processes with the same number


def _read_process(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # proc_pid_stat(5): the name is in brackets and may contain anything.
    fields = text[text.rindex(b")") + 2 :].split()
    name = text[text.index(b"(") + 1 : text.rindex(b")")].decode("utf-8", "replace")
    return _Process(name, parent=int(fields[1]), started_ticks=int(fields[19]))


def _is_forbidden(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return False
