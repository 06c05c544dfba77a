"""A control group for each run, where the kernel allows it: all of it can be killed at once.

This needs cgroup v2 with ``cgroup.kill`` (Linux 5.14), and permission to create a group below that
of this process: root has it, and a user whose systemd unit is delegated. Otherwise a run has no
group.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.files.private import read_file, write_file

if TYPE_CHECKING:
    from zeusrun.launcher.rundir.layout import RunPaths

_MOUNTS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_PREFIX = "zeusrun-"
_LONGEST_S = 3.0
_PERIOD_S = 0.005
_LONGEST_PATH = 4096


def make_group(paths: RunPaths) -> Path | None:
    """Create the control group of a run, and write its path into the run directory first.

    Returns:
        The group, which is empty; ``None`` if this process may not create one.
    """
    parent = _own_group()
    if parent is None:
        return None
    group = parent / f"{_PREFIX}{secrets.token_hex(8)}"
    try:
        write_file(paths.control_group, bytes(group))
        group.mkdir()
        if (group / "cgroup.kill").exists():
            return group
    except OSError:
        pass
    end_group(paths)
    return None


def end_group(paths: RunPaths, *, keep: bool = False) -> None:
    """Kill all processes in the control group of a run, if it has one, and remove the group.

    ``keep`` moves the processes to the group above instead.
    """
    try:
        group = Path(os.fsdecode(read_file(paths.control_group, _LONGEST_PATH)))
    except OSError:
        return
    if group.name.startswith(_PREFIX) and (group / "cgroup.procs").exists():
        give_up_t = time.monotonic() + _LONGEST_S
        with contextlib.suppress(OSError):
            if not keep:
                (group / "cgroup.kill").write_text("1")
            while "populated 1" in (group / "cgroup.events").read_text():
                if time.monotonic() > give_up_t:
                    return  # the file stays: a later repair tries again
                if keep:
                    _move_up(group)
                time.sleep(_PERIOD_S)
        for folder, _, _ in os.walk(group, topdown=False):  # the script may have created groups
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
    if not group.exists():
        with contextlib.suppress(OSError):
            paths.control_group.unlink()


def _own_group() -> Path | None:
    """Return the directory of this process's group in cgroup v2, if groups can be made there."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except (OSError, UnicodeDecodeError):
        return None
    own = next((line[4:] for line in lines if line.startswith("0::/")), "..")
    for mount in _MOUNTS if ".." not in own.split("/") else ():
        group = mount / own
        # Only cgroup v2 has this file. If it names a controller, a group has its own share of the
        # processor: the training would be slower than without zeusrun.
        with contextlib.suppress(OSError):
            divided = (group / "cgroup.subtree_control").read_text().strip()
            if not divided and os.access(group, os.W_OK):
                return group
    return None


def _move_up(group: Path) -> None:
    for folder, _, _ in os.walk(group):
        for pid in (Path(folder) / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                (group.parent / "cgroup.procs").write_text(pid)
