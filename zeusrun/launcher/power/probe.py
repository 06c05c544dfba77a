"""A probe: training under one power limit until its speed and power are known. Pure."""

from __future__ import annotations

import itertools
import math
import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.lever import Lever, limit_of
from zeusrun.trial import PowerPoint

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.metrics.progress import EnergyBetween
    from zeusrun.sidecar.step_clock import StepCount

# Clocks, and reported power (a mean over a second on Ampere and later), need this after a change.
SETTLE_S, SETTLE_STEPS = 2.0, 10
SLOW_SETTLE_S = 30.0  # after so long, fewer steps are enough: each takes seconds
STALL_S, STALL_STEPS = 0.25, 4.0  # a step that takes so much longer than the others is a stall
PAUSE_S = 2.0  # after so long without a step, a limit that is only tried is released
BLOCK_S = 0.5
WANTED_ERROR = 0.005  # relative, of what an objective compares: neighbours differ by 1 to 5 %
LEAST_BLOCKS, LEAST_STEPS = 8, 20
LONG_S = 60.0  # after so long, a noisy measurement is good enough
ENDLESS_S = 300.0  # after so long, even one with a handful of steps
USUAL_STALLS = 10  # so many stalls with no block between them are a part of this training,
LONGEST_USUAL_S = 10.0  # but longer ones are evaluations, which a tried limit must not slow down
MOST_HELD_S = 900.0  # if steps are too irregular to be measured by then, they will stay so
LOST_S = 10.0  # energy that is unknown for so long will stay unknown
METERED_S = 0.3  # after so long, the power samples around a moment are there
# What a counter that moves every 100 ms adds to the relative error of a second.
COUNTER_ERROR = 0.41 * 0.1


class Weights(NamedTuple):
    """What an objective compares of a step: ``energy * joules + time * seconds``."""

    energy: float
    time: float


class _Block(NamedTuple):
    """Uninterrupted training: steps after ``since_t``, up to the last of them at ``until_t``."""

    since_t: float
    until_t: float
    steps: int
    energy_j: float = math.nan

    @property
    def seconds(self) -> float:
        return self.until_t - self.since_t


class Measured(NamedTuple):
    """Training time, steps of the slowest rank and joules of all GPUs in a probe.

    ``error`` is the relative standard error of what the objective compares.
    """

    seconds: float
    steps: int
    energy_j: float
    error: float

    @property
    def enough(self) -> bool:
        """Whether it is measured well enough, or as well as it will be."""
        if self.steps >= LEAST_STEPS and (self.error <= WANTED_ERROR or self.seconds >= LONG_S):
            return True
        return self.seconds >= ENDLESS_S

    def point(self, lever: Lever | None) -> PowerPoint:
        """Return it as a point of the power profile."""
        return PowerPoint(limit_of(lever), self.steps / self.seconds, self.energy_j / self.seconds)


@dataclass
class Probe:
    """Follows the step clock from ``held_t`` on, the monotonic second since when the limit is held.

    It measures once the limit has settled, and leaves out the time of evaluations, checkpoints and
    data stalls. The scatter of its blocks decides how long it takes.
    """

    held_t: float
    steps_before: int
    _closed: list[_Block] = field(default_factory=list)
    _metered: list[_Block] = field(default_factory=list)
    _step_s: list[float] = field(default_factory=list)
    _last: tuple[float, int] | None = None
    _open_t: float | None = None
    _open_steps: int = 0
    _stalls_s: list[float] = field(default_factory=list)  # since a block was closed
    _usual_stall_s: float = 0.0

    def __post_init__(self) -> None:
        self._began_t = self.held_t

    def next(self, now_t: float, steps: int) -> Probe:
        """Return the probe that follows; it knows already how long steps usually take."""
        usual_s = self._usual_stall_s
        return Probe(now_t, steps, _step_s=self._step_s, _last=self._last, _usual_stall_s=usual_s)

    def add(self, count: StepCount) -> None:
        """Add the step clock of the slowest rank, about ten times a second."""
        now = (count.last_step_t, count.steps)
        if self._last is None or now[1] <= self._last[1]:
            self._last = self._last or now
            return
        (before_t, before), self._last = self._last, now
        seconds, steps = now[0] - before_t, now[1] - before
        stalled = self._is_stall(seconds, steps)
        if stalled:
            self._stalls_s.append(seconds)
            if len(self._stalls_s) >= USUAL_STALLS:
                self._usual_stall_s = min(max(self._stalls_s), LONGEST_USUAL_S)
                self._stalls_s.clear()
        else:
            self._step_s.append(seconds / steps)
            del self._step_s[:-50]
        if stalled or not self._has_settled(before_t, before):
            self._cut()
            return
        if self._open_t is None:
            self._open_t = before_t
        self._open_steps += steps
        if now[0] - self._open_t >= BLOCK_S:
            self._closed.append(_Block(self._open_t, now[0], self._open_steps))
            self._stalls_s.clear()
            self._open_t, self._open_steps = now[0], 0

    def meter(self, now_t: float, energy_between: EnergyBetween) -> bool:
        """Get the energy of new blocks; return whether there are any. Raises ``ValueError``."""
        if now_t - self._began_t > MOST_HELD_S:
            raise ValueError("steps come too irregularly for their speed to be measured")
        due = [block for block in self._closed if block.until_t <= now_t - METERED_S]
        for block in due:
            energy_j = energy_between(block.since_t, block.until_t)
            if energy_j is None and now_t - block.until_t > LOST_S:
                raise ValueError("the energy of the window is unknown")
            if energy_j is None:  # a device that has missed an answer may give the next one
                return False
            self._metered.append(block._replace(energy_j=energy_j))
            self._closed.remove(block)
        return bool(due)

    def measured(self, weights: Sequence[Weights]) -> Measured | None:
        """Return the measurement so far, with the largest error of ``weights``; else ``None``."""
        blocks = self._metered
        seconds = sum(block.seconds for block in blocks)
        if len(blocks) < (3 if seconds >= ENDLESS_S else LEAST_BLOCKS):
            return None
        pieces = 1 + sum(a.until_t != b.since_t for a, b in itertools.pairwise(blocks))
        statistic = max(_error(blocks, weight) for weight in weights)
        error = math.hypot(statistic, COUNTER_ERROR * math.sqrt(pieces) / seconds)
        steps = sum(block.steps for block in blocks)
        return Measured(seconds, steps, sum(block.energy_j for block in blocks), error)

    def pauses(self, now_t: float) -> bool:
        """Whether no step has come for so long that this is an evaluation, or the like."""
        if self._last is None:
            return False
        idle_s = now_t - max(self.held_t, self._last[0])
        return idle_s > PAUSE_S and self._is_stall(idle_s, 1)

    def hold_again(self, now_t: float, steps: int) -> None:
        """Settle again after the limit was released; what was measured before still counts."""
        if self._last is not None:
            self._began_t += max(0.0, now_t - self._last[0])  # meanwhile it was not held
        self.held_t, self.steps_before = now_t, steps
        self._cut()

    def _is_stall(self, seconds: float, steps: int) -> bool:
        usual_s = statistics.median(self._step_s) if self._step_s else 0.0
        longer_s = max(STALL_S, STALL_STEPS * usual_s, 1.5 * self._usual_stall_s)
        return usual_s > 0 and seconds - steps * usual_s > longer_s

    def _has_settled(self, at_t: float, steps: int) -> bool:
        held_s, taken = at_t - self.held_t, steps - self.steps_before
        return held_s >= SETTLE_S and (taken >= SETTLE_STEPS or held_s >= SLOW_SETTLE_S)

    def _cut(self) -> None:
        self._open_t, self._open_steps = None, 0


def _error(blocks: Sequence[_Block], weights: Weights) -> float:
    """Return the relative standard error of the compared quantity per step, from its blocks.

    That of a ratio estimator (Cochran, Sampling Techniques, ch. 6), times the factor
    ``(1 + rho) / (1 - rho)`` of a series with lag-1 correlation rho between its blocks.
    """
    spent = [weights.energy * block.energy_j + weights.time * block.seconds for block in blocks]
    total, count = sum(spent), len(blocks)
    if total <= 0:
        return math.inf
    ratio = total / sum(block.steps for block in blocks)
    rest = [value - ratio * block.steps for value, block in zip(spent, blocks, strict=True)]
    squares = sum(value * value for value in rest)
    if squares == 0:
        return 0.0
    correlation = sum(a * b for a, b in itertools.pairwise(rest)) / squares
    correlation = min(max(correlation, 0.0), 0.9)  # below 0 is chance, in so few blocks
    inflation = (1 + correlation) / (1 - correlation)
    return math.sqrt(squares * count / (count - 1) * inflation) / total
