"""Whether other programs use the job's GPUs while it trains.

NVML lists process ids. In a container they may be of the host's pid namespace, where a number means
another process than here. Then the answer is often unknown: ``None``.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from typing import TYPE_CHECKING

from zeusrun.energy.cpu import read_stat
from zeusrun.energy.device import name_of
from zeusrun.errors import DeviceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.energy.device import Device

PERIOD_S = 1.0
# A process that ends between being listed and being checked makes one check useless. After this
# many useless checks in a row, sharing is unknown.
_UNSURE_CHECKS = 3
_LAST_CHECKS = 5
_FOUND_CHECKS = 3

# CUDA's Multi-Process Service computes for its clients, which may or may not be ours.
_MPS = "nvidia-cuda-mps"  # the kernel cuts names to 15 letters

# PROC_PID_INIT_INO of the kernel: the pid namespace in which the machine started.
_FIRST_PID_NAMESPACE = "pid:[4026531836]"


class ForeignProcesses:
    """Finds the processes that are not the job's. Make one for each run.

    A process is the job's if it or one of its ancestors is this process (the watchdog adopts the
    orphans of a run). ``found`` are the foreign ones at the last check, as NVML numbers them.
    """

    def __init__(self, *, first_namespace: bool | None = None) -> None:
        """Prepare. ``first_namespace`` says whether process ids are NVML's; ``None``: find out."""
        self.found: frozenset[int] = frozenset()
        self._comparable = in_first_pid_namespace() if first_namespace is None else first_namespace
        self._before: frozenset[int] | None = None

    def check(self, listed: frozenset[int] | None) -> bool | None:
        """Return whether a listed process of any device is foreign. Call it once before the launch.

        ``listed`` is what ``Device.compute_processes`` returned.
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
        self.found = frozenset(pid for pid, foreign in verdicts.items() if foreign)
        if self.found:
            return True
        return False if self._comparable and None not in verdicts.values() else None

    def _judge(self, pid: int) -> bool | None:
        """Return whether a process of this namespace is foreign; ``None`` if that is unknown."""
        process = read_stat(pid)
        if process is None:
            # It ended, or is hidden (mount option hidepid): a hidden one is another user's.
            return True if _is_forbidden(pid) else None
        return None if process.name.startswith(_MPS) else not _is_ours(pid)


class Sharing:
    """Decides from one check a second whether others compute on the devices.

    Foreign processes count once two checks in a row, or three of the last five, have found any. A
    process that only the first check finds does not count: it may belong to an earlier run that is
    about to end. ``shared`` is ``True`` from then on, and ``None`` while it is unknown.
    """

    def __init__(self, foreign: ForeignProcesses) -> None:
        self.shared: bool | None = None
        self._foreign = foreign
        self._due_s: float | None = None
        self._unsure = 0
        self._found_first: frozenset[int] | None = None
        self._found_any: deque[bool] = deque(maxlen=_LAST_CHECKS)

    def look(self, devices: Iterable[Device], now_s: float) -> str | None:
        """Check the GPUs once a second; return a warning once processes of others use one."""
        if self.shared or (self._due_s is not None and now_s < self._due_s):
            return None
        self._due_s = now_s + PERIOD_S
        listed: dict[str, frozenset[int] | None] = {}
        for device in (each for each in devices if each.is_gpu):
            listed[name_of(device)] = None
            # No warning: the monitor reads the device ten times a second, and warns if it fails.
            with contextlib.suppress(DeviceError):
                listed[name_of(device)] = device.compute_processes()
        return self._check(listed)

    def _check(self, listed: Mapping[str, frozenset[int] | None]) -> str | None:
        """Check the processes of each GPU, by its name; return a warning once some are foreign."""
        known = [pids for pids in listed.values() if pids is not None]
        verdict = self._foreign.check(frozenset[int]().union(*known) if known else None)
        if known and self._count(self._foreign.found):
            verdict = True
        elif verdict or len(known) < len(listed):
            verdict = None
        self._unsure = self._unsure + 1 if verdict is None else 0
        if verdict is not None or self._unsure >= _UNSURE_CHECKS:
            self.shared = verdict
        return self._describe(listed) if self.shared else None

    def _count(self, found: frozenset[int]) -> bool:
        """Add the foreign processes of a check; return whether they make the run shared."""
        if self._found_first is None:
            self._found_first = found
            return False
        before = bool(found & self._found_first) if not self._found_any else self._found_any[-1]
        self._found_any.append(bool(found))
        return bool(found) and (before or sum(self._found_any) >= _FOUND_CHECKS)

    def _describe(self, listed: Mapping[str, frozenset[int] | None]) -> str:
        where = [
            f"{', '.join(map(str, sorted(foreign)))} on {name}"
            for name, pids in listed.items()
            if (foreign := self._foreign.found & (pids or frozenset()))
        ]
        return f"processes of others compute on this job's GPUs: {'; '.join(where)}"


def in_first_pid_namespace() -> bool:
    """Whether this process is in the machine's own pid namespace; false in most containers."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE  # noqa: PTH115 - no path
    except OSError:
        return False


def _is_forbidden(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        pass
    return False


def _is_ours(pid: int) -> bool:
    while pid > 0:  # in a container this process may be number 1
        if pid == os.getpid():
            return True
        process = read_stat(pid)
        pid = 0 if process is None else process.parent
    return False
