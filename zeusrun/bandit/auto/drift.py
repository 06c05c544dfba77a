"""Detects that a job has changed: new data or code, and so perhaps another best batch size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.observation import finite_exp
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run

# The standard deviation of log epochs of one arm, pooled over the public training traces of the
# Zeus project. It counts as much as three degrees of freedom of the job's own.
RUN_SD, RUN_SD_WEIGHT = 0.14, 3.0

KNOWN = 3  # runs in which an arm must have reached the target before a run can surprise
REPEATS = 6  # of runs of any arm, after which one run of an arm is enough to compare epochs with
SURPRISE_SDS = 5.0
WIDEST_SDS = 3.0  # a run that takes more than this is stopped


class Spread:
    """The spread of log epochs between runs of one arm, pooled over arms."""

    def __init__(self) -> None:
        self._squares = RUN_SD_WEIGHT * RUN_SD**2
        self._freedom = RUN_SD_WEIGHT
        self._means: dict[int, tuple[int, float]] = {}

    @property
    def sd(self) -> float:
        """Standard deviation of one run's log epochs."""
        return math.sqrt(self._squares / self._freedom)

    @property
    def freedom(self) -> float:
        """Degrees of freedom of ``sd``."""
        return self._freedom

    def add(self, run: Run) -> None:
        """Add a run if it reached the target (Welford's update)."""
        if run.status is not TrialStatus.REACHED:
            return
        runs, mean = self._means.get(run.arm, (0, 0.0))
        far = _log_epochs(run) - mean
        self._means[run.arm] = runs + 1, mean + far / (runs + 1)
        if runs:
            self._squares += far * far * runs / (runs + 1)
            self._freedom += 1

    def add_stopped(self, run: Run) -> None:
        """Add a run that was stopped after more epochs than its arm usually takes, at least."""
        runs, mean = self._means.get(run.arm, (0, 0.0))
        far = _log_epochs(run) - mean
        if runs and far > 0:
            self._squares += far * far * runs / (runs + 1)
            self._freedom += 1

    def widest(self, runs: int) -> float:
        """Return the factor between the epochs expected after some runs and the most of the next.

        It is the prediction of a Gaussian with unknown variance (Student).
        """
        widest = student(WIDEST_SDS, self._freedom) * self.sd * math.sqrt(1 + 1 / runs)
        return finite_exp(widest)

    def surprise(self, run: Run) -> int:
        """Return 1 if a run went surprisingly badly, -1 if surprisingly well, else 0."""
        runs, mean = self._means.get(run.arm, (0, 0.0))
        if run.status is TrialStatus.MISSED:
            return int(runs >= KNOWN)
        repeats = round(self._freedom - RUN_SD_WEIGHT)
        if not runs or (runs < KNOWN and repeats < REPEATS):
            return 0
        far = (_log_epochs(run) - mean) / (self.sd * math.sqrt(1 + 1 / runs))
        if run.status is TrialStatus.STOPPED:
            far = max(0.0, far)
        return 0 if abs(far) <= SURPRISE_SDS else 1 if far > 0 else -1


def student(sds: float, freedom: float) -> float:
    """Return the quantile of Student's distribution that a Gaussian has at ``sds``.

    Wallace (Annals of Mathematical Statistics, 1959); 6 % too large at most, at 3 ``sds``.
    """
    shape = (freedom - 5 / 6) / (freedom - 2 / 3 + 0.1 / freedom) ** 2
    return math.sqrt(freedom * math.expm1(sds * sds * shape))


def _log_epochs(run: Run) -> float:
    return math.log(max(1, run.epochs or 1))  # fewer come from a damaged record


def describe_outdated(runs: int) -> str:
    """Return how many runs are from before the job changed, as the start of a clause."""
    return "1 earlier run no longer counts" if runs == 1 else f"{runs} earlier runs no longer count"


def first_valid(runs: Sequence[Run]) -> int:
    """Return the index of the first run that still describes the job; 0 if it has not changed.

    The job has changed when two runs in a row surprise, both for the worse or both for the better.
    Then no run before the first of them counts. If the arm that surprised runs as usual in between,
    it was an accident. In an arm that has reached the target ``KNOWN`` times, a run surprises if it
    misses the target, or if its epochs are ``SURPRISE_SDS`` standard deviations off the mean. Runs
    stopped in fewer epochs and runs of less known arms are skipped. ``runs`` reached the target or
    failed to, in order of start.
    """
    first, last, spread = 0, 0, Spread()
    suspect: int | None = None  # index of a surprise, until the next one or a run as usual
    for index, run in enumerate(runs):
        surprise, reached = spread.surprise(run), run.status is TrialStatus.REACHED
        if surprise and suspect is not None and surprise == last:
            first, spread = suspect, Spread()
            for earlier in runs[first:index]:
                spread.add(earlier)
            suspect, surprise = None, 0
        elif suspect is not None and reached and run.arm == runs[suspect].arm:
            spread.add(runs[suspect])
            suspect = None
        if surprise:
            suspect, last = index, surprise
        else:
            spread.add(run)
    return first
