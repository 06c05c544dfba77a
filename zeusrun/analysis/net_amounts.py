"""What choosing batch sizes has saved in energy, money and carbon."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import MOST, by_recurrence, sum_attempts
from zeusrun.bandit.observation import OUTDONE
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.analysis.savings import Savings
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class NetAmounts:
    """Sums over the recurrences that can be compared; negative for a loss, ``None``: unknown."""

    energy_j: float | None = None
    energy_runs: int = 0  # recurrences of which the energy is known
    money: Mapping[str, float] = field(default_factory=dict)  # by currency
    money_runs: int = 0
    carbon_g: float | None = None
    carbon_runs: int = 0


def find_net_amounts(trials: Sequence[Trial], savings: Savings) -> NetAmounts:
    """Return what the compared recurrences saved against the mean energy of the default.

    Every joule counts with the price and the carbon of the recurrence in which it was saved, so a
    cheaper hour is not taken for a cheaper batch size. ``trials`` are of one job, oldest first.
    """
    energies: list[float] = []
    grams: list[float] = []
    money: defaultdict[str, float] = defaultdict(float)
    money_runs = 0
    for own in by_recurrence(trials).values():
        saved_j = _saved_j(own, savings)
        if saved_j is None:
            continue
        energies.append(saved_j)
        if (saved_g := _worth(saved_j, own, [trial.carbon_g for trial in own])) is not None:
            grams.append(saved_g)
        price = _worth(saved_j, own, [trial.price for trial in own])
        currencies = {trial.currency for trial in own if trial.price is not None}
        if price is not None and len(currencies) == 1:
            money[currencies.pop() or ""] += price
            money_runs += 1
    return NetAmounts(
        energy_j=sum(energies) if energies else None,
        energy_runs=len(energies),
        money=dict(money),
        money_runs=money_runs,
        carbon_g=sum(grams) if grams else None,
        carbon_runs=len(grams),
    )


def _saved_j(own: Sequence[Trial], savings: Savings) -> float | None:
    """Return the joules that a recurrence saved, by the rules of ``find_savings``."""
    last = own[-1]
    saving = savings.by_trial.get(last.trial)
    if saving is None:
        return None
    if last.status is not TrialStatus.REACHED:  # lost: what its attempts at other sizes took
        default = last.default_batch_size
        spent = [
            _energy_j(trial)
            for trial in own
            if trial.status in OUTDONE and trial.global_batch_size != default and trial.cost_j
        ]
        return None if None in spent else -sum(joules or 0.0 for joules in spent)
    usual = [each for trial in saving.compared if (each := _energy_j(trial)) is not None]
    spent_j = _known(sum_attempts(own, _energy_j))
    return sum(usual) / len(usual) - spent_j if usual and spent_j is not None else None


def _energy_j(trial: Trial) -> float | None:
    return _known(as_undisturbed(trial).energy_j)


def _worth(saved_j: float, own: Sequence[Trial], amounts: Sequence[float | None]) -> float | None:
    """Return the amount for some joules, at the rate of the attempts with energy.

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
    return _known(saved_j / total_j * sum(amount or 0.0 for _, amount in pairs))


def _known(amount: float | None) -> float | None:
    """Return an amount; ``None`` if it is unknown, or comes from a damaged record."""
    return amount if amount is not None and abs(amount) < MOST else None
