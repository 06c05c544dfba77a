"""The PBS job that this process is the batch step of."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.run_on.pbs.client import name_of
from zeusrun.errors import UsageError
from zeusrun.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from typing_extensions import Self

    from zeusrun.trial import Outcome, Trial


@dataclass(frozen=True)
class PBSAllocation:
    """A job of PBS, seen from inside."""

    name: str
    hosts: tuple[str, ...]
    restarts: int = 0
    is_known: bool = True
    keeps_files: None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def time_left_s(self) -> None:
        pass

    def find_cause(self) -> tuple[ReasonCode, str]:
        return ReasonCode.PREEMPTED, f"{self.name} is preempted"

    def check_sentinel(self) -> None:
        pass

    def judge(self, trial: Trial, outcome: Outcome, *, saved: bool) -> Outcome:
        del trial, saved
        return outcome


def open_allocation(environment: Mapping[str, str]) -> PBSAllocation:
    number, nodes = environment.get("PBS_JOBID"), environment.get("PBS_NODEFILE")
    if not number or not nodes:
        raise UsageError("this command is for the batch step of a PBS job: `zeusrun submit`")
    return PBSAllocation(name_of(number), tuple(Path(nodes).read_text().split()))
