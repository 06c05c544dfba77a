"""The belief of an arm as its own runs alone give it, for policies that assume nothing else."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from zeusrun.bandit.problem import ArmBelief
from zeusrun.bandit.zeus.thompson import believe
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run


def summarise(
    arm: int,
    results: Sequence[Run],
    costs_j: Sequence[float],
    *,
    out_of_memory: int = 0,
    chance: float,
    verdict: str,
) -> ArmBelief:
    """Return the belief of an arm from its finished runs.

    Args:
        arm: The batch size.
        results: Its runs that reached the target or failed to.
        costs_j: Known costs of those that reached it.
        out_of_memory: How often it ran out of memory.
        chance: Probability of being chosen next.
        verdict: Where it stands, in a sentence.
    """
    cost = believe(costs_j) if costs_j else None
    trials = len(results) + out_of_memory
    reached = [run for run in results if run.status is TrialStatus.REACHED]
    epochs = [run.epochs for run in reached if run.epochs is not None]
    per_epoch = [run.epoch_cost_j for run in results if run.epoch_cost_j is not None]
    return ArmBelief(
        global_batch_size=arm,
        trials=trials,
        reached=len(reached),
        epochs=statistics.fmean(epochs) if epochs else None,
        epoch_cost_j=statistics.fmean(per_epoch) if per_epoch else None,
        cost_j=cost.mean_j if cost else None,
        cost_range_j=cost.range_j if cost else None,
        failure_chance=1 - len(reached) / trials if trials else None,
        chance=chance,
        verdict=verdict,
    )
