"""The section ``watch`` of a job file: what the ranks measure of their gradients."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import ClassVar

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection
from zeusrun.jobfile.section import Section


class NoiseScaleSection(Section, title="NoiseScale"):
    """The gradient noise scale."""

    interval: int = Field(1, ge=1, description="Measure it every so many optimizer steps.")


class Watch(PartSection):
    """What the ranks measure of their gradients."""

    key: ClassVar[str] = "watch"
    summary: ClassVar[str] = "What the ranks measure of their gradients."
    other_names: ClassVar[Mapping[str, str]] = {
        "watch.noise_scale.every": "watch.noise_scale.interval"
    }

    noise_scale: NoiseScaleSection = Field(
        description="The gradient noise scale; {} for the defaults."
    )


SECTION = Watch
