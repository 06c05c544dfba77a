"""The processes of ranks that are started one by one."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import subprocess


def signal_group(process: subprocess.Popen[bytes], number: int = signal.SIGKILL) -> None:
    """Send a signal to a process and its children."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, number)


def read_exit(process: subprocess.Popen[bytes]) -> int | None:
    """Return the exit code of a process that has ended.

    If it failed, its data loader workers are killed: they hold its connections open.
    """
    # With WNOWAIT, its pid stays taken until then.
    end = os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    if end is None:
        return None
    if (end.si_code, end.si_status) != (os.CLD_EXITED, 0):
        signal_group(process)
    return process.wait()
