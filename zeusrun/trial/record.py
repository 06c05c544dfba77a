"""A trial and its outcome, as they are stored and compared. Frozen values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

from zeusrun.reasons import ReasonCode, Stall  # noqa: TC001 - read_fields needs it
from zeusrun.record_json import read_fields, write_fields
from zeusrun.trial.values import (
    BY_RANKS,
    CurvePoint,
    EnergySource,
    Hardware,
    HostShare,
    Interruption,
    NoisePoint,
    PowerPoint,
    SizeChange,
    Stage,
    SyncChange,
    TrialStatus,
    WorldChange,
)


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What a training took and showed. ``None`` is unknown, never zero.

    The span that counts is from the start of training to the moment the target was first reached,
    else to the last optimizer step or report, whichever is later.
    """

    startup_s: float | None = None  # from launch to the start of training
    time_s: float | None = None  # of the span, as are energy, cost and epochs
    energy_j: float | None = None
    energy_source: EnergySource | None = None
    max_power_w: float | None = None  # summed over the job's devices
    cost_j: float | None = None  # see ``cost.cost_j``
    epochs: int | None = None
    steps: int | None = None  # of rank 0 in the span
    best_metric: float | None = None  # the best finite value in the whole run
    curve: tuple[CurvePoint, ...] = ()
    power_profile: tuple[PowerPoint, ...] = ()
    power_limit_w: float | None = None  # per GPU, most of the span; ``None``: as dispatched
    energy_counter_j: float | None = None  # over the span, by the devices' counters
    energy_integrated_j: float | None = None  # over the span, by integrating sampled power
    # What trying other limits cost above holding the chosen one: in ``cost_j``, not the arm's.
    profiling_cost_j: float | None = None
    shared: bool | None = None  # whether others used the job's GPUs, or its CPUs to their full
    shutdown_s: float | None = None  # from the end of the training to the end of the processes
    observed_batch_size: int | None = None  # if it is not the trial's, the trial teaches nothing
    unapplied: bool = False  # nor if nothing took the chosen one: the script trained with its own
    noise_curve: tuple[NoisePoint, ...] = ()
    gradient_variance: float | None = None  # of a rank's gradient; the last moving average
    gradients_of: str | None = None  # how they were measured; see ``Watched.how``
    batch_sizes: tuple[SizeChange, ...] = ()  # of a run that adapted it
    world_sizes: tuple[WorldChange, ...] = ()  # of an elastic run that changed it
    syncs: tuple[SyncChange, ...] = ()  # of a run whose ranks changed how they agree
    price: float | None = None  # of ``energy_j``, with what held while it ran, in ``currency``
    currency: str | None = None
    carbon_g: float | None = None  # grams of CO2 equivalent; both include ``pue``
    pue: float | None = None  # energy of the site over that of the devices
    cause: str | None = None  # of a crash, without ranks, numbers and paths, to compare crashes
    warnings: tuple[str, ...] = ()  # sentences for people
    interruptions: tuple[Interruption, ...] = ()  # within the span
    samples: int | None = None  # that the optimizer consumed up to the last report of the span
    progress: float | None = None  # these in epochs; ``None``: the data have no known size
    by_samples: tuple[CurvePoint, ...] = ()  # see ``Trial``
    by_reports: bool = False  # whether its epochs are only the numbers of its reports
    continued: bool = False  # whether the script went on from a checkpoint of another run
    unclear: bool = False  # whether an interrupted training went on or began anew is unknown
    reason_code: ReasonCode | None = None  # what ``reason`` says, for programs
    stalls: tuple[Stall, ...] = ()
    hosts: tuple[HostShare, ...] = ()  # of a run on several
    # The same of the whole training, which goes on after the target with ``on_target: continue``.
    whole_time_s: float | None = None
    whole_energy_j: float | None = None
    whole_epochs: int | None = None
    whole_steps: int | None = None
    whole_samples: int | None = None
    whole_progress: float | None = None


@dataclass(frozen=True)
class Outcome(_Taken):
    """How a trial ended and what it took."""

    status: TrialStatus  # any but ``DISPATCHED``
    reason: str  # one sentence for people
    finished_at: str  # RFC 3339

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values, as ``Trial.to_json`` does."""
        return write_fields(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Outcome:
        """Read what ``to_json`` wrote. Fields that this version does not know are ignored.

        Raises:
            ValueError: If a field is missing or has the wrong type.
        """
        return read_fields(cls, record, "an outcome")


@dataclass(frozen=True, kw_only=True)
class _Dispatched:
    """What is known of a trial that begins. Its fields begin the stable JSON, in this order.

    Those of ``_Taken`` are here only for that order.
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
    preemptions: int = 0
    forgotten: bool = False
    host: str | None = None
    variant: str | None = None
    micro_batch_size: int | None = None
    uuid: str
    fingerprint: dict[str, str] | None = field(default=None, hash=False)
    host_count: int = 1
    allocation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(_Taken, _Dispatched):
    """One training run of one arm.

    ``None`` is unknown. ``host`` is the machine of its launcher, and ``allocation`` its job of a
    scheduler, such as ``slurm:1234``. ``variant`` says how the batch size changed during the run;
    a policy learns nothing from runs of another one. ``micro_batch_size``: samples of a rank in a
    forward pass, where gradients are accumulated. ``uuid`` stays the same if a shared history
    numbers the trial later. ``fingerprint``: a hash of each part of the training; two joined by
    ``+`` if the part changed while it was preempted. ``by_samples``: where the metric is reported
    within epochs, the curve with samples for epochs.
    """

    @property
    def last_batch_size(self) -> int:
        """The batch size at its end: the chosen one, or what that has become."""
        grows = self.batch_sizes and self.variant != BY_RANKS  # on each rank, that stays the same
        return self.batch_sizes[-1].batch_size if grows else self.global_batch_size

    @property
    def hardware(self) -> Hardware:
        """What it trains on."""
        return Hardware(self.world_size, self.gpu_model, self.gpu_count, self.host_count)

    @property
    def teaches(self) -> bool:
        """Whether a policy may learn from it about its batch size."""
        arrived = self.observed_batch_size in {None, self.global_batch_size} and not self.unapplied
        return arrived and not self.forgotten

    def finish(self, outcome: Outcome) -> Trial:
        """Return this trial with its outcome; the same outcome again changes nothing.

        A preempted trial may still be cancelled, and a late result replaces LOST. Raises
        ``ValueError`` if the trial is finished already, or the outcome is not.
        """
        if not outcome.status.finished:
            raise ValueError(f"an outcome of {self.trial} cannot be {outcome.status.value}")
        values = {f.name: getattr(outcome, f.name) for f in fields(outcome)}
        values["finished_at"] = max(outcome.finished_at, self.started_at)  # the clock was set back
        stay = {name for name in ("power_limit_w", "hosts") if not values[name]}
        ended = replace(self, **{name: values[name] for name in values.keys() - stay})
        is_cancelled = (self.status, ended.status) == (TrialStatus.PREEMPTED, TrialStatus.CANCELLED)
        may_change = self.status in {TrialStatus.DISPATCHED, TrialStatus.LOST} or is_cancelled
        if ended != self and not may_change:
            raise ValueError(f"trial {self.trial} is {self.status.value} already and never changes")
        return ended

    @property
    def outcome(self) -> Outcome:
        """How this trial ended and what it took."""
        return Outcome(**{each.name: getattr(self, each.name) for each in fields(Outcome)})

    def ended_as(self, status: TrialStatus, code: ReasonCode | None, why: str, at: str) -> Outcome:
        """Return an outcome with what this trial has taken so far."""
        return replace(self.outcome, status=status, reason_code=code, reason=why, finished_at=at)

    def resume(self, at: str, host: str | None = None, allocation: str | None = None) -> Trial:
        """Return this preempted trial as one that is running again; others raise ``ValueError``.

        It keeps what it has taken so far. The outcome that finishes it must include that.
        """
        if self.status is not TrialStatus.PREEMPTED:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot go on")
        return replace(
            self,
            status=TrialStatus.DISPATCHED,
            reason=None,
            reason_code=None,
            started_at=at,
            host=host,
            allocation=allocation,
            finished_at=None,
            preemptions=self.preemptions + 1,
        )

    def forget(self, *, forgotten: bool) -> Trial:
        """Return this trial, marked so that policies ignore it, or no longer marked.

        Raises ``ValueError`` if it has not finished.
        """
        if not self.status.finished:
            raise ValueError(f"trial {self.trial} is {self.status.value} and cannot be forgotten")
        return replace(self, forgotten=forgotten)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values; curve points become ``[epoch, time_s, energy_j, value]``."""
        return write_fields(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Trial:
        """Read what ``to_json`` wrote; raises ``ValueError`` as ``Outcome.from_json`` does."""
        return read_fields(cls, record, "a trial")
