"""What the runs of a history took and cost altogether, by job, by month or by GPU model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zeusrun.analysis.amounts import sum_known
from zeusrun.clock import local_time
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.trial import Trial

Group: TypeAlias = Literal["job", "month", "gpu"]
NO_GPU = "no GPU"


@dataclass(frozen=True)
class Total:
    """Sums over runs that have ended. A run whose value is unknown is counted, not added.

    A run that never trained took no energy that zeusrun counts, so nothing of it is unknown.
    """

    name: str  # a job, a month such as 2026-11 or a GPU model
    runs: int
    time_s: float | None  # as energy, price and carbon; ``None`` if no run has a known value
    energy_j: float | None
    estimated_j: float  # the part of ``energy_j`` that a model estimated
    cost_j: float | None
    prices: Mapping[str, float]  # by currency
    carbon_g: float | None
    unknown: Mapping[str, int]  # runs that trained, but whose energy, price or carbon is unknown

    def to_json(self, group: Group) -> dict[str, Any]:
        """Return plain JSON values; the first one is named after the group."""
        values = {name: value for name, value in vars(self).items() if name != "name"}
        return {group: None if self.name == NO_GPU else self.name, **values}


def find_totals(trials: Iterable[Trial], group: Group) -> list[Total]:
    """Return the totals of trials that have ended; months oldest first, jobs and GPUs by name."""
    groups: dict[str, list[Trial]] = {}
    for trial in trials:
        groups.setdefault(_name(trial, group), []).append(trial)
    return [add_up(name, own) for name, own in sorted(groups.items())]


def add_up(name: str, trials: Sequence[Trial]) -> Total:
    """Return the total of some runs."""
    by_currency: dict[str, list[float]] = {}
    for trial in trials:
        if trial.price is not None:
            by_currency.setdefault(trial.currency or "", []).append(trial.price)
    prices = {currency: sum_known(own) for currency, own in by_currency.items()}
    trained = [trial for trial in trials if trial.time_s is not None or trial.steps]
    estimated = [trial for trial in trials if trial.energy_source is EnergySource.ESTIMATED]
    return Total(
        name,
        len(trials),
        time_s=sum_known(trial.time_s for trial in trials),
        energy_j=sum_known(trial.energy_j for trial in trials),
        estimated_j=sum_known(trial.energy_j for trial in estimated) or 0.0,
        cost_j=sum_known(trial.cost_j for trial in trials),
        prices={currency: price for currency, price in prices.items() if price is not None},
        carbon_g=sum_known(trial.carbon_g for trial in trials),
        unknown={
            "energy": sum(trial.energy_j is None for trial in trained),
            "price": sum(trial.price is None for trial in trained),
            "carbon": sum(trial.carbon_g is None for trial in trained),
        },
    )


def _name(trial: Trial, group: Group) -> str:
    if group == "job":
        return trial.job
    if group == "gpu":
        return trial.gpu_model or NO_GPU
    moment = trial.started_at
    if trial.preemptions and trial.finished_at is not None:
        moment = trial.finished_at  # of a continued run, only its last start is recorded
    month = local_time(moment)
    return moment[:7] if month is None else f"{month:%Y-%m}"
