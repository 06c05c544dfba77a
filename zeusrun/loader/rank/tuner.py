"""Finds the number of worker processes with which a step takes least time. Pure.

From pass to pass over the data, it tries twice and half as many, until no neighbour of the best one
is better by more than the noise.
"""

from __future__ import annotations

import math
import statistics
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEAST_STEPS, _LEAST_S = 30, 5.0  # of a measurement: so many steps, or so long
_FAST = 0.03  # share of the time: who waits less has nothing to win
_BEGINS = 0.1  # share of the time that the begin of the passes takes, so that workers may stay
_RISES = 0.1  # by so much of the time, waiting has risen
_MOST_BLOCKS = 32
_SAME = 0.02  # at least so much of a step is noise


class Arm(NamedTuple):
    """A number of workers, and whether they stay from pass to pass (``persistent_workers``)."""

    workers: int
    stays: bool


class Measured(NamedTuple):
    """What steps take with an arm: seconds a step with its standard error, and shares of them."""

    step_s: float
    error_s: float
    wait: float  # until batches are there
    begin: float  # until the first batch of a pass is there


class Measurement:
    """Adds up the passes of an arm. Intervals between steps are passed one by one.

    Args:
        workers: How many there are: so many batches come at once, again and again.
    """

    def __init__(self, workers: int) -> None:
        self._passes = self._steps = self._intervals = 0
        self._first_s = self._wait_s = self._sum_s = self._block_s = 0.0
        self._length = 2 * max(1, workers)
        self._blocks_s: list[float] = []  # means of so many intervals

    def add_interval(self, seconds: float) -> None:
        """Add the time from one step to the next one of the same pass."""
        self._intervals += 1
        self._sum_s += seconds
        self._block_s += seconds
        if self._intervals % self._length == 0:
            self._blocks_s.append(self._block_s / self._length)
            self._block_s = 0.0
        if len(self._blocks_s) == _MOST_BLOCKS:
            pairs = zip(self._blocks_s[::2], self._blocks_s[1::2], strict=True)
            self._blocks_s = [sum(pair) / 2 for pair in pairs]
            self._length *= 2

    def add_pass(self, steps: int, first_s: float, wait_s: float) -> None:
        """Add a pass: its steps, the seconds to the end of its first one, and those that waited."""
        self._passes += 1
        self._steps += steps
        self._first_s += first_s
        self._wait_s += wait_s

    @property
    def result(self) -> Measured | None:
        """What was measured; ``None`` as long as that is too little."""
        mean_s = self._sum_s / max(1, self._intervals)
        whole_s = self._first_s + (self._steps - self._passes) * mean_s
        is_short = not whole_s or (self._steps < _LEAST_STEPS and whole_s < _LEAST_S)
        unseen = self._steps > self._passes and not self._intervals
        if is_short or unseen or math.isinf(self._wait_s):
            return None
        many = len(self._blocks_s) > 2
        error_s = statistics.stdev(self._blocks_s) / len(self._blocks_s) ** 0.5 if many else 0.0
        begin_s = max(0.0, self._first_s - self._passes * mean_s)
        shares = min(1.0, self._wait_s / whole_s), begin_s / whole_s
        return Measured(whole_s / self._steps, error_s, *shares)


class Tuner:
    """Chooses the arm of the next pass.

    Args:
        first: The arm of the first pass; if it was measured, and the search goes on, the next one.
        most: The most workers.
        known: The share of the time that an earlier run waited with ``first``, if its search ended
            there; else ``None``.
        measured: What an earlier run has measured.

    Attributes:
        arm: The present one.
    """

    def __init__(
        self,
        first: Arm,
        most: int,
        known: float | None = None,
        measured: Mapping[Arm, Measured] = MappingProxyType({}),
    ) -> None:
        self._most = most
        self._measured = {**measured}
        self._best = first if first in measured else min(measured, key=self._rank, default=first)
        self._settled = known  # the share that waited when nothing was left to try
        begun = known is None and first in measured
        following = self._find_next(first, most, may_stay=False) if begun else None
        self.arm = following or first

    @property
    def is_settled(self) -> bool:
        """Whether nothing is left to try."""
        return self._settled is not None

    def take(self, measured: Measured, most: int, *, may_stay: bool) -> Arm:
        """Take in a measurement of the present arm, and return the next one.

        Args:
            measured: What was measured.
            most: How many workers memory allows now.
            may_stay: Whether workers may stay: then they do not see changes of the data set.
        """
        if self._settled is not None:
            if measured.wait <= self._settled + _RISES:
                return self.arm
            self._measured, self._settled = {}, None
        self._measured[self.arm] = measured
        best = self._best = self._find_best()
        following = self._find_next(best, min(most, self._most), may_stay=may_stay)
        if following is None:
            self._settled = self._measured[best].wait
        self.arm = following or best
        return self.arm

    def _find_best(self) -> Arm:
        """Return the best arm so far, unless the fastest is faster by more than the noise."""
        fastest = min(self._measured, key=self._rank)
        known, least = self._measured.get(self._best), self._measured[fastest]
        if known is None:
            return fastest
        noise_s = max(_SAME * least.step_s, 2 * math.hypot(known.error_s, least.error_s))
        return fastest if known.step_s > least.step_s + noise_s else self._best

    def _rank(self, arm: Arm) -> tuple[float, Arm]:
        return self._measured[arm].step_s, arm

    def _find_next(self, best: Arm, most: int, *, may_stay: bool) -> Arm | None:
        found = self._measured[best]
        if found.wait < _FAST:
            return None
        workers = best.workers
        numbers = [min(2 * workers, max(most, workers)), workers // 2]
        arms = [Arm(number, best.stays) for number in numbers if number > 0]
        if may_stay and found.begin > _BEGINS:
            arms.append(Arm(workers, stays=True))
        return next((arm for arm in arms if arm not in self._measured), None)
