"""Reads what machines report of themselves: GPUs and schedules. Every value may be anything."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_MOST = 256  # GPUs or schedules of a machine


@dataclass(frozen=True)
class GpuFacts:
    """One GPU when its machine last reported; ``None`` is unknown."""

    index: str | None
    model: str | None
    power_w: float | None
    limit_w: float | None
    load: float | None
    temperature_c: float | None
    throttled: tuple[str, ...]
    source: str | None  # of its energy
    held_by: str | None  # the run that holds its power limit
    error: str | None


@dataclass(frozen=True)
class ScheduleFacts:
    """One schedule of a machine."""

    host: str
    job: str
    when: str  # in words
    zone: str | None
    next_at: str | None  # RFC 3339; ``None``: paused or unknown
    paused: bool
    last: str | None  # what its last occurrence came to


@dataclass(frozen=True)
class HostFacts:
    """A machine; ``age_s`` seconds ago it reported."""

    host: str
    age_s: float
    version: str | None
    gpus: tuple[GpuFacts, ...]
    schedules: tuple[ScheduleFacts, ...]

    def only(self, schedules: Sequence[ScheduleFacts]) -> HostFacts:
        """Return the machine with some of its schedules."""
        return replace(self, schedules=tuple(schedules))


def read_host(host: str, age_s: float, facts: Mapping[str, Any]) -> HostFacts:
    """Return what a machine reported; what has no usable form is left out."""
    return HostFacts(
        host,
        max(0.0, age_s),
        _text(facts.get("version")),
        tuple(_read_gpu(each) for each in _records(facts.get("gpus"))),
        tuple(
            _read_schedule(host, job, each)
            for each in _records(facts.get("schedules"))
            if (job := _text(each.get("job"))) is not None
        ),
    )


def _read_gpu(record: Mapping[str, Any]) -> GpuFacts:
    reasons = record.get("throttle_reasons")
    known = [each for each in _list(reasons) if isinstance(each, str)]
    index = record.get("cuda_index")
    return GpuFacts(
        str(index) if isinstance(index, int) else None,
        _text(record.get("model")),
        _number(record.get("power_w")),
        _number(record.get("power_limit_w")),
        _number(record.get("utilization")),
        _number(record.get("temperature_c")),
        tuple(known[:8]),
        _text(record.get("energy_source")),
        _text(record.get("held_by")),
        _text(record.get("error")),
    )


def _read_schedule(host: str, job: str, record: Mapping[str, Any]) -> ScheduleFacts:
    moments, firings = _list(record.get("next")), _records(record.get("firings"))
    newest = max(firings, key=lambda each: str(each.get("occurrence")), default=None)
    return ScheduleFacts(
        host,
        job,
        _text(record.get("words")) or _text(record.get("cron")) or "",
        _text(record.get("tz")),
        _text(moments[0]) if moments else None,
        record.get("paused") is True,
        None if newest is None else _describe(newest),
    )


def _describe(firing: Mapping[str, Any]) -> str:
    result, code, why = (firing.get(name) for name in ("result", "exit_code", "why"))
    text = _text(result) or "unknown"
    if text == "ended" and isinstance(code, int):
        text = "reached its target" if code == 0 else f"ended with exit code {code}"
    reason = _text(why)
    return f"{text}: {reason}" if reason else text


def _records(value: object) -> Sequence[Mapping[str, Any]]:
    return [each for each in _list(value) if isinstance(each, dict)]


def _list(value: object) -> list[Any]:
    return value[:_MOST] if isinstance(value, list) else []


def _text(value: object) -> str | None:
    return value[:300] if isinstance(value, str) and value else None


def _number(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if math.isfinite(value) and abs(value) < 1e9 else None
