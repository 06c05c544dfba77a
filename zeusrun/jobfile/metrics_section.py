"""The section ``metrics`` of a job file: where the metric is read."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, Field, ValidationInfo, WithJsonSchema, field_validator

from zeusrun.jobfile.patterns import check_pattern
from zeusrun.jobfile.section import Section
from zeusrun.jobfile.values import SourceName, Template  # noqa: TC001 - pydantic reads the annotations

_FILES = ("csv", "jsonl")
# Key of metrics: the sources that it goes with.
_SOURCES_OF = {
    "pattern": ("stdout",),
    "path": _FILES,
    "name": ("stdout", *_FILES),
    "epoch": _FILES,
    "step": _FILES,
}
_EXAMPLE_PATHS = {"csv": "logs/**/metrics.csv", "jsonl": "out/log.jsonl"}


class Metrics(Section):
    """Where the metric is read."""

    source: SourceName = Field(
        "auto",
        description="auto: what the script reports, what the hooks see, and known lines that rank "
        "0 prints; sidecar: the same without the lines; stdout, csv, jsonl: reports, "
        "hooks and that source; or the name of an installed plugin.",
    )
    pattern: Annotated[
        tuple[str, ...],
        Field(strict=False),
        BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
        WithJsonSchema(
            {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}
        ),
    ] = Field(
        (),
        description="With stdout: one or more regular expressions whose named groups are metrics, "
        "or torchvision, nanogpt, torchtitan, megatron, pytorch_examples.",
    )
    path: Template | None = Field(
        None,
        min_length=1,
        description="The file to read: a glob, relative to workdir; ${...} placeholders.",
    )
    name: str | None = Field(
        None,
        min_length=1,
        description="The column, key or group that contains objective.metric, if it has "
        "another name.",
    )
    epoch: str | None = Field(
        None, min_length=1, description="The column or key that counts epochs."
    )
    step: str | None = Field(None, min_length=1, description="The column or key that counts steps.")

    @field_validator("pattern", "path", "name", "epoch", "step")
    @classmethod
    def _check(
        cls, value: str | tuple[str, ...] | None, info: ValidationInfo
    ) -> str | tuple[str, ...] | None:
        key, source = str(info.field_name), info.data.get("source")
        if source is None:  # it is itself wrong: then its own error counts
            return value
        if value and source not in _SOURCES_OF[key]:
            raise ValueError(f"only goes with source: {', '.join(_SOURCES_OF[key])}, not {source}")
        if key == "path" and value is None and source in _EXAMPLE_PATHS:
            example = _EXAMPLE_PATHS[source]
            raise ValueError(f"is missing: source {source} needs it, for example path: {example}")
        for pattern in value or () if key == "pattern" else ():
            check_pattern(pattern)
        return value
