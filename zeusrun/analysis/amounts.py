"""Amounts that may be unknown: sums, medians, totals by job, month or GPU; estimates with doubt."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from zeusrun.bandit.proof import as_undisturbed
from zeusrun.clock import local_time
from zeusrun.trial import EnergySource, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from zeusrun.trial import Trial

_Item = TypeVar("_Item")
_Key = TypeVar("_Key")
MOST = 1e30
"""A larger amount has diverged, or comes from a damaged record."""

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


def sum_attempts(own: Iterable[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """Return the sum over attempts; ``None`` if that of one that has trained is unknown."""
    found = [
        amount for trial in own if (amount := value(trial)) is not None or not never_trained(trial)
    ]
    return None if None in found else sum_known(found)


def find_currency(own: Sequence[Trial]) -> str | None:
    """Return the currency of the prices of attempts; ``None`` without one, or with several."""
    currencies = {trial.currency for trial in own if trial.price is not None}
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


def group_by(items: Iterable[_Item], key: Callable[[_Item], _Key]) -> dict[_Key, list[_Item]]:
    """Return items by what ``key`` returns for them, both in their order."""
    found: dict[_Key, list[_Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def find_ended(trials: Sequence[Trial]) -> list[list[Trial]]:
    """Return the attempts of each recurrence that has ended."""
    groups = group_by(trials, lambda trial: trial.recurrence)
    return [own for own in groups.values() if all(each.status.final for each in own)]


def is_forced(own: Sequence[Trial]) -> bool:
    """Whether the user chose a batch size of a recurrence."""
    return any(trial.stage is Stage.FORCED for trial in own)


def is_other(trial: Trial) -> bool:
    """Whether a trial had another batch size than the default."""
    return trial.default_batch_size not in {None, trial.global_batch_size}


def size_label(trial: Trial) -> str:
    """Return the batch size by which a run is grouped: adaptive runs are apart from fixed ones."""
    size = str(trial.global_batch_size)
    return size if trial.variant is None else f"{size} {trial.variant}"


def lost_j(own: Sequence[Trial], proven: Collection[int], *, by_energy: bool) -> float | None:
    """Return what attempts took that ended without a model, and the default would not have taken.

    A batch size of ``proven`` has reached the target before: that it crashes or is cancelled is not
    its fault, and would have happened to the default, too. Joules of cost, or of energy if
    ``by_energy``, without interruptions. ``None`` if that of one is unknown.
    """
    lost = [
        as_undisturbed(trial)
        for trial in own
        if (is_other(trial) or (trial.default_batch_size and trial.status is TrialStatus.STOPPED))
        and trial.status is not TrialStatus.REACHED
        and not (_ended_by_chance(trial) and trial.global_batch_size in proven)
        and not never_trained(trial)
    ]
    taken = [trial.energy_j if by_energy else trial.cost_j for trial in lost]
    known = [joules for joules in taken if joules is not None and 0 <= joules < MOST]
    return math.fsum(known) if len(known) == len(taken) else None


def _ended_by_chance(trial: Trial) -> bool:
    by_chance = {TrialStatus.FAILED, TrialStatus.CANCELLED, TrialStatus.LOST}
    return trial.status in by_chance and trial.stage is not Stage.SPEED_CHECK


def rate_of(own: Sequence[Trial], amounts: Sequence[float | None]) -> float | None:
    """Return the amount for a joule, by the attempts of a recurrence with energy.

    ``amounts`` are those of the attempts; ``None`` if one with energy has none.
    """
    pairs = [
        (trial.energy_j, _known(amount))
        for trial, amount in zip(own, amounts, strict=True)
        if trial.energy_j
    ]
    total_j = sum(energy_j for energy_j, _ in pairs)
    if not total_j or any(amount is None for _, amount in pairs):
        return None
    return _known(sum(amount or 0.0 for _, amount in pairs) / total_j)


def _known(amount: float | None) -> float | None:
    """Return an amount; ``None`` if it is unknown, or comes from a damaged record."""
    return amount if amount is not None and abs(amount) < MOST else None


@dataclass(frozen=True)
class Estimate:
    """An amount, and from where to where it lies in nine of ten cases."""

    value: float
    low: float
    high: float

    @property
    def is_shown(self) -> bool:
        """Whether it differs from 0 beyond doubt."""
        return self.low > 0 or self.high < 0

    def __neg__(self) -> Estimate:
        """Return what is lost where this is saved."""
        return Estimate(-self.value, -self.high, -self.low)


@dataclass(frozen=True)
class Savings:
    """What the recurrences saved that can be compared with the default: joules of cost.

    ``by_trial`` is what each is expected to have saved, exploring included, by the name of its last
    trial. It is negative for a loss: a recurrence without a model has lost what its attempts cost.
    It is empty, and the estimates are ``None``, where nothing can be compared.
    """

    ended: int  # recurrences that have ended, compared or not
    explored: bool  # whether zeusrun has ever chosen another batch size than the default
    by_trial: Mapping[str, Estimate] = field(default_factory=dict)
    shares: Mapping[str, Estimate] = field(default_factory=dict)  # the same, of the default's cost
    so_far: Sequence[float] = ()  # what all had saved by then, in the order of ``by_trial``
    default: int | None = None
    default_j: float | None = None  # expected cost of a run of the default
    default_runs: int = 0  # that show it
    in_use: int | None = None  # the batch size that was exploited last
    share: Estimate | None = None  # that a run with it saves of the cost of the default
    net: Estimate | None = None  # that all of them saved
    since: str | None = None  # when the first of them began
    note: str | None = None  # why nothing can be compared: a sentence

    def shown_share(self, trial: str) -> Estimate | None:
        """Return what a recurrence saved, by its last trial, as a share of the default's cost.

        ``None``: unknown, or in doubt.
        """
        saved = self.shares.get(trial)
        return saved if saved is not None and saved.is_shown else None

    @property
    def pays_back_in(self) -> int | None:
        """Recurrences until the loss so far is recovered; ``None``: no loss, or unknown."""
        if self.net is None or self.share is None or not self.default_j:
            return None
        if self.net.high >= 0 or self.share.low <= 0:
            return None
        return math.ceil(-self.net.value / (self.share.value * self.default_j))


@dataclass(frozen=True)
class NetAmounts:
    """Sums over the recurrences that can be compared; negative for a loss, ``None``: unknown."""

    energy_j: Estimate | None = None
    energy_runs: int = 0  # recurrences of which the energy is known
    money: Mapping[str, Estimate] = field(default_factory=dict)  # by currency
    money_runs: int = 0
    carbon_g: Estimate | None = None
    carbon_runs: int = 0


def add_estimates(estimates: Iterable[Estimate | None]) -> Estimate | None:
    """Return the sum of what is known of different jobs; ``None`` if nothing is.

    Their doubts are independent, so the squares of the distances to the ends add up.
    """
    known = [each for each in estimates if each is not None]
    if not known:
        return None
    value = math.fsum(each.value for each in known)
    below = math.hypot(*(each.value - each.low for each in known))
    above = math.hypot(*(each.high - each.value for each in known))
    return Estimate(value, value - below, value + above)


def name_ends(name: str, estimate: Estimate | None) -> dict[str, float | None]:
    """Return an estimate and its ends as JSON: ``saved_j``, ``saved_low_j``, ``saved_high_j``."""
    head, _, unit = name.partition("_")
    unit = unit and f"_{unit}"
    names = (name, f"{head}_low{unit}", f"{head}_high{unit}")
    ends = (None,) * 3 if estimate is None else (estimate.value, estimate.low, estimate.high)
    return dict(zip(names, ends, strict=True))


SAVED = tuple(name_ends("saved_j", None))
"""The fields of what a recurrence saved."""


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
    return [add_up(name, own) for name, own in sorted(groups.items())]


def add_up(name: str, trials: Sequence[Trial]) -> Total:
    """Return the total of some runs."""
    priced = [trial for trial in trials if trial.price is not None]
    by_currency = group_by(priced, lambda trial: trial.currency or "")
    prices = {name: sum_known(trial.price for trial in own) for name, own in by_currency.items()}
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
