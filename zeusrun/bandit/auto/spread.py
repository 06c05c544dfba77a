"""The spread of epochs between runs of one batch size."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import finite_exp

if TYPE_CHECKING:
    from zeusrun.bandit.observation import Runs, RunsByArm

# The standard deviation of log epochs of one arm, pooled over the public training traces of the
# Zeus project. It counts as much as three degrees of freedom of the job's own.
RUN_SD, RUN_SD_WEIGHT = 0.14, 3.0
GAUSSIAN90 = 1.645  # standard deviations around the mean that 90 % of a Gaussian lie within
# For a range of a run: both spreads, the mean and the level are estimates, and benchmarks/range.py
# finds 82 to 95 % within ``GAUSSIAN90``, and from 86 % on within these.
SDS90 = 1.78
WIDEST_SDS = 3.0  # a run that takes more than this is stopped


@dataclass(frozen=True)
class Spread:
    """The spread of log epochs between runs of one arm, pooled over arms."""

    sd: float = RUN_SD  # of one run
    freedom: float = RUN_SD_WEIGHT  # degrees of freedom of ``sd``

    def widest(self, runs: float) -> float:
        """Return the factor between the epochs expected after some runs and the most of the next.

        It is the prediction of a Gaussian with unknown variance (Student).
        """
        widest = student(WIDEST_SDS, self.freedom) * self.sd * math.sqrt(1 + 1 / runs)
        return finite_exp(widest)


def mean_log_epochs(runs: Runs) -> tuple[float, float]:
    """Return the mean log epochs of weighted runs, and how many runs they count as."""
    total = sum(run.weight for run in runs)
    return sum(run.weight * math.log(run.epochs_today) for run in runs) / total, total


def find_spread(reached: RunsByArm, failed: RunsByArm) -> Spread:
    """Return the spread that weighted runs show.

    A run that was stopped after more epochs than its arm usually takes widens it.
    """
    squares, freedom = RUN_SD_WEIGHT * RUN_SD**2, RUN_SD_WEIGHT
    for arm, own in reached.items():
        mean, total = mean_log_epochs(own)
        squares += sum(run.weight * (math.log(run.epochs_today) - mean) ** 2 for run in own)
        freedom += max(0.0, total - 1)
        for run in failed.get(arm, ()):
            if (far := math.log(run.epochs_today) - mean) > 0:
                squares += run.weight * far * far * total / (total + 1)
                freedom += run.weight
    return Spread(math.sqrt(squares / freedom), freedom)


def student(sds: float, freedom: float) -> float:
    """Return the quantile of Student's distribution that a Gaussian has at ``sds``.

    Wallace (Annals of Mathematical Statistics, 1959); 6 % too large at most, at 3 ``sds``.
    """
    shape = (freedom - 5 / 6) / (freedom - 2 / 3 + 0.1 / freedom) ** 2
    return math.sqrt(freedom * math.expm1(sds * sds * shape))
