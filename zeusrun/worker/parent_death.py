"""Ties a process to its parent's life, so that no rank trains on for nobody."""

from __future__ import annotations

import ctypes
import signal
import sys

_PR_SET_PDEATHSIG = 1  # prctl(2), linux/prctl.h


def end_with_parent() -> None:
    """Have the kernel kill this process as soon as its parent is gone; on Linux only.

    torchrun that is killed leaves its ranks training, each in a session of its own; a launcher
    that is killed leaves torchrun. The setting survives ``execve`` and is not inherited by
    children (prctl(2), PR_SET_PDEATHSIG).
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
