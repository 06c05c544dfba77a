"""How often the kernel has killed for want of memory, so that a SIGKILL finds its cause."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_COUNT = re.compile(r"^oom_kill (\d+)$", re.MULTILINE)


def count_oom_kills(root: Path = Path("/")) -> int | None:
    """Return the out-of-memory kills so far in this process's control group, else on this host.

    Read before and after a run, the difference says whether memory may have ended it. Sources:
    ``memory.events`` of cgroup v2, ``memory.oom_control`` of v1, ``/proc/vmstat``; each has a
    line ``oom_kill N`` (Linux 4.13 and later).

    Args:
        root: Where ``proc`` and ``sys`` are.

    Returns:
        The count, or ``None`` where the kernel does not tell.
    """
    for path in (*_of_control_group(root), root / "proc/vmstat"):
        try:
            found = _COUNT.search(path.read_text(encoding="ascii", errors="replace"))
        except OSError:
            continue
        if found:
            return int(found[1])
    return None


def _of_control_group(root: Path) -> Iterator[Path]:
    """Yield where the control group of this process may keep its count.

    In a container its path may be the host's, while what is mounted begins at the group itself.
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
