"""The section ``run_on.pbs`` of a job file."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field

from zeusrun.jobfile.run_on_section import SchedulerSection


class PBS(SchedulerSection):
    """What PBS allocates."""

    summary: ClassVar[str] = "Instead of hosts: PBS allocates launch.nnodes machines."
    fan_out: ClassVar[str] = "pbs_tmrsh {host}"

    queue: str | None = Field(None, description="Queue; null: the default one.")
    walltime: str | None = Field(None, description="Time limit, such as 8:00:00.")


SECTION = PBS
