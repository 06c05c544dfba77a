"""What a recurrence is charged with, and what a joule of it cost."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.analysis.amounts import MOST, is_other, never_trained
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.trial import Trial


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
