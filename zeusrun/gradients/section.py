"""The section ``watch`` of a job file: what the ranks measure of their gradients."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - pydantic needs it
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field

from zeusrun.jobfile.plugged import PartSection
from zeusrun.jobfile.section import Section

if TYPE_CHECKING:
    from zeusrun.jobfile.sections import BatchSizes
    from zeusrun.trial import Trial


class NoiseScaleSection(Section, title="NoiseScale"):
    """The gradient noise scale."""

    interval: int = Field(1, ge=1, description="Measure it every so many optimizer steps.")


class Watch(PartSection):
    """What the ranks measure of their gradients."""

    summary: ClassVar[str] = "What the ranks measure of their gradients."
    other_names: ClassVar[Mapping[str, str]] = {
        "watch.noise_scale.every": "watch.noise_scale.interval"
    }

    noise_scale: NoiseScaleSection = Field(
        description="The gradient noise scale; {} for the defaults."
    )

    def tell(
        self, sizes: BatchSizes, trial: Trial, fitting: int | None
    ) -> dict[str, Mapping[str, Any]]:
        """Return the settings of the gradient statistics that the ranks compute."""
        del sizes, trial, fitting
        return {"watch": self.model_dump()}


SECTION = Watch
