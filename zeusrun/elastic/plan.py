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
        run_id: torchrun's: the name of the trial.
        ranks: At the start.
        min, max, losses, lost_by, hang_s: Of the section ``elastic``.
        batch_size: Over all ranks; the ranks of an unedited script divide it. 0: any number can.
        max_restarts: Of all ranks after any failure.
        number: That of its host; the agent of host 0 decides.
        hosts: How many there are.
        own_ranks: How many ranks this host has at the start.
        endpoint: Where the agent of host 0 listens for the others; empty for one host.
        address: Where the other hosts reach this one.
        silent_s: Seconds without a message after which another agent counts as lost.
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
        """How many ranks this host may have: its share of ``max``, or its ranks at the start."""
        return max(self.own_ranks, -(-self.max // self.hosts))


def log(text: str) -> None:
    """Write a line to standard output, which is ``logs/torchrun.log`` of the run."""
    with contextlib.suppress(OSError):  # a full disk
        os.write(1, f"{datetime.now().astimezone():%H:%M:%S.%f} {text}\n".encode())
