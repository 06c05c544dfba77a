"""Starts torchrun, and kills everything that torchrun has started once the launcher is gone.

The launcher starts this file by its path and without ``site``: it is up in 20 ms. It is the
*subreaper* of its descendants (prctl(2), PR_SET_CHILD_SUBREAPER): a process whose parent dies
becomes its child, whatever session or environment that process has. So nothing is left once it
has no child.

The first argument is the control group of the run, or empty; the second one the descriptor of the
terminal that becomes torchrun's standard input, or empty; the others are torchrun's command. A byte
of standard input is the number of a signal for torchrun, or 0: let what is left live. Only the
launcher holds the other end, so the end of input means that the launcher has finished or is dead.
Standard output gets torchrun's exit code when torchrun has ended; standard error is torchrun's log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time

TYPE_CHECKING = False  # importing typing would take as long as all the rest
if TYPE_CHECKING:
    from collections.abc import Iterable

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
_PERIOD_S = 0.01
_MOST_S = 60.0  # a process of another user cannot be killed


def main() -> None:
    """Run the command ``argv[3:]`` until the launcher is gone, then kill what is left."""
    group, terminal = sys.argv[1:3]
    # Signals to a whole session or Slurm step are for the launcher.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - {signal.SIGCHLD})
    torchrun = os.fork()
    if torchrun == 0:
        _become(sys.argv[3:], terminal, mask)
    if terminal:
        os.close(int(terminal))  # only the run holds it open
    import ctypes  # noqa: PLC0415 - 10 ms, in which torchrun starts already

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # Joining takes the kernel 15 ms. Python takes longer before it can start a process.
    _write_to_group(group, "cgroup.procs", torchrun)
    running = True

    def reap(*_: object) -> None:
        nonlocal running
        with contextlib.suppress(OSError):  # there is no child, or the launcher is dead
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if ended[0] == torchrun:
                    running = False
                    os.write(1, b"%d" % os.waitstatus_to_exitcode(ended[1]))

    signal.signal(signal.SIGCHLD, reap)
    reap()  # torchrun may have ended before
    while number := os.read(0, 1):
        if number == b"\0":
            return
        if running:
            os.kill(torchrun, number[0])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a child keeps its pid until it is reaped below
    _end_all(group)


def _end_all(group: str) -> None:
    """Kill all descendants, and remove the control group."""
    _write_to_group(group, "cgroup.kill", 1)
    give_up_t = time.monotonic() + _MOST_S
    with contextlib.suppress(ChildProcessError):  # only waitpid says for certain that none is left
        while time.monotonic() < give_up_t:
            for pid in _children():
                with contextlib.suppress(PermissionError):
                    os.kill(pid, signal.SIGKILL)  # its own children come here
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
            time.sleep(_PERIOD_S)
    with contextlib.suppress(OSError):
        os.rmdir(group)  # noqa: PTH106 - pathlib takes 10 ms


def _write_to_group(group: str, name: str, value: int) -> None:
    with contextlib.suppress(OSError):  # there is no group
        os.write(os.open(f"{group}/{name}", os.O_WRONLY | os.O_CLOEXEC), b"%d" % value)


def _become(argv: list[str], terminal: str, mask: Iterable[int]) -> None:
    """Become torchrun: in a session of its own, its output to standard error.

    Without a terminal, standard input is empty.
    """
    os.setsid()
    source = int(terminal) if terminal else os.open(os.devnull, os.O_RDONLY)
    os.dup2(source, 0)
    os.close(source)
    os.dup2(2, 1)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    os.execv(argv[0], argv)  # noqa: S606 - an argument vector, never a shell


def _children() -> list[int]:
    """Return the pids of this process's children."""
    found, pid = [], os.getpid()
    for name in filter(str.isdecimal, os.listdir("/proc")):  # noqa: PTH208 - pathlib takes 10 ms
        with contextlib.suppress(OSError), open(f"/proc/{name}/stat", "rb") as file:  # noqa: PTH123
            # proc_pid_stat(5): the name is in brackets, then come the state and the parent.
            if int(file.read().rpartition(b")")[2].split()[1]) == pid:
                found.append(int(name))
    return found


if __name__ == "__main__":
    main()
