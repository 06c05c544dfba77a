"""The values that travel through one submit: Decision, Outcome, Trial. All frozen."""

from __future__ import annotations

import dataclasses
import datetime as dt
import functools
import math
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable


def timestamp() -> str:
    """Return the time of day as trials record it: RFC 3339, in UTC, to the millisecond."""
    return dt.datetime.now(dt.timezone.utc).isoformat(timespec="milliseconds")


class TrialStatus(str, Enum):
    """How a trial stands. ``DISPATCHED`` first, then exactly one of the others, for good."""

    DISPATCHED = "DISPATCHED"
    REACHED = "REACHED"
    MISSED = "MISSED"
    STOPPED = "STOPPED"
    OOM = "OOM"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    PREEMPTED = "PREEMPTED"
    LOST = "LOST"

    @property
    def finished(self) -> bool:
        """Whether the trial has ended."""
        return self is not TrialStatus.DISPATCHED


class EnergySource(str, Enum):
    """Where a joule comes from. Measured and estimated joules are never mixed."""

    COUNTER = "counter"
    INTEGRATED = "integrated"
    ESTIMATED = "estimated"

    @property
    def measured(self) -> bool:
        """Whether a device measured it; ``False`` for a model."""
        return self is not EnergySource.ESTIMATED


class Stage(str, Enum):
    """Why a batch size was chosen, in one word; ``Decision.why`` says it in a sentence."""

    EXPLORE = "explore"
    EXPLOIT = "exploit"
    CONCURRENT = "concurrent"
    FORCED = "forced"


@dataclass(frozen=True)
class Decision:
    """What a policy chose for one trial.

    Attributes:
        global_batch_size: Samples per optimizer step over all ranks.
        stage: Why, in one word.
        why: Why, in a sentence for people.
        power_limit_w: Watts per GPU to hold, or ``None`` to leave the limit as found.
    """

    global_batch_size: int
    stage: Stage
    why: str
    power_limit_w: float | None = None


class CurvePoint(NamedTuple):
    """The metric after an epoch.

    Attributes:
        epoch: Epochs completed.
        time_s: Seconds since training started.
        energy_j: Joules since training started; ``None`` if not measured.
        value: The metric; ``None`` where it was not finite.
    """

    epoch: int
    time_s: float
    energy_j: float | None
    value: float | None


@dataclass(frozen=True)
class Outcome:
    """How a trial ended and what it took. ``None`` is unknown, never zero.

    Attributes:
        status: Any but ``DISPATCHED``.
        reason: One sentence for people.
        finished_at: RFC 3339.
        startup_s: Launch to first step or report.
        time_s: Start of training to the target or, if it was not reached, to the end.
        energy_j: Joules over the same span.
        energy_source: Where they come from.
        max_power_w: Maximum power summed over the job's devices.
        cost_j: eta_knob * energy_j + (1 - eta_knob) * max_power_w * time_s.
        epochs: Epochs completed over the same span.
        steps: Optimizer steps of rank 0 in the whole run.
        best_metric: Best finite value reported in the whole run.
        curve: The metric after every epoch, in order.
        warnings: Sentences that a user should read.
    """

    status: TrialStatus
    reason: str
    finished_at: str
    startup_s: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    max_power_w: float | None = None
    cost_j: float | None = None
    epochs: int | None = None
    steps: int | None = None
    best_metric: float | None = None
    curve: tuple[CurvePoint, ...] = ()
    warnings: tuple[str, ...] = ()


# Of the columns of a curve: epoch, time_s, energy_j, value.
_COLUMN_TYPES: tuple[set[type], ...] = (
    {int},
    {int, float},
    {int, float, type(None)},
    {int, float, type(None)},
)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run of one arm. Field order is the order of the stable JSON.

    The first 23 fields stay as they are for programs that read them; the rest came later. Units
    are in the names; ``None`` is unknown.
    """

    trial: str
    job: str
    recurrence: int
    attempt: int
    status: TrialStatus = TrialStatus.DISPATCHED
    reason: str | None = None
    global_batch_size: int
    power_limit_w: float | None = None
    learning_rate: float | None = None
    world_size: int
    gpu_model: str | None = None
    gpu_count: int = 0
    started_at: str
    startup_s: float | None = None
    time_s: float | None = None
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    max_power_w: float | None = None
    cost_j: float | None = None
    epochs: int | None = None
    metric: str
    best_metric: float | None = None
    run_dir: str
    stage: Stage
    why: str
    mode: str
    target: float
    max_epochs: int
    eta_knob: float
    default_batch_size: int | None = None
    finished_at: str | None = None
    steps: int | None = None
    curve: tuple[CurvePoint, ...] = ()
    warnings: tuple[str, ...] = ()

    def finish(self, outcome: Outcome) -> Trial:
        """Return this trial with its outcome.

        Raises:
            ValueError: If the trial is finished already, or the outcome is not.
        """
        if self.status.finished:
            raise ValueError(f"trial {self.trial} is {self.status.value} already and never changes")
        if not outcome.status.finished:
            raise ValueError(f"an outcome of {self.trial} cannot be {outcome.status.value}")
        values = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
        return dataclasses.replace(self, **values)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; curve points become ``[epoch, time_s, energy_j, value]``."""
        record: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                value = value.value
            elif field.name == "curve":
                value = [list(point) for point in value]
            elif isinstance(value, tuple):
                value = list(value)
            record[field.name] = value
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trial:
        """Read what ``to_json`` wrote. Fields that this version does not know are ignored.

        Raises:
            ValueError: If a field is missing or has the wrong type.
        """
        decoders = _decoders()
        try:
            return cls(**{n: decoders[n](value) for n, value in record.items() if n in decoders})
        except (TypeError, OverflowError) as error:
            raise ValueError(f"not a trial: {error}") from error


@functools.cache
def _decoders() -> dict[str, Callable[[Any], Any]]:
    """Return what reads each field of a trial; made once, histories hold thousands of trials."""
    kinds = typing.get_type_hints(Trial)
    decoders = {f.name: _decoder(f.name, kinds[f.name]) for f in dataclasses.fields(Trial)}
    return decoders | {"curve": _decode_curve, "warnings": _decode_warnings}


def _decoder(name: str, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type of any form
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    expected, optional = options[0], type(None) in options

    def decode(value: Any) -> Any:  # noqa: ANN401 - JSON is any
        if value is None and optional:
            return None
        if expected is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if type(value) is expected and expected is not float:
            return value
        if issubclass(expected, Enum):
            return expected(value)
        raise ValueError(f"not a trial: {name} is {value!r}")

    return decode


def _decode_curve(rows: Any) -> tuple[CurvePoint, ...]:  # noqa: ANN401 - JSON is any
    # By columns and before they become points: a history holds 40,000 of them, and checking each
    # point takes as long as parsing the file.
    for column, types_ in zip(zip(*rows, strict=True), _COLUMN_TYPES, strict=True) if rows else ():
        if not set(map(type, column)) <= types_ or not all(
            map(math.isfinite, filter(None, column))
        ):
            raise ValueError("a point of the curve is not a measurement")
    return tuple(map(CurvePoint._make, rows))


def _decode_warnings(texts: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON is any
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise ValueError("a warning is not a sentence")
    return tuple(texts)
