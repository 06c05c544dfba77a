"""A trial and its outcome: frozen values that are stored, compared and joined."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Any

import zeusrun.trial.joiners as join
from zeusrun.cost import cost_j
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
    WorkersChange,
    WorldChange,
    is_baseline,
)

STORED = {"stored": True}
"""The metadata of a field that databases copy into a column, for searches and sums."""


def taken(
    joiner: join.Joiner, *, default: object = None, signed: bool = False, stored: bool = False
) -> Any:  # noqa: ANN401 - the type is that of the field
    """Declare a field of ``_Taken`` and its joiner.

    ``signed``: whether the amount may be negative. ``stored``: see ``STORED``.
    """
    return field(default=default, metadata={"joiner": joiner, "signed": signed, "stored": stored})


@dataclass(frozen=True, kw_only=True)
class _Taken:
    """What a training took and showed. ``None`` is unknown, never zero.

    The span that counts is from the start of training to the moment the target was first reached,
    else to the last optimizer step or report, whichever is later. The joiners are in
    ``joiners.py``; a field without a joiner has the value of the last part.
    """

    startup_s: float | None = taken(join.total)  # from launch to the start of training
    # Of ``time_s``: no batch was there for the next step; ``None``: no loader was seen.
    data_wait_s: float | None = taken(join.trained)
    evaluation_wait_s: float | None = taken(join.trained)  # the same of other loaders
    # Over the span, as are energy, cost and epochs.
    time_s: float | None = taken(join.trained, stored=True)
    energy_j: float | None = taken(join.metered, stored=True)
    energy_source: EnergySource | None = taken(join.weaker, stored=True)  # noqa: RUF009 - a field
    max_power_w: float | None = taken(join.last_measured)  # summed over the job's devices
    cost_j: float | None = taken(join.weighed, stored=True)  # see ``cost.cost_j``
    epochs: int | None = taken(join.counted)
    steps: int | None = taken(join.of_span)  # of rank 0 in the span
    best_metric: float | None = taken(join.best)  # the best finite value in the whole run
    curve: tuple[CurvePoint, ...] = taken(join.curve, default=())
    power_profile: tuple[PowerPoint, ...] = taken(join.last_known, default=())
    # Of each GPU, for most of the span; ``None``: the limit with which the trial started.
    power_limit_w: float | None = taken(join.longer)
    energy_counter_j: float | None = taken(join.total)  # over the span, by the devices' counters
    energy_integrated_j: float | None = taken(join.total)  # the same, from sampled power
    # What trying other limits cost above holding the chosen one: in ``cost_j``, not the arm's.
    profiling_cost_j: float | None = taken(join.known_total, signed=True)
    # Whether other programs used the job's GPUs, or nearly all of its CPUs.
    shared: bool | None = taken(join.seen)
    # From the end of the training to the end of the processes.
    shutdown_s: float | None = taken(join.known_total)
    # If this is not the trial's batch size, policies ignore the trial.
    observed_batch_size: int | None = taken(join.last_known)
    # Whether the script did not use the chosen batch size; then policies ignore the trial, too.
    unapplied: bool = taken(join.last_known, default=False)
    noise_curve: tuple[NoisePoint, ...] = taken(join.noise, default=())
    # Variance of a rank's gradient: the last moving average.
    gradient_variance: float | None = taken(join.last_measured)
    gradients_of: str | None = taken(join.last_known)  # how they were measured; see ``Watched.how``
    batch_sizes: tuple[SizeChange, ...] = taken(join.sizes, default=())  # changes in the run
    # Changes of the number of ranks in an elastic run.
    world_sizes: tuple[WorldChange, ...] = taken(join.worlds, default=())
    # Numbers of workers of the loader, where the job file changes them.
    workers: tuple[WorkersChange, ...] = taken(join.workers, default=())
    # Changes of how the ranks synchronize.
    syncs: tuple[SyncChange, ...] = taken(join.syncs, default=())
    # Price of ``energy_j`` in ``currency``, by the tariff at the time of the run.
    price: float | None = taken(join.priced, stored=True)
    currency: str | None = taken(join.currency, stored=True)
    # Grams of CO2 equivalent; price and carbon include ``pue``.
    carbon_g: float | None = taken(join.metered, stored=True)
    pue: float | None = taken(join.common)  # energy of the site over that of the devices
    cause: str | None = None  # of a crash, without ranks, numbers and paths, to compare crashes
    warnings: tuple[str, ...] = taken(join.rows, default=())  # sentences for the user
    interruptions: tuple[Interruption, ...] = taken(join.interrupted, default=())  # within the span
    # Samples that the optimizer consumed up to the last report of the span.
    samples: int | None = taken(join.of_span)
    # ``samples`` in epochs; ``None``: the size of the data is unknown.
    progress: float | None = taken(join.of_span)
    by_samples: tuple[CurvePoint, ...] = taken(join.curve_by_samples, default=())  # see ``Trial``
    # Whether ``epochs`` only counts the reports.
    by_reports: bool = taken(join.last_known, default=False)
    # Whether the script continued from a checkpoint of another run.
    continued: bool = taken(join.last_known, default=False)
    # Whether it is unknown if an interrupted training continued or started again.
    unclear: bool = taken(join.last_known, default=False)
    reason_code: ReasonCode | None = None  # what ``reason`` says, for programs
    stalls: tuple[Stall, ...] = taken(join.rows, default=())
    hosts: tuple[HostShare, ...] = taken(join.shares, default=())  # of a run on several hosts
    # The same of the whole training, which goes on after the target with ``on_target: continue``.
    whole_time_s: float | None = taken(join.trained)
    whole_energy_j: float | None = taken(join.metered)
    whole_epochs: int | None = taken(join.counted)
    whole_steps: int | None = taken(join.known_total)
    whole_samples: int | None = taken(join.known_total)
    whole_progress: float | None = taken(join.known_total)


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

    trial: str = field(metadata=STORED)
    job: str = field(metadata=STORED)
    recurrence: int = field(metadata=STORED)
    attempt: int = field(metadata=STORED)
    status: TrialStatus = field(default=TrialStatus.DISPATCHED, metadata=STORED)
    reason: str | None = None
    global_batch_size: int = field(metadata=STORED)
    power_limit_w: float | None = None
    learning_rate: float | None = None
    world_size: int
    gpu_model: str | None = field(default=None, metadata=STORED)
    gpu_count: int = 0
    started_at: str = field(metadata=STORED)
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
    host: str | None = field(default=None, metadata=STORED)
    variant: str | None = None
    speed_variant: str | None = None
    micro_batch_size: int | None = None
    uuid: str = field(metadata=STORED)
    fingerprint: dict[str, str] | None = field(default=None, hash=False)
    host_count: int = 1
    allocation: str | None = None


@dataclass(frozen=True, kw_only=True)
class Trial(_Taken, _Dispatched):
    """One training run of one arm.

    ``None`` is unknown. ``host`` is the machine of its launcher, and ``allocation`` its job of a
    scheduler, such as ``slurm:1234``. ``variant`` says how the batch size changed during the run;
    a policy learns nothing from runs of another one, and no speed from one of another
    ``speed_variant``: how the loader gets its workers. ``micro_batch_size``: samples of a rank in a
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
    def best_workers(self) -> WorkersChange | None:
        """The loader workers at which the search has ended, else the fastest; ``None``: unknown.

        Numbers of which one died, and larger ones, are left out.
        """
        died = min((each.workers for each in self.workers if each.died), default=math.inf)
        fit = [each for each in self.workers if each.step_s is not None and each.workers < died]
        fastest = min(fit, key=lambda each: each.step_s or 0.0, default=None)
        return next((each for each in reversed(fit) if each.settled), fastest)

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
        finished_at = max(outcome.finished_at, self.started_at)  # if the clock was set back
        values = {**vars(outcome), "finished_at": finished_at}
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


def join_parts(trial: Trial, outcome: Outcome) -> Outcome:
    """Join the outcome of the last part of a trial with the parts before its preemptions.

    If the last part reports an epoch again, the earlier report no longer counts, because the
    script continued from an older checkpoint. The time and energy of both count.
    """
    if trial.preemptions and trial.time_s is not None:
        parts = join.Parts(trial, _without_restored(outcome))
        joiners = {each.name: each.metadata["joiner"] for each in fields(outcome) if each.metadata}
        joined = {name: joiner(parts, name) for name, joiner in joiners.items()}
        outcome = replace(outcome, **joined)
    return _without_empty_estimates(trial, outcome)


def _without_restored(outcome: Outcome) -> Outcome:
    """Remove the first point if it is an evaluation of the restored model."""
    if not outcome.curve or not is_baseline(outcome.curve[0]):
        return outcome
    points = tuple(point for point in outcome.by_samples if not is_baseline(point))
    return replace(outcome, curve=outcome.curve[1:], by_samples=points)


def _without_empty_estimates(trial: Trial, outcome: Outcome) -> Outcome:
    """Replace estimates of 0 J by unknown. CPU time counts in ticks of 10 ms."""
    if outcome.energy_source is not EnergySource.ESTIMATED:
        return outcome
    curve, by_samples = (
        tuple(point._replace(energy_j=point.energy_j or None) for point in points)
        for points in (outcome.curve, outcome.by_samples)
    )
    whole_j = outcome.whole_energy_j or None
    outcome = replace(outcome, curve=curve, by_samples=by_samples, whole_energy_j=whole_j)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    spent = ("energy_j", "energy_source", "price", "currency", "carbon_g")
    unknown: dict[str, Any] = dict.fromkeys(spent)
    return replace(outcome, cost_j=spent_j, **unknown)
