"""The section ``pace`` of a job file: writes down how fast a training is."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection


class Pace(PartSection):
    """How fast a training is."""

    summary: ClassVar[str] = "How fast the training is."

    every: int = Field(1, ge=1, description="Write it down after so many steps.")

    @property
    def excludes(self):
        return ("watch",)

    @property
    def sync_variant(self):
        return f"pace {self.every}"

    def tell(self, sizes, trial, fitting):
        del sizes, trial, fitting
        return {"pace": self.model_dump()}


SECTION = Pace
