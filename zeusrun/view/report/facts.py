"""What a report says of a job, computed from its trials. Pure."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.cost_baseline import has_cost, setting
from zeusrun.analysis.cost_shifts import describe_shifts
from zeusrun.analysis.net_amounts import NetAmounts, find_net_amounts, never_trained
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource, Stage, TrialStatus, is_baseline
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence

    from zeusrun.analysis.savings import Saving
    from zeusrun.trial import Trial

_CURVES = 8  # of each batch size, the newest
_POINTS = 150  # of a curve
_ENDED_SHORT = frozenset({TrialStatus.MISSED, TrialStatus.STOPPED, TrialStatus.OOM})
_CRASHED = frozenset({TrialStatus.FAILED, TrialStatus.LOST})
_FAILURES = _ENDED_SHORT | _CRASHED


class Size(NamedTuple):
    """A batch size as runs are grouped: adaptive runs are apart from those that keep it."""

    batch_size: int
    variant: str | None = None

    @property
    def label(self) -> str:
        """How people read it."""
        return str(self.batch_size) if self.variant is None else f"{self.batch_size} {self.variant}"


@dataclass(frozen=True)
class RecurrenceFacts:
    """One recurrence: the sums of its attempts, and against the default. ``None``: unknown."""

    recurrence: int
    trial: str  # the last attempt
    started_at: str
    size: int  # index of the batch size of its last attempt
    attempts: int
    status: str
    cost_j: float | None
    energy_j: float | None
    time_s: float | None
    epochs: int | None  # of the last attempt
    saved_share: float | None
    saved_j: float | None
    default_j: float | None  # what the default costs
    price: float | None
    currency: str | None
    carbon_g: float | None


@dataclass(frozen=True)
class SizeFacts:
    """All runs with a batch size; costs of runs that can be compared with the newest one."""

    label: str
    batch_size: int
    variant: str | None
    default: bool
    runs: int
    share: float  # of all runs
    reached: int
    costs_j: tuple[float, ...]  # of the runs that reached the target
    failed_j: tuple[float, ...]  # of the others: lower bounds
    cost_j: float | None  # medians, of the runs that reached the target
    energy_j: float | None
    time_s: float | None
    epochs: float | None
    noise_scale: float | None  # median of all runs
    power_limit_w: float | None  # median


@dataclass(frozen=True)
class CurveFacts:
    """A learning curve; ``taken`` is energy in joules or, if unknown, time in seconds."""

    trial: str
    size: int
    status: str
    best: float | None
    epochs: tuple[float, ...]
    taken: tuple[float, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class FailureFacts:
    """An attempt that did not reach the target."""

    trial: str
    started_at: str
    label: str
    status: str
    reason: str
    cost_j: float | None


@dataclass(frozen=True)
class OverheadFacts:
    """What zeusrun itself took in one way. ``None``: unknown, or not apart."""

    name: str
    count: int
    time_s: float | None
    energy_j: float | None
    cost_j: float | None


@dataclass(frozen=True)
class JobFacts:
    """Everything that a report says of a job, oldest first."""

    job: str
    metric: str
    mode: str
    target: float
    eta_knob: float
    default: int | None
    hardware: str  # of the newest run
    runs: int
    reached: int
    first_at: str | None
    last_at: str | None
    since: str | None  # when the first compared recurrence began
    compared: int
    explored: bool  # whether another batch size than the default has run
    saved_share: float | None  # median of the compared recurrences
    net_cost_j: float
    pays_back_in: int | None
    net: NetAmounts
    energy_j: float | None  # of all runs, as are the next two
    money: Mapping[str, float] = field(default_factory=dict)
    carbon_g: float | None = None
    energy_sources: tuple[str, ...] = ()
    unmeasured: int = 0  # runs that trained, and whose energy is unknown
    by_energy: bool = True  # whether curves are drawn against energy
    left_out: int = 0  # runs whose cost cannot be compared with that of the newest run
    recurrences: tuple[RecurrenceFacts, ...] = ()
    sizes: tuple[SizeFacts, ...] = ()
    curves: tuple[CurveFacts, ...] = ()
    failures: tuple[FailureFacts, ...] = ()
    overhead: tuple[OverheadFacts, ...] = ()
    total_cost_j: float | None = None
    remarks: tuple[str, ...] = ()  # sentences on what has changed


def build_facts(job: str, trials: Sequence[Trial]) -> JobFacts:
    """Return the facts of a job from its trials, oldest first; at least one has finished."""
    savings = find_savings(trials)
    net = find_net_amounts(trials, savings)
    trials = [trial for trial in trials if trial.status.finished]
    newest = trials[-1]
    shares = [saving.share for saving in savings.by_trial.values()]
    starts = {trial.trial: trial.started_at for trial in trials}
    sizes = sorted({size_of(trial) for trial in trials}, key=lambda size: (size[0], size[1] or ""))
    index = {size: at for at, size in enumerate(sizes)}
    usual = next((setting(trial) for trial in reversed(trials) if has_cost(trial)), None)
    comparable = {t.trial for t in trials if usual is None or setting(t) == usual}
    money: defaultdict[str, float] = defaultdict(float)
    for trial in trials:
        if trial.price is not None and trial.currency is not None:
            money[trial.currency] += trial.price
    by_energy = any(point.energy_j is not None for trial in trials for point in trial.curve)
    return JobFacts(
        job=job,
        metric=newest.metric,
        mode=newest.mode,
        target=newest.target,
        eta_knob=newest.eta_knob,
        default=newest.default_batch_size,
        hardware=hardware(newest),
        runs=len(trials),
        reached=sum(trial.status is TrialStatus.REACHED for trial in trials),
        first_at=trials[0].started_at,
        last_at=newest.started_at,
        since=next((starts[name] for name in savings.by_trial), None),
        compared=len(shares),
        explored=savings.explored,
        saved_share=statistics.median(shares) if shares else None,
        net_cost_j=savings.net_j,
        pays_back_in=savings.pays_back_in,
        net=net,
        energy_j=_sum(trial.energy_j for trial in trials),
        money=dict(money),
        carbon_g=_sum(trial.carbon_g for trial in trials),
        energy_sources=tuple(
            source.value for source in EnergySource if source in {t.energy_source for t in trials}
        ),
        unmeasured=sum(t.energy_j is None and not never_trained(t) for t in trials),
        by_energy=by_energy,
        left_out=sum(has_cost(trial) and trial.trial not in comparable for trial in trials),
        recurrences=_recurrences(trials, index, savings.by_trial),
        sizes=tuple(
            _size(size, [t for t in trials if size_of(t) == size], len(trials), comparable)
            for size in sizes
        ),
        curves=tuple(_curves(trials, index, by_energy=by_energy)),
        failures=tuple(_failure(trial) for trial in trials if trial.status in _FAILURES),
        overhead=_overhead(trials),
        total_cost_j=_sum(trial.cost_j for trial in trials),
        remarks=tuple(describe_shifts(trials)),
    )


def size_of(trial: Trial) -> Size:
    """Return the batch size of a run, as runs are grouped."""
    return Size(trial.global_batch_size, trial.variant)


def hardware(trial: Trial) -> str:
    """Return what a run trained on: ``8 x NVIDIA H100``, ``CPU, 2 ranks``."""
    if trial.gpu_model is not None and trial.gpu_count:
        return f"{trial.gpu_count} x {trial.gpu_model}"
    return f"CPU, {plural(trial.world_size, 'rank')}"


def _recurrences(
    trials: Sequence[Trial], index: Mapping[Size, int], savings: Mapping[str, Saving]
) -> tuple[RecurrenceFacts, ...]:
    by_number: defaultdict[int, list[Trial]] = defaultdict(list)
    for trial in trials:
        by_number[trial.recurrence].append(trial)
    found = []
    for number, own in by_number.items():
        last = own[-1]
        saving = savings.get(last.trial)
        currencies = {trial.currency for trial in own if trial.price is not None}
        currency = currencies.pop() if len(currencies) == 1 else None
        found.append(
            RecurrenceFacts(
                recurrence=number,
                trial=last.trial,
                started_at=own[0].started_at,
                size=index[size_of(last)],
                attempts=len(own),
                status="forgotten" if last.forgotten else last.status.value,
                cost_j=_total(own, lambda trial: trial.cost_j),
                energy_j=_total(own, lambda trial: trial.energy_j),
                time_s=_total(own, lambda trial: trial.time_s),
                epochs=last.epochs,
                saved_share=None if saving is None or not saving.explored else saving.share,
                saved_j=None if saving is None else saving.saved_j,
                default_j=None if saving is None else saving.default_j,
                price=_total(own, lambda trial: trial.price) if currency else None,
                currency=currency,
                carbon_g=_total(own, lambda trial: trial.carbon_g),
            )
        )
    return tuple(found)


def _size(size: Size, own: Sequence[Trial], runs: int, comparable: Container[str]) -> SizeFacts:
    costly = [trial for trial in own if trial.trial in comparable and not trial.forgotten]
    done = [trial for trial in costly if has_cost(trial)]
    failed = [trial for trial in costly if trial.status in _ENDED_SHORT and trial.cost_j]
    return SizeFacts(
        label=size.label,
        batch_size=size.batch_size,
        variant=size.variant,
        default=size.batch_size == own[-1].default_batch_size and size.variant is None,
        runs=len(own),
        share=len(own) / runs,
        reached=sum(trial.status is TrialStatus.REACHED for trial in own),
        costs_j=tuple(trial.cost_j for trial in done if trial.cost_j is not None),
        failed_j=tuple(trial.cost_j for trial in failed if trial.cost_j is not None),
        cost_j=_median(trial.cost_j for trial in done),
        energy_j=_median(trial.energy_j for trial in done),
        time_s=_median(trial.time_s for trial in done),
        epochs=_median(trial.epochs for trial in done),
        noise_scale=_median(trial.critical_batch_size for trial in own),
        power_limit_w=_median(trial.power_limit_w for trial in done),
    )


def _curves(
    trials: Sequence[Trial], index: Mapping[Size, int], *, by_energy: bool
) -> Iterator[CurveFacts]:
    """Yield the newest curves of each batch size, oldest first."""
    drawn: Counter[Size] = Counter()
    newest = []
    for trial in reversed(trials):
        if len(trial.curve) > 1 and trial.metric == trials[-1].metric:
            drawn[size_of(trial)] += 1
            if drawn[size_of(trial)] <= _CURVES:
                newest.append(trial)
    for trial in reversed(newest):
        step = math.ceil(len(trial.curve) / _POINTS)
        first = 0 if is_baseline(trial.curve[0]) or trial.curve[0].epoch else 1
        points = [
            (float(point.epoch + first), taken, point.value)
            for point in (*trial.curve[:-1:step], trial.curve[-1])
            if point.value is not None
            and (taken := point.energy_j if by_energy else point.time_s) is not None
        ]
        if len(points) > 1:
            epochs, taken_by, values = zip(*points, strict=True)
            yield CurveFacts(
                trial.trial,
                index[size_of(trial)],
                trial.status.value,
                trial.best_metric,
                epochs,
                taken_by,
                values,
            )


def _failure(trial: Trial) -> FailureFacts:
    return FailureFacts(
        trial.trial,
        trial.started_at,
        size_of(trial).label,
        trial.status.value,
        trial.reason or "",
        trial.cost_j,
    )


def _overhead(trials: Sequence[Trial]) -> tuple[OverheadFacts, ...]:
    checks = [
        trial
        for trial in trials
        if trial.stage is Stage.SPEED_CHECK and trial.status is TrialStatus.CANCELLED
    ]
    probed = [trial for trial in trials if trial.profiling_cost_j is not None]
    started = [trial.startup_s for trial in trials]
    rows = (
        OverheadFacts(
            "start-up of the runs (imports, rendezvous, first batch)",
            sum(seconds is not None for seconds in started),
            _sum(started),
            None,
            None,
        ),
        _taken("speed checks after which another batch size ran", checks),
        OverheadFacts(
            "probes of power limits",
            len(probed),
            None,
            None,
            _sum(trial.profiling_cost_j for trial in probed),
        ),
        _taken(
            "attempts that ended without the target",
            [trial for trial in trials if trial.status in _ENDED_SHORT],
        ),
        _taken(
            "attempts that crashed or were lost",
            [trial for trial in trials if trial.status in _CRASHED],
        ),
    )
    return tuple(row for row in rows if row.count)


def _taken(name: str, trials: Sequence[Trial]) -> OverheadFacts:
    return OverheadFacts(
        name,
        len(trials),
        _sum(trial.time_s for trial in trials),
        _sum(trial.energy_j for trial in trials),
        _sum(trial.cost_j for trial in trials),
    )


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _total(own: Sequence[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """Return the sum over attempts; ``None`` if that of one that trained is unknown."""
    found = [value(trial) for trial in own if not never_trained(trial)]
    return None if None in found else _sum(found)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
