"""Whether this process counts processes as NVML and a daemon of the machine do."""

from __future__ import annotations

import os

# PROC_PID_INIT_INO of the kernel: the namespace in which the machine started.
_FIRST = "pid:[4026531836]"


def in_first_pid_namespace() -> bool:
    """Whether this process is in the machine's own pid namespace, so not in most containers."""
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST  # noqa: PTH115 - no path
    except OSError:
        return False
