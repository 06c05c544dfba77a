"""How much the epochs of one arm differ from run to run, pooled over arms."""

from __future__ import annotations

import math

# Pooled over the public training traces of the Zeus project, log epochs of one arm have a
# standard deviation of 0.14; it counts as much as three degrees of freedom of the job's own.
RUN_SD, RUN_SD_WEIGHT = 0.14, 3.0


class Spread:
    """Running mean of each arm's log epochs, and the standard deviation around these means."""

    def __init__(self) -> None:
        self._squares = RUN_SD_WEIGHT * RUN_SD**2
        self._freedom = RUN_SD_WEIGHT
        self._means: dict[int, tuple[int, float]] = {}

    @property
    def sd(self) -> float:
        """Standard deviation of one run's log epochs."""
        return math.sqrt(self._squares / self._freedom)

    @property
    def repeats(self) -> int:
        """How many runs were added beyond the first of their arm."""
        return round(self._freedom - RUN_SD_WEIGHT)

    def runs(self, arm: int) -> int:
        """Return how many runs of an arm were added."""
        return self._means.get(arm, (0, 0.0))[0]

    def mean(self, arm: int) -> float:
        """Return the mean of an arm's log epochs; 0 without a run."""
        return self._means.get(arm, (0, 0.0))[1]

    def add(self, arm: int, log_epochs: float) -> None:
        """Take in a run that reached the target (Welford's update)."""
        runs, mean = self._means.get(arm, (0, 0.0))
        far = log_epochs - mean
        self._means[arm] = runs + 1, mean + far / (runs + 1)
        if runs:
            self._squares += far * far * runs / (runs + 1)
            self._freedom += 1
