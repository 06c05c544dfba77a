"""Which of the processes that compute on a GPU are not the job's.

NVML lists process ids. In a container they may be those of the host's pid namespace, where a number
means another process than here; then little can be told, and that is said with ``None``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

# The kernel cuts names to 15 letters. The server of CUDA's Multi-Process Service computes on behalf
# of its clients, ours or not.
_MPS = "nvidia-cuda-mps"
_RUN_DIR = "ZEUSRUN_RUN_DIR"
MEASURE_VARIABLE = "ZEUSRUN_MEASURE"
"""In the environment of a process: which ``zeusrun measure`` it belongs to."""

# PROC_PID_INIT_INO of the kernel: the namespace in which the machine started.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class ForeignProcesses:
    """Tells foreign processes from the job's, look by look. Make one for each run.

    Attributes:
        found: The foreign processes of the last look, as NVML numbers them.
    """

    def __init__(
        self,
        owns: Callable[[int], bool] | None = None,
        *,
        run_dir: str | None = None,
        measure: str | None = None,
        first_namespace: bool | None = None,
    ) -> None:
        """Prepare; nothing is looked at yet.

        Args:
            owns: Whether a process of this namespace is the job's. By default it is if this
                process launched it, however indirectly, or if it or what launched it was given
                ``run_dir`` or ``measure``.
            run_dir: ``ZEUSRUN_RUN_DIR`` of the run: a rank whose parents died still has it.
            measure: ``ZEUSRUN_MEASURE`` of a command that is measured, likewise.
            first_namespace: Whether this process counts processes as NVML does; ``None``: find out.
        """
        self.found: frozenset[int] = frozenset()
        self._owns = owns if owns is not None else _Family(run_dir, measure).has
        self._comparable = in_first_pid_namespace() if first_namespace is None else first_namespace
        self._before: frozenset[int] | None = None
        self._verdicts: dict[tuple[int, int], bool | None] = {}

    def look(self, listed: frozenset[int] | None) -> bool | None:
        """Judge who computes on the job's GPUs now. The first look must come before the launch.

        Args:
            listed: What ``Device.compute_processes`` returned, for one device or for all together;
                ``None`` if it told nothing.

        Returns:
            Whether any of them is foreign; ``None`` if that cannot be told.
        """
        if self._before is None:
            self._before = listed or frozenset()
        if listed is None:
            self.found = frozenset()
            return None
        self._before &= listed  # what has gone may come back as another process
        verdicts = {pid: self._judge(pid) for pid in listed}
        if any(verdicts[pid] is False for pid in listed - self._before):
            self._comparable = True  # one of ours is listed under its number here
        if not self._comparable:
            # Nothing is ours before the launch, in whatever namespace; of the rest who knows.
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
            # Gone, or hidden (mount option hidepid): then it is someone else's.
            return True if _is_forbidden(pid) else None
        key = (pid, process.started_ticks)
        if key not in self._verdicts:
            server = process.name.startswith(_MPS)
            self._verdicts[key] = None if server else not self._owns(pid)
        return self._verdicts[key]


def in_first_pid_namespace() -> bool:
    """Whether this process is in the machine's own pid namespace, so not in most containers."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return False


class _Family:
    """What this process launched, what was given a mark of the run, and what that launched."""

    def __init__(self, run_dir: str | None, measure: str | None) -> None:
        self._head = os.getpid()
        marks = {_RUN_DIR: run_dir, MEASURE_VARIABLE: measure}
        self._marks = {f"{name}={value}".encode() for name, value in marks.items() if value}

    def has(self, pid: int) -> bool:
        ancestor = pid
        while ancestor > 0:  # this process may itself be number 1, in a container
            if ancestor == self._head or self._is_marked(ancestor):
                return True
            process = _read_process(ancestor)
            if process is None:
                break
            ancestor = process.parent
        return False

    def _is_marked(self, pid: int) -> bool:
        if not self._marks:
            return False
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            return not self._marks.isdisjoint(environment)
        except OSError:  # gone, or another user's
            return False


@dataclass(frozen=True)
class _Process:
    name: str
    parent: int
    started_ticks: int  # with it, a number that the kernel gives out again is told apart


def _read_process(pid: int) -> _Process | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    # proc_pid_stat(5): the name stands in brackets and may hold anything.
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
