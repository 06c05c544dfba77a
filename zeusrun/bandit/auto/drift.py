"""Whether the job has moved: new data or new code, and another best batch size with it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from zeusrun.bandit.spread import Spread
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.observation import Run

KNOWN = 3  # runs in which an arm must have reached the target before one can surprise
REPEATS = 6  # of runs of any arm, after which one run of an arm is enough to compare epochs with
SURPRISE_SDS = 5.0


def first_valid(runs: Sequence[Run]) -> int:
    """Return the index of the first run that still describes the job; 0 if nothing has moved.

    Two surprises in a row, both for the worse or both for the better, and all that came before
    the first of them belongs to another job. A run as usual of the arm that surprised shows that it
    was an accident. In an arm that has reached the target ``KNOWN``
    times a run surprises if it misses the target, or if its epochs are ``SURPRISE_SDS`` standard
    deviations off what the arm takes on average; stopped before that, it was only dearer by the
    epoch. Such runs, and those of arms less known, neither count nor break a row.

    Args:
        runs: Runs that reached the target or failed to, in order of start.
    """
    first, last, spread = 0, 0, Spread()
    suspect: int | None = None  # index of a surprise that has not been weighed yet
    for index, run in enumerate(runs):
        surprise, reached = _surprise(spread, run), run.status is TrialStatus.REACHED
        if surprise and suspect is not None and surprise == last:
            first, spread = suspect, Spread()
            for earlier in runs[first:index]:
                _add(spread, earlier)
            suspect, surprise = None, 0
        elif suspect is not None and reached and run.arm == runs[suspect].arm:
            _add(spread, runs[suspect])  # it was an accident
            suspect = None
        if surprise:
            suspect, last = index, surprise
        else:
            _add(spread, run)
    return first


def _surprise(spread: Spread, run: Run) -> int:
    """Return 1 for a bad surprise, -1 for a good one, 0 for none."""
    runs = spread.runs(run.arm)
    if run.status is TrialStatus.MISSED:
        return int(runs >= KNOWN)
    if not runs or (runs < KNOWN and spread.repeats < REPEATS):
        return 0
    far = (math.log(run.epochs or 1) - spread.mean(run.arm)) / (spread.sd * math.sqrt(1 + 1 / runs))
    if run.status is TrialStatus.STOPPED:
        far = max(0.0, far)
    return 0 if abs(far) <= SURPRISE_SDS else 1 if far > 0 else -1


def _add(spread: Spread, run: Run) -> None:
    if run.status is TrialStatus.REACHED:
        spread.add(run.arm, math.log(run.epochs or 1))
