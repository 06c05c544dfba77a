"""Reads what machines report of themselves: GPUs and schedules. Every value may be anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WrapValidator

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import ValidatorFunctionWrapHandler

_MOST = 256  # GPUs or schedules of a machine


def _read(value: object, read: ValidatorFunctionWrapHandler) -> Any:  # noqa: ANN401 - any type
    """Return a value; ``None`` if it has no usable form."""
    try:
        return read(value)
    except ValueError:
        return None


def _read_each(value: object, read: ValidatorFunctionWrapHandler) -> list[Any]:
    """Return those values of a list that have a usable form."""
    items = value[:_MOST] if isinstance(value, list) else []
    return [known for each in items for known in _read([each], read) or ()]


_Text = Annotated[
    str | None, AfterValidator(lambda text: text and text[:300]), WrapValidator(_read)
]
_Integer = Annotated[int | None, Field(gt=-1e9, lt=1e9), WrapValidator(_read)]
_Number = Annotated[float | None, Field(gt=-1e9, lt=1e9), WrapValidator(_read)]
_Texts = Annotated[list[str], WrapValidator(_read_each)]


class _Facts(BaseModel):
    """Values of a report; ``None`` is unknown."""

    model_config = ConfigDict(strict=True)


class GpuFacts(_Facts):
    """One GPU when its machine last reported."""

    cuda_index: _Integer = None
    model: _Text = None
    power_w: _Number = None
    power_limit_w: _Number = None
    utilization: _Number = None
    temperature_c: _Number = None
    throttle_reasons: _Texts | None = None
    energy_source: _Text = None
    held_by: _Text = None  # the run that holds its power limit
    error: _Text = None


class Firing(_Facts):
    """One occurrence of a schedule, and what it came to."""

    occurrence: _Text = None
    result: _Text = None
    exit_code: _Integer = None
    why: _Text = None

    def __str__(self) -> str:
        """Describe what it came to."""
        text = self.result or "unknown"
        if text == "ended" and self.exit_code is not None:
            text = (
                f"ended with exit code {self.exit_code}" if self.exit_code else "reached its target"
            )
        return f"{text}: {self.why}" if self.why else text


class ScheduleFacts(_Facts):
    """One schedule of a machine."""

    job: str
    host: _Text = None
    words: _Text = None
    cron: _Text = None
    next: _Texts = []  # RFC 3339
    paused: object = None
    firings: Annotated[list[Firing], WrapValidator(_read_each)] = []


class HostFacts(_Facts):
    """A machine; ``age_s`` seconds ago it reported."""

    host: str
    age_s: float
    version: _Text = None
    gpus: Annotated[list[GpuFacts], WrapValidator(_read_each)] = []
    schedules: Annotated[list[ScheduleFacts], WrapValidator(_read_each)] = []


def read_host(host: str, age_s: float, facts: Mapping[str, Any]) -> HostFacts:
    """Return what a machine reported; what has no usable form is left out."""
    found = HostFacts.model_validate({**facts, "host": host, "age_s": age_s})
    for schedule in found.schedules:
        schedule.host = host
    return found
