"""The section ``watch`` of a job file: what the ranks measure of their gradients."""

from __future__ import annotations

from pydantic import Field, model_validator

from zeusrun.jobfile.sections import Section


class NoiseScaleSection(Section, title="NoiseScale"):
    """The gradient noise scale."""

    interval: int = Field(1, ge=1, description="Measure it every so many optimizer steps.")


class VarianceSection(Section, title="Variance"):
    """The variance of the gradient of a rank, summed over its elements."""

    interval: int = Field(1, ge=1, description="Measure it every so many optimizer steps.")


class Watch(Section):
    """What the ranks measure of their gradients."""

    noise_scale: NoiseScaleSection | None = Field(
        None, description="The gradient noise scale; {} for the defaults."
    )
    variance: VarianceSection | None = Field(
        None, description="The variance of the gradients over the ranks; {} for the defaults."
    )

    @model_validator(mode="after")
    def _check(self) -> Watch:
        if self.noise_scale is None and self.variance is None:
            raise ValueError("names nothing to measure; add noise_scale: {} or variance: {}")
        return self
