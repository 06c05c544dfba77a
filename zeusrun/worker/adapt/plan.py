"""The section ``adapt`` of the job file as a rank reads it, and what it needs of its run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from zeusrun.worker.adapt.policies import Limits

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.sidecar.events import Event


class Run(Protocol):
    """The part of a ``RunContext`` that adapting the batch size needs."""

    rank: int
    world_size: int

    @property
    def epoch(self) -> int | None:
        """The present epoch, from 1; ``None`` if the script does not use ``run.epochs``."""

    @property
    def adaptation_state(self) -> Path | None:
        """The file for the state."""

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the ranks ran out of memory before torchrun restarted them."""

    def accumulation_steps(self, default: int = 1) -> int:
        """Return the number of micro-batches in the first optimizer step."""

    def micro_batch_size(self, default: int) -> int:
        """Return the samples of one of these micro-batches."""

    def record_on_0(self, event: Event) -> None:
        """Write an event on rank 0."""


@dataclass(frozen=True)
class Plan:
    """The section ``adapt`` of the job file.

    Attributes:
        policies: One policy of zeusrun, or the user's classes as ``module:Class``.
        interval: Epochs or steps between two decisions.
        unit: ``epoch`` or ``step``.
        limits: Of the batch size.
        learning_rate: The rule by which it follows the batch size.
        betas: ``keep`` or ``tokens``.
    """

    policies: tuple[str, ...]
    interval: int
    unit: str
    limits: Limits
    learning_rate: str
    betas: str

    @classmethod
    def read(cls, text: str) -> Plan:
        """Read what the launcher wrote into ``ZEUSRUN_ADAPT``."""
        section = json.loads(text)
        return cls(
            policies=tuple(section["policies"]),
            interval=section["interval"],
            unit=section["unit"],
            limits=Limits(
                section["min"],
                section["max"],
                section["growth"],
                per_device_max=section["per_device_max"],
                schedule=tuple(map(tuple, section["schedule"])),
            ),
            learning_rate=section["learning_rate"],
            betas=section["betas"],
        )
