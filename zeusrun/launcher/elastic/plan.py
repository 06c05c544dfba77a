"""What the agent of an elastic training may do, and how its ranks end."""

from __future__ import annotations

from dataclasses import dataclass
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
