"""Amounts that may be unknown: sums, medians, and totals by job, month or GPU."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from zeusrun.analysis.estimates import MOST, group_by, is_other
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.clock import local_time
from zeusrun.trial import EnergySource, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from zeusrun.trial import Trial


_SAME_S = 1e-3  # times of one moment differ in their last digits


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; ``None`` if nothing is."""
    return _over_known(sum, values)


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; ``None`` if nothing is."""
    return _over_known(statistics.median, values)


def _over_known(
    sum_up: Callable[[list[float]], float], values: Iterable[float | None]
) -> float | None:
    known = [value for value in values if value is not None]
    amount = sum_up(known) if known else math.nan
    return amount if math.isfinite(amount) else None  # else it comes from damaged records


def sum_attempts(trials: Iterable[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """Return the sum over attempts; ``None`` if that of one that has trained is unknown."""
    found = [
        amount
        for trial in trials
        if (amount := value(trial)) is not None or not never_trained(trial)
    ]
    return None if None in found else sum_known(found)


def find_currency(trials: Sequence[Trial]) -> str | None:
    """Return the currency of the prices of attempts; ``None`` without one, or with several."""
    currencies = {trial.currency for trial in trials if trial.price is not None}
    return currencies.pop() if len(currencies) == 1 else None


def never_trained(trial: Trial) -> bool:
    """Whether a run ended before its first optimizer step."""
    return trial.time_s is None and not trial.whole_steps


def time_after_target(trial: Trial) -> float | None:
    """Return for how many seconds a run trained on after its target; ``None`` if it did not."""
    if trial.status is not TrialStatus.REACHED or None in (trial.time_s, trial.whole_time_s):
        return None
    more_s = (trial.whole_time_s or 0.0) - (trial.time_s or 0.0)
    return more_s if more_s > _SAME_S else None


def size_label(trial: Trial) -> str:
    """Return the batch size by which a run is grouped: adaptive runs are apart from fixed ones."""
    size = str(trial.global_batch_size)
    return size if trial.variant is None else f"{size} {trial.variant}"


def lost_j(trials: Sequence[Trial], proven: Collection[int], *, by_energy: bool) -> float | None:
    """Return what attempts took that ended without a model, and the default would not have taken.

    A batch size of ``proven`` has reached the target before: that it crashes or is cancelled is not
    its fault, and would have happened to the default, too. Joules of cost, or of energy if
    ``by_energy``, without interruptions. ``None`` if that of one is unknown, or others disturbed
    it.
    """
    lost = [
        as_undisturbed(trial)
        for trial in trials
        if (is_other(trial) or (trial.default_batch_size and trial.status is TrialStatus.STOPPED))
        and trial.status is not TrialStatus.REACHED
        and not (_ended_by_chance(trial) and trial.global_batch_size in proven)
        and not never_trained(trial)
    ]
    taken = [
        None if trial.shared else trial.energy_j if by_energy else trial.cost_j for trial in lost
    ]
    known = [joules for joules in taken if joules is not None and 0 <= joules < MOST]
    return math.fsum(known) if len(known) == len(taken) else None


def _ended_by_chance(trial: Trial) -> bool:
    by_chance = {TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.LOST}
    return trial.status in by_chance and trial.stage is not Stage.SPEED_CHECK


def rate_of(trials: Sequence[Trial], amounts: Sequence[float | None]) -> float | None:
    """Return the amount for a joule, by the attempts of a recurrence with energy.

    ``amounts`` are those of the attempts; ``None`` if one with energy has none.
    """
    pairs = [
        (trial.energy_j, _known(amount))
        for trial, amount in zip(trials, amounts, strict=True)
        if trial.energy_j
    ]
    total_j = sum(energy_j for energy_j, _ in pairs)
    if not total_j or any(amount is None for _, amount in pairs):
        return None
    return _known(sum(amount or 0.0 for _, amount in pairs) / total_j)


def _known(amount: float | None) -> float | None:
    """Return an amount; ``None`` if it is unknown, or comes from a damaged record."""
    return amount if amount is not None and abs(amount) < MOST else None


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
    groups = group_by(trials, lambda trial: _name(trial, group))
    return [add_up(name, same) for name, same in sorted(groups.items())]


def add_up(name: str, trials: Sequence[Trial]) -> Total:
    """Return the total of some runs."""
    priced = [trial for trial in trials if trial.price is not None]
    by_currency = group_by(priced, lambda trial: trial.currency or "")
    prices = {name: sum_known(trial.price for trial in same) for name, same in by_currency.items()}
    trained = [trial for trial in trials if trial.time_s is not None or trial.whole_steps]
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
