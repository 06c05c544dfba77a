"""The values that travel through one submit: Decision, Outcome, Trial. All frozen."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class TrialStatus(str, Enum):
    """How a trial stands: ``DISPATCHED``, then one of the others. A preempted one may go on."""

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
    SPEED_CHECK = "look"  # only its speed is wanted at first; then the policy is asked again
    RETRY = "retry"
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
        bound: When the trial is hopeless; ``None`` for never.
    """

    global_batch_size: int
    stage: Stage
    why: str
    power_limit_w: float | None = None
    bound: Bound | None = None

    @property
    def cost_bound_j(self) -> float | None:
        """The cost at which a trial is stopped between epochs, too; ``None`` for none."""
        return None if self.bound is None else self.bound.cost_j


@dataclass(frozen=True)
class Bound:
    """What a trial may cost, and how fast it must come on.

    Attributes:
        cost_j: Cost past which it is hopeless.
        paces: Runs that reached the target: ``(epoch, value)`` wherever the best value rose, the
            last one at the target. A trial behind them is held to a smaller cost.
    """

    cost_j: float
    paces: tuple[tuple[tuple[int, float], ...], ...] = ()


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


def is_baseline(point: CurvePoint) -> bool:
    """Whether a first point is an evaluation before training: epoch 0, before the first step.

    A loop that counts its epochs from 0 reports its first one after steps.
    """
    return point.epoch == 0 and point.time_s <= 0


def epochs_of(curve: Sequence[CurvePoint]) -> int:
    """Return the epochs completed at the end of a curve, also for loops that count from 0."""
    return max(curve[-1].epoch, len(curve) - is_baseline(curve[0])) if curve else 0


class PowerPoint(NamedTuple):
    """Speed and power of training under a power limit.

    Attributes:
        power_limit_w: Watts per GPU; ``None`` where there is no limit to set.
        steps_per_s: Optimizer steps per second.
        power_w: Mean watts, summed over the job's GPUs.
    """

    power_limit_w: float | None
    steps_per_s: float
    power_w: float


@dataclass(frozen=True)
class Outcome:
    """How a trial ended and what it took. ``None`` is unknown, never zero.

    Attributes:
        status: Any but ``DISPATCHED``.
        reason: One sentence for people.
        finished_at: RFC 3339.
        startup_s: Launch to the start of training.
        time_s: Start of training to the target or, if it was not reached, to the last optimizer
            step or report, whichever is later.
        energy_j: Joules over the same span.
        energy_source: Where they come from.
        max_power_w: Maximum power summed over the job's devices.
        cost_j: eta_knob * energy_j + (1 - eta_knob) * max_power_w * time_s.
        epochs: Epochs completed over the same span.
        steps: Optimizer steps of rank 0 in the whole run.
        best_metric: Best finite value in the whole run.
        curve: The metric after every epoch.
        power_profile: What was measured under each power limit tried.
        power_limit_w: Watts per GPU in force for most of the same span; ``None``: as dispatched.
        energy_counter_j: Joules over the same span by the devices' counters.
        energy_integrated_j: Joules over the same span by integrating sampled power.
        profiling_cost_j: What trying other power limits cost more than holding the one chosen;
            part of ``cost_j``, and not charged to the batch size.
        shared: Whether processes that are not the job's used its GPUs; ``None`` if unknown.
        shutdown_s: Last step or report to the end of the processes; not part of ``time_s``.
        observed_batch_size: Samples per optimizer step as observed; ``None`` if they were not. If
            it differs from the trial's, nothing is learned from it.
        cause: Of a crash, without ranks, numbers and paths, so that crashes can be compared.
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
    power_profile: tuple[PowerPoint, ...] = ()
    power_limit_w: float | None = None
    energy_counter_j: float | None = None
    energy_integrated_j: float | None = None
    profiling_cost_j: float | None = None
    shared: bool | None = None
    shutdown_s: float | None = None
    observed_batch_size: int | None = None
    cause: str | None = None
    warnings: tuple[str, ...] = ()


MAX_COUNT = 1 << 53
"""Beyond it, a number of steps or ranks is a damaged file, and no float either."""
_NUMBER: set[type] = {int, float}
_EPOCH: set[type] = {int}
# Of the columns of a curve (epoch, time_s, energy_j, value) and of a power profile.
_CURVE_TYPES = (_EPOCH, _NUMBER, {*_NUMBER, type(None)}, {*_NUMBER, type(None)})
_PROFILE_TYPES = ({*_NUMBER, type(None)}, _NUMBER, _NUMBER)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One training run of one arm. Field order is the order of the stable JSON.

    The first 23 fields stay as they are for programs that read them; the rest came later. Units
    are in the names; ``None`` is unknown. ``host`` is the machine of its launcher. ``variant`` says
    how the batch size changed during the run; ``None`` if it was fixed. Runs of another variant
    are another kind of training: a policy learns nothing from them. ``micro_batch_size`` are the
    samples of a rank in a forward pass, where gradients were to be accumulated.
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
    power_profile: tuple[PowerPoint, ...] = ()
    energy_counter_j: float | None = None
    energy_integrated_j: float | None = None
    profiling_cost_j: float | None = None
    shared: bool | None = None
    cause: str | None = None
    preemptions: int = 0
    shutdown_s: float | None = None
    observed_batch_size: int | None = None
    forgotten: bool = False
    warnings: tuple[str, ...] = ()
    host: str | None = None
    variant: str | None = None
    micro_batch_size: int | None = None

    @property
    def teaches(self) -> bool:
        """Whether anything may be learned from it of its batch size."""
        return not self.forgotten and self.observed_batch_size in {None, self.global_batch_size}

    def finish(self, outcome: Outcome) -> Trial:
        """Return this trial with its outcome. A preempted one may still be cancelled.

        Raises:
            ValueError: If the trial is finished already, or the outcome is not.
        """
        is_cancelled = outcome.status is TrialStatus.CANCELLED
        if self.status.finished and not (self.status is TrialStatus.PREEMPTED and is_cancelled):
            raise ValueError(f"trial {self.trial} is {self.status.value} already and never changes")
        if not outcome.status.finished:
            raise ValueError(f"an outcome of {self.trial} cannot be {outcome.status.value}")
        values = {f.name: getattr(outcome, f.name) for f in dataclasses.fields(outcome)}
        if outcome.power_limit_w is None:
            del values["power_limit_w"]
        return dataclasses.replace(self, **values)

    def ended_as(self, status: TrialStatus, reason: str, finished_at: str) -> Outcome:
        """Return an outcome with what this trial has taken so far, and no more."""
        taken = {field.name: getattr(self, field.name) for field in dataclasses.fields(Outcome)}
        return Outcome(**{**taken, "status": status, "reason": reason, "finished_at": finished_at})

    def resume(self, started_at: str, host: str | None = None) -> Trial:
        """Return this preempted trial as one that is running again.

        What it has taken so far stays in it: time, energy, cost, epochs, curve. The outcome that
        it is finished with must include them.

        Raises:
            ValueError: If it was not preempted.
        """
        if self.status is not TrialStatus.PREEMPTED:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot go on")
        return dataclasses.replace(
            self,
            status=TrialStatus.DISPATCHED,
            reason=None,
            started_at=started_at,
            host=host,
            finished_at=None,
            preemptions=self.preemptions + 1,
        )

    def forget(self, *, forgotten: bool) -> Trial:
        """Return this trial marked as one that nothing is learned from, or no longer so.

        Raises:
            ValueError: If it has not ended.
        """
        if not self.status.finished:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot be forgotten")
        return dataclasses.replace(self, forgotten=forgotten)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; curve points become ``[epoch, time_s, energy_j, value]``."""
        record: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Enum):
                value = value.value
            elif field.name in {"curve", "power_profile"}:
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
    return decoders | {
        "curve": lambda rows: tuple(map(CurvePoint._make, _checked(rows, _CURVE_TYPES))),
        "power_profile": lambda rows: tuple(map(PowerPoint._make, _checked(rows, _PROFILE_TYPES))),
        "warnings": _decode_warnings,
    }


def _decoder(name: str, kind: Any) -> Callable[[Any], Any]:  # noqa: ANN401 - a type of any form
    options = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    expected, optional = options[0], type(None) in options

    def decode(value: Any) -> Any:  # noqa: ANN401 - JSON is any
        if value is None and optional:
            return None
        if expected is float and type(value) in (int, float) and math.isfinite(value):
            return float(value)
        if type(value) is expected and expected is not float:
            if expected is int and abs(value) > MAX_COUNT:
                raise ValueError(f"not a trial: {name} is a number of {len(str(value))} digits")
            return value
        if issubclass(expected, Enum):
            return expected(value)
        raise ValueError(f"not a trial: {name} is {value!r}")

    return decode


def _checked(rows: Any, kinds: Sequence[set[type]]) -> Any:  # noqa: ANN401 - JSON is any
    """Return the rows of a table if every column has the types it must have.

    By columns and before they become points: a history holds 40,000 of them, and checking each
    point takes as long as parsing the file.
    """
    for column, kind in zip(zip(*rows, strict=True), kinds, strict=True) if rows else ():
        if not set(map(type, column)) <= kind or not all(map(math.isfinite, filter(None, column))):
            raise ValueError("a point of the curve or of the power profile is not a measurement")
    return rows


def _decode_warnings(texts: Any) -> tuple[str, ...]:  # noqa: ANN401 - JSON is any
    if type(texts) is not list or not all(type(text) is str for text in texts):
        raise ValueError("a warning is not a sentence")
    return tuple(texts)
