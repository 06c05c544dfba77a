"""What a report says of a job, computed from its trials. Pure."""

from __future__ import annotations

import statistics
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.analysis.cost_baseline import has_cost, setting
from zeusrun.analysis.cost_shifts import describe_shifts
from zeusrun.analysis.net_amounts import NetAmounts, find_net_amounts, never_trained
from zeusrun.analysis.savings import find_savings
from zeusrun.trial import EnergySource, TrialStatus
from zeusrun.view.report.amounts import sum_known, total
from zeusrun.view.report.curves import CurveFacts, build_curves
from zeusrun.view.report.overhead import (
    FailureFacts,
    OverheadFacts,
    build_overhead,
    find_failures,
)
from zeusrun.view.report.sizes import Size, SizeFacts, build_size, size_of
from zeusrun.view.units import plural

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.analysis.savings import Saving
    from zeusrun.trial import Trial


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
    currencies = sorted({trial.currency for trial in trials if trial.currency is not None})
    money = {
        name: amount
        for name in currencies
        if (amount := sum_known(t.price for t in trials if t.currency == name)) is not None
    }
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
        energy_j=sum_known(trial.energy_j for trial in trials),
        money=money,
        carbon_g=sum_known(trial.carbon_g for trial in trials),
        energy_sources=tuple(
            source.value for source in EnergySource if source in {t.energy_source for t in trials}
        ),
        unmeasured=sum(t.energy_j is None and not never_trained(t) for t in trials),
        by_energy=by_energy,
        left_out=sum(has_cost(trial) and trial.trial not in comparable for trial in trials),
        recurrences=_recurrences(trials, index, savings.by_trial),
        sizes=tuple(
            build_size(size, [t for t in trials if size_of(t) == size], len(trials), comparable)
            for size in sizes
        ),
        curves=tuple(build_curves(trials, index, by_energy=by_energy)),
        failures=find_failures(trials),
        overhead=build_overhead(trials),
        total_cost_j=sum_known(trial.cost_j for trial in trials),
        remarks=tuple(describe_shifts(trials)),
    )


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
                cost_j=total(own, lambda trial: trial.cost_j),
                energy_j=total(own, lambda trial: trial.energy_j),
                time_s=total(own, lambda trial: trial.time_s),
                epochs=last.epochs,
                saved_share=None if saving is None or not saving.explored else saving.share,
                saved_j=None if saving is None else saving.saved_j,
                default_j=None if saving is None else saving.default_j,
                price=total(own, lambda trial: trial.price) if currency else None,
                currency=currency,
                carbon_g=total(own, lambda trial: trial.carbon_g),
            )
        )
    return tuple(found)
