"""How many worker processes the cores and the memory of this machine allow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_KEPT = 0.2  # share of the memory that stays free
_GROUPS = Path("/sys/fs/cgroup")


def count_cores() -> int:
    """Return the cores that this process may use: by its affinity, and by its control groups."""
    cores = len(os.sched_getaffinity(0))
    for folder in _own_groups():
        with contextlib.suppress(OSError, ValueError):  # "max 100000": no limit
            quota, period = map(int, (folder / "cpu.max").read_text().split())
            cores = min(cores, max(1, quota // period))
    return cores


def count_that_fit(pids: Sequence[int], ranks: int) -> int:
    """Return how many workers a rank may have so that a fifth of the memory stays free.

    Args:
        pids: Its workers, of which the first shows what one takes.
        ranks: That share the machine.
    """
    present = len(pids)
    try:
        each = _private_bytes(pids[0])
        free, whole = _read_memory()
    except (OSError, LookupError, ValueError):  # no worker, or it has ended
        return 2 * present or 1
    room = max(0.0, free - _KEPT * whole) / ranks
    return present + int(room / max(each, 1))


def _read_memory() -> tuple[float, float]:
    """Return free and all memory in bytes, of the machine or of the tightest control group."""
    import psutil  # noqa: PLC0415 - few runs need it

    machine = psutil.virtual_memory()
    found = [(float(machine.available), float(machine.total))]
    for folder in _own_groups():
        with contextlib.suppress(OSError, ValueError):
            whole = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            kinds = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
            found.append((whole - used + int(kinds.get("inactive_file", 0)), float(whole)))
    return min(found, key=lambda each: each[0] - _KEPT * each[1])


def _own_groups() -> Iterator[Path]:
    """Yield the folders of the control groups of this process, the innermost first (cgroup v2)."""
    with contextlib.suppress(OSError):
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
        own = next((line[3:] for line in lines if line.startswith("0::")), "/")
        folder = _GROUPS / own.lstrip("/")
        yield from (each for each in (folder, *folder.parents) if each.is_relative_to(_GROUPS))


def _private_bytes(pid: int) -> int:
    """Return the memory that only this process has."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
