"""What the agent of an elastic training may do, and how the processes of its ranks end."""

from __future__ import annotations

import contextlib
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import subprocess


class End(NamedTuple):
    """How a rank has ended, in words and as a row of torchrun's table."""

    text: str
    rank: int
    code: int
    pid: int


@dataclass(frozen=True)
class Plan:
    """What the agent may do, as JSON on its command line.

    Attributes:
        run_id: Of torchrun: the name of the trial.
        ranks: At the start.
        min, max, losses, lost_by, hang_s: Of the section ``elastic``.
        batch_size: Over all ranks; those of an unedited script share it evenly. 0: any number may.
        max_restarts: Of all ranks after any failure.
    """

    run_id: str
    ranks: int
    batch_size: int
    max_restarts: int
    min: int
    max: int
    losses: int
    lost_by: str
    hang_s: float


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
