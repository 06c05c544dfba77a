"""What each recurrence, and the runs with each batch size, have taken, and what was saved. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.analysis import amounts
from zeusrun.analysis.curves import amount_in
from zeusrun.analysis.estimates import find_ended, group_by, is_forced
from zeusrun.analysis.usual import has_cost, proves_cost, setting
from zeusrun.bandit.problem import OUTDONE
from zeusrun.bandit.proof import Doubt, as_undisturbed, is_resized, prove
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.analysis.estimates import Estimate, Savings
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class SizeFacts:
    """All runs with a batch size; costs of runs that can be compared with the newest one."""

    label: str
    batch_size: int
    variant: str | None  # of adaptive runs
    default: bool
    runs: int
    share: float  # of all runs
    reached: int
    costs_j: tuple[float, ...]  # of the runs that reached the target
    failed_j: tuple[float, ...]  # of the others: lower bounds
    cost_j: float | None  # medians, of the runs that reached the target
    energy_j: float | None
    estimated: bool  # whether the energy of one of them is an estimate
    cleaned: bool  # whether one of them was interrupted, or tried other loader workers
    time_s: float | None
    epochs: float | None
    samples: float | None
    power_limit_w: float | None  # median


def build_sizes(trials: Sequence[Trial]) -> tuple[list[SizeFacts], Counter[str]]:
    """Return the facts of each batch size, the smallest first.

    And why runs with a cost are left out, each with how many: their cost cannot be compared with
    that of the newest run that reached the target.
    """
    usual = next((setting(trial) for trial in reversed(trials) if has_cost(trial)), None)
    alike = {t.trial for t in trials if t.teaches and usual in {None, setting(t)}}
    ordered = sorted(trials, key=lambda each: (each.global_batch_size, each.variant or ""))
    sizes = [
        _size_facts(label, of_size, [each for each in of_size if each.trial in alike], len(trials))
        for label, of_size in group_by(ordered, amounts.size_label).items()
    ]
    return sizes, Counter(why for t in trials if (why := _why_left_out(t, alike)) is not None)


_ELSEWHERE = "had another objective, other hardware or another kind of energy"


def _why_left_out(trial: Trial, alike: Collection[str]) -> str | None:
    """Return why the cost of a run is not among those of its batch size; ``None`` if it is."""
    ended = trial.status is TrialStatus.REACHED or trial.status in OUTDONE
    doubt = next((doubt.value for doubt in prove(trial) if doubt is not None), None)
    if trial.cost_j is None or (trial.trial in alike and _cost_j(trial)):
        return None
    if is_resized(trial) and trial.teaches:
        return Doubt.RESIZED.value
    if trial.teaches and trial.trial not in alike:
        return _ELSEWHERE
    return doubt if ended or not trial.teaches else f"ended as {trial.status.value}"


def _cost_j(trial: Trial) -> float | None:
    """Return the cost of a run by which it is compared; ``None`` if that is unknown."""
    known = proves_cost(trial) or trial.status in OUTDONE
    return as_undisturbed(trial).cost_j if known else None


def _size_facts(
    label: str, of_size: Sequence[Trial], alike: Sequence[Trial], runs: int
) -> SizeFacts:
    newest = of_size[-1]
    shown = [trial for trial in alike if proves_cost(trial)]
    done = [as_undisturbed(trial) for trial in shown]
    failed = [as_undisturbed(trial).cost_j for trial in alike if trial.status in OUTDONE]
    costs = tuple(trial.cost_j for trial in done if trial.cost_j)
    return SizeFacts(
        label=label,
        batch_size=newest.global_batch_size,
        variant=newest.variant,
        default=newest.variant is None and newest.global_batch_size == newest.default_batch_size,
        runs=len(of_size),
        share=len(of_size) / runs,
        reached=sum(trial.status is TrialStatus.REACHED for trial in of_size),
        costs_j=costs,
        failed_j=tuple(filter(None, failed)),
        cost_j=amounts.median_known(costs),
        energy_j=amounts.median_known(trial.energy_j for trial in done),
        estimated=any(
            t.energy_j is not None and t.energy_source is EnergySource.ESTIMATED for t in done
        ),
        cleaned=done != shown,
        time_s=amounts.median_known(trial.time_s for trial in done),
        epochs=amounts.median_known(trial.epochs for trial in done),
        samples=amounts.median_known(amount_in(trial, "samples") for trial in done),
        power_limit_w=amounts.median_known(trial.power_limit_w for trial in done),
    )


@dataclass(frozen=True)
class RecurrenceFacts:
    """One recurrence: the sums of its attempts, and against the default. ``None``: unknown."""

    recurrence: int
    trial: str  # the last attempt
    started_at: str
    size: str  # label of the batch size of its last attempt
    is_default: bool  # whether that is the default, or none is known
    forced: bool  # whether the user chose a batch size
    attempts: int
    status: str
    reached: bool
    cost_j: float | None
    energy_j: float | None
    time_s: float | None
    epochs: int | None  # of the last attempt
    samples: int | None  # likewise
    saved: Estimate | None  # joules of cost; ``None``: unknown
    saved_share: Estimate | None  # ``None``: unknown, or in doubt
    default_j: float | None  # what a run of the default is expected to cost
    price: float | None
    currency: str | None
    carbon_g: float | None


def build_recurrences(trials: Sequence[Trial], savings: Savings) -> list[RecurrenceFacts]:
    """Return the recurrences that have ended, oldest first."""
    return [_facts(attempts, savings) for attempts in find_ended(trials)]


def _facts(attempts: Sequence[Trial], savings: Savings) -> RecurrenceFacts:
    last = attempts[-1]
    saved = savings.by_trial.get(last.trial)
    currency = amounts.find_currency(attempts)
    return RecurrenceFacts(
        recurrence=last.recurrence,
        trial=last.trial,
        started_at=attempts[0].started_at,
        size=amounts.size_label(last),
        is_default=last.default_batch_size in {None, last.global_batch_size},
        forced=is_forced(attempts),
        attempts=len(attempts),
        status="forgotten" if last.forgotten else last.status.value,
        reached=last.status is TrialStatus.REACHED,
        cost_j=amounts.sum_attempts(attempts, lambda trial: trial.cost_j),
        energy_j=amounts.sum_attempts(attempts, lambda trial: trial.energy_j),
        time_s=amounts.sum_attempts(attempts, lambda trial: trial.time_s),
        epochs=last.epochs,
        samples=amount_in(last, "samples"),
        saved=saved,
        saved_share=savings.shown_share(last.trial),
        default_j=None if saved is None else savings.default_j,
        price=amounts.sum_attempts(attempts, lambda trial: trial.price) if currency else None,
        currency=currency,
        carbon_g=amounts.sum_attempts(attempts, lambda trial: trial.carbon_g),
    )
