"""The section ``pace`` of a job file: records the events and steps of a training."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection


class Pace(PartSection):
    """Records the events and steps of a training."""

    key: ClassVar[str] = "pace"
    excludes: ClassVar[tuple[str, ...]] = ("watch",)
    summary: ClassVar[str] = "Records the events and steps of a training."

    every: int = Field(1, ge=1, description="Optimizer steps between two records.")

    @property
    def sync_variant(self):
        return f"pace {self.every}"


SECTION = Pace
