"""The section ``ceiling`` of a job file: a run stops if its metric is above a value."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection


class Ceiling(PartSection):
    """Stops a run whose metric is too high."""

    key: ClassVar[str] = "ceiling"
    summary: ClassVar[str] = "Stops a run whose metric is too high."

    above: float = Field(description="The highest value that is allowed.")

    def tell(self, chosen):
        del chosen
        return {}  # it has nothing within the ranks


SECTION = Ceiling
