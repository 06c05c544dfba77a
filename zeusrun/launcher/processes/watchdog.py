"""Ends what a killed launcher has left running; a process of its own that outlives it.

The launcher starts it by its path, without ``site`` and before torchrun: it is up in some 15 ms
and needs nothing but the standard library. It waits at a pipe that only the launcher holds open.
A byte dismisses it; the end of the pipe without one means that the launcher is dead, and then
every process that carries the launcher's mark in its environment is killed. The mark is of this
launcher alone: another one may go on with the same trial at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

_FOR_THE_LAUNCHER = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
_PERIOD_S = 0.1
_QUIET_S = 2.0  # a process that was just being started shows its mark a moment later
_MOST_S = 60.0


def main() -> None:
    """Wait for the end of the launcher; ``argv[1]`` is its mark, ``ZEUSRUN_LAUNCH=…``."""
    for number in _FOR_THE_LAUNCHER:
        signal.signal(number, signal.SIG_IGN)
    if not os.read(0, 1):
        end_marked(os.fsencode(sys.argv[1]))


def end_marked(mark: bytes) -> None:
    """Kill the processes that carry a mark until none has been seen for a while."""
    began_t = quiet_t = time.monotonic()
    while (now_t := time.monotonic()) - quiet_t < _QUIET_S and now_t - began_t < _MOST_S:
        if _kill_marked(mark):
            quiet_t = now_t
        time.sleep(_PERIOD_S)


def _kill_marked(mark: bytes) -> int:
    """Kill every process that carries the mark; return how many there were."""
    found = 0
    for name in os.listdir("/proc"):  # noqa: PTH208 - pathlib takes as long to load as all else
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # gone, or another user's
                found += _kill_if_marked(int(name), mark)
    return found


def _kill_if_marked(pid: int, mark: bytes) -> bool:
    process = os.pidfd_open(pid)  # so that a reused pid is never signalled
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:  # noqa: PTH123
            marked = mark in file.read().split(b"\0")
        if marked:
            signal.pidfd_send_signal(process, signal.SIGKILL)
        return marked
    finally:
        os.close(process)


if __name__ == "__main__":
    main()
