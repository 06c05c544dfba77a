"""Counts the processes that the kernel has killed because memory ran out."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(root: Path = Path("/")) -> int | None:
    """Return the out-of-memory kills so far in this process's control group, else on this host.

    ``None`` if the kernel does not count. ``memory.events`` of cgroup v2, ``memory.oom_control`` of
    v1 and ``/proc/vmstat`` have a line ``oom_kill N`` (Linux 4.13 and later).
    """
    for path in (*_control_group_files(root), root / "proc/vmstat"):
        try:
            found = _COUNT.search(path.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _control_group_files(root: Path) -> Iterator[Path]:
    """Yield the files that may hold the count of this process's control group.

    In a container, /proc may name the group's path on the host, while the group itself is mounted.
    """
    mounts = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        inside = group.lstrip("/")
        if "memory" in controllers.split(","):
            yield mounts / "memory" / inside / "memory.oom_control"
            yield mounts / "memory/memory.oom_control"
        elif not controllers:
            for mount in (mounts, mounts / "unified"):
                yield mount / inside / "memory.events"
                yield mount / "memory.events"
