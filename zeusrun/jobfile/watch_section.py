"""The section ``watch`` of a job file: what the ranks measure of their gradients."""

from __future__ import annotations

from pydantic import Field

from zeusrun.jobfile.sections import Section


class NoiseScaleSection(Section, title="NoiseScale"):
    """The gradient noise scale."""

    interval: int = Field(1, ge=1, description="Measure it every so many optimizer steps.")


class Watch(Section):
    """What the ranks measure of their gradients."""

    noise_scale: NoiseScaleSection = Field(
        description="The gradient noise scale; {} for the defaults."
    )
