"""What the agent of an elastic training may do, how a rank has ended, and the log."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple


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
        number: Of the host of this agent; 0 decides.
        hosts: How many there are.
        own_ranks: On the host of this agent at the start.
        endpoint: Where the agent of host 0 listens for the others; empty for one host.
        address: By which the other hosts reach this one.
        silent_s: Seconds without a message after which the agent of another host is given up.
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
    number: int = 0
    hosts: int = 1
    own_ranks: int = 0
    endpoint: str = ""
    address: str = "localhost"
    silent_s: float = 60.0

    @property
    def most_here(self) -> int:
        """How many ranks this host may have: its part of ``max``, or as many as at the start."""
        return max(self.own_ranks, -(-self.max // self.hosts))


def log(text: str) -> None:
    """Write a line to the log, which torchrun's would be."""
    with contextlib.suppress(OSError):  # a full disk
        os.write(1, f"{datetime.now().astimezone():%H:%M:%S.%f} {text}\n".encode())
