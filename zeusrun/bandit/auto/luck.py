"""Runs that miss the target by bad luck, and how the epochs of the others scatter."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.problem import RUN_SD, RUN_SD_WEIGHT, Spread, mean_log_epochs

if TYPE_CHECKING:
    from collections.abc import Mapping

    from zeusrun.bandit.problem import Observation, RunsByArm

OWN_MISSES = 20.0  # weight of the job's share of bad luck, in runs of the arm
TOO_MANY = 3  # with so many failures per success, no failure is bad luck
BAD_LUCK = 0.1  # chance that a failure of an arm that has reached the target is bad luck


class Luck(NamedTuple):
    """How the runs of arms that have reached the target scatter, as a mixture.

    Some miss the target, however long they train. The epochs of the others are log-normal.
    """

    spread: Spread  # of the others
    missing: Mapping[int, float]  # chance that the next run of an arm misses
    elsewhere: float  # the same of an arm that has not reached the target

    def missing_of(self, arm: int) -> float:
        """Return the chance that the next run of an arm misses the target by bad luck."""
        return self.missing.get(arm, self.elsewhere)


def find_luck(reached: RunsByArm, failed: RunsByArm) -> tuple[Luck, dict[int, list[Observation]]]:
    """Return the luck that weighted runs show, and the failed ones with the weight of the others.

    Of an arm that has reached the target, a failed run is bad luck, or it would have taken more
    epochs than it was given: it counts as either as far as its epochs make that likely.
    """
    squares, freedom = RUN_SD_WEIGHT * RUN_SD**2, RUN_SD_WEIGHT
    means = {arm: mean_log_epochs(own) for arm, own in reached.items()}
    for arm, (mean, total) in means.items():
        own = reached[arm]
        squares += sum(run.weight * (math.log(run.epochs_today) - mean) ** 2 for run in own)
        freedom += max(0.0, total - 1)
    sd, missed = math.sqrt(squares / freedom), dict.fromkeys(reached, 0.0)
    others = {arm: list(own) for arm, own in failed.items()}
    for arm in reached.keys() & failed.keys():
        if len(failed[arm]) >= TOO_MANY * len(reached[arm]):
            continue  # such as of a smoke test
        (mean, total), others[arm] = means[arm], []
        for run in failed[arm]:
            far = math.log(run.epochs_today) - mean
            late = (1 - BAD_LUCK) * math.erfc(far / sd / math.sqrt(2 + 2 / total)) / 2
            chance = BAD_LUCK / (BAD_LUCK + late)
            missed[arm] += chance
            others[arm].append(run._replace(weight=run.weight * (1 - chance)))
            squares += others[arm][-1].weight * max(0.0, far) ** 2 * total / (total + 1)
            freedom += others[arm][-1].weight * (far > 0)
    counts = {arm: len(own) + missed[arm] for arm, own in reached.items()}
    total = sum(missed.values())
    # Jeffreys' prior (1946), but only after the first miss: most trainings never miss.
    job = (min(1.0, total) / 2 + total) / (1 + sum(counts.values()))
    missing = {
        arm: (OWN_MISSES * job + missed[arm]) / (OWN_MISSES + counts[arm]) for arm in reached
    }
    return Luck(Spread(math.sqrt(squares / freedom), freedom), missing, job), others
