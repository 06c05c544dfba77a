"""What was sampled of one device or job over time: cumulative energy, and the power limit."""

from __future__ import annotations

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections import defaultdict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

# How far outside the samples energy is extrapolated. At 10 Hz a window ends at most one period
# after the last sample; the rest allows for slow driver calls.
REACH_S = 1.0
# Span of a slope: NVML's counter moves about every 100 ms, so an interval of 100 ms may contain no
# step or two, and a second contains nine to eleven.
SLOPE_S = 1.0
# At this length (0.5 MB; 55 minutes at 10 Hz) half of the samples are removed evenly, except in the
# last minute. Energies are cumulative, so only resolution is lost: after a day, samples are 3 to
# 5 s apart.
MAX_SAMPLES = 1 << 15
_KEPT_WHOLE_S = 60.0


class EnergySeries:
    """Cumulative energy by one account: a counter, or sampled power integrated. Memory is bounded.

    A counter is a staircase: NVML's moves about every 100 ms, some only every second. If it is read
    as often as it moves, some readings show no step and some show two. Only a reading after a step
    is exact, so only those are samples, and energy is interpolated between them. A sample is then
    late by at most the time between two readings, however rarely the counter moves, and a window
    is off by at most the energy of one step.
    """

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._max_samples = max_samples
        self._times_s = array("d")
        self._energies_j = array("d")
        self._read_s = 0.0
        self._begins_within_a_step = False

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def last_s(self) -> float | None:
        """When the latest sample was taken; ``None`` before the first."""
        return self._times_s[-1] if self._times_s else None

    @property
    def last_j(self) -> float | None:
        """The latest cumulative joules; ``None`` before the first sample."""
        return self._energies_j[-1] if self._energies_j else None

    def add(self, time_s: float, energy_j: float) -> None:
        """Append a sample, later than all before."""
        times_s, energies_j = self._times_s, self._energies_j
        times_s.append(time_s)
        energies_j.append(energy_j)
        self._read_s = time_s
        if self._begins_within_a_step and len(times_s) == 3:
            self._date_the_first()
        if len(times_s) >= self._max_samples:
            self._thin()

    def wait(self, time_s: float) -> None:
        """Record a reading between two steps: the energy since the last step is not known yet."""
        self._read_s = time_s
        if len(self._times_s) == 1:
            self._begins_within_a_step = True

    def rest(self, time_s: float) -> None:
        """Record a reading which shows that no energy was used since the last sample."""
        energies_j = self._energies_j
        if len(energies_j) >= 2 and energies_j[-1] == energies_j[-2]:
            self._times_s[-1] = self._read_s = time_s
        else:
            self.add(time_s, energies_j[-1])

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; see ``energy_between``."""
        return energy_between(
            self._times_s, self._energies_j, since_s, until_s, read_s=self._read_s
        )

    def power_w(self) -> float | None:
        """Return the mean watts of about the last second; ``None`` with fewer than two samples."""
        return recent_power_w(self._times_s, self._energies_j)

    def _date_the_first(self) -> None:
        """Correct the first sample, which is up to 1 s late if the counter moves once a second.

        At the first reading, the counter may have been about to move. The missing energy is
        estimated from the next two steps, and is at most the first one.
        """
        (start_s, first_s, second_s), energies_j = self._times_s, self._energies_j
        power_w = (energies_j[2] - energies_j[1]) / (second_s - first_s)
        energies_j[0] = max(energies_j[0], energies_j[1] - power_w * (first_s - start_s))

    def _thin(self) -> None:
        times_s, energies_j = self._times_s, self._energies_j
        self._times_s, self._energies_j = array("d"), array("d")
        distance_s = 2 * (times_s[-1] - times_s[0]) / self._max_samples
        next_s = times_s[0]
        whole_s = max(times_s[-1] - _KEPT_WHOLE_S, times_s[len(times_s) * 3 // 4])
        for time_s, energy_j in zip(times_s, energies_j, strict=True):
            if time_s >= next_s or time_s >= whole_s:
                self._times_s.append(time_s)
                self._energies_j.append(energy_j)
                next_s = time_s + distance_s


class LimitSeries:
    """Power limit over time. Memory grows with the changes, not with the readings."""

    def __init__(self) -> None:
        self._changes: list[tuple[float, float | None]] = []
        self._last_s = 0.0

    def add(self, time_s: float, limits_w: Sequence[float | None]) -> None:
        """Add a reading.

        Args:
            time_s: Monotonic seconds, later than the reading before.
            limits_w: Watts of each GPU; ``None`` for unknown. The lowest counts: the slowest rank
                determines the speed.
        """
        self._last_s = time_s
        known = [limit_w for limit_w in limits_w if limit_w is not None]
        limit_w = min(known) if known and len(known) == len(limits_w) else None
        if not self._changes or self._changes[-1][1] != limit_w:
            self._changes.append((time_s, limit_w))

    def longest_w(self, since_s: float, until_s: float) -> float | None:
        """Return the watts per GPU that were in force for most of a window; ``None`` if unknown.

        A reading holds until the next one.
        """
        held_s: defaultdict[float | None, float] = defaultdict(float)
        ends = [*self._changes, (max(self._last_s, until_s), None)]
        for (from_s, limit_w), (to_s, _) in itertools.pairwise(ends):
            held_s[limit_w] += max(0.0, min(to_s, until_s) - max(from_s, since_s))
        longest_w = max(held_s, key=lambda limit_w: held_s[limit_w], default=None)
        return longest_w if held_s[longest_w] > 0 else None


def trapezoid_j(start_s: float, start_w: float, end_s: float, end_w: float) -> float:
    """Integrate power that changes linearly between two samples into joules."""
    return 0.5 * (start_w + end_w) * (end_s - start_s)


def energy_between(
    times_s: Sequence[float],
    energies_j: Sequence[float],
    since_s: float,
    until_s: float,
    *,
    read_s: float | None = None,
) -> float | None:
    """Return the energy used between two moments.

    Between samples energy is interpolated; before the first and after the last it continues as in
    the nearest second of samples.

    Args:
        times_s: Monotonic seconds, shape ``(n,)``, strictly increasing.
        energies_j: Cumulative joules at those times, shape ``(n,)``; the origin does not matter.
        since_s: Start of the window, on the same clock.
        until_s: End of the window.
        read_s: The latest reading, if it is no sample because the counter had not moved;
            ``None`` for the last sample.

    Returns:
        Joules, or ``None`` if there are fewer than two samples or the window reaches more than
        ``REACH_S`` beyond the readings.

    Raises:
        ValueError: If the window ends before it starts.
    """
    if until_s < since_s:
        raise ValueError(f"the window ends at {until_s} s, before it starts at {since_s} s")
    if len(times_s) < 2:
        return None
    last_s = times_s[-1] if read_s is None else read_s
    if since_s < times_s[0] - REACH_S or until_s > last_s + REACH_S:
        return None
    start_j = _energy_at(times_s, energies_j, since_s)
    return _energy_at(times_s, energies_j, until_s) - start_j


def recent_power_w(times_s: Sequence[float], energies_j: Sequence[float]) -> float | None:
    """Return the mean power over about the last second of samples.

    Returns:
        Watts, or ``None`` if there are fewer than two samples.
    """
    if len(times_s) < 2:
        return None
    first = min(bisect_left(times_s, times_s[-1] - SLOPE_S), len(times_s) - 2)
    return _slope(times_s, energies_j, first, len(times_s) - 1)


def _energy_at(times_s: Sequence[float], energies_j: Sequence[float], time_s: float) -> float:
    last = len(times_s) - 1
    if time_s < times_s[0]:
        end = max(bisect_right(times_s, times_s[0] + SLOPE_S) - 1, 1)
        return energies_j[0] - _slope(times_s, energies_j, 0, end) * (times_s[0] - time_s)
    if time_s > times_s[last]:
        first = min(bisect_left(times_s, times_s[last] - SLOPE_S), last - 1)
        return energies_j[last] + _slope(times_s, energies_j, first, last) * (
            time_s - times_s[last]
        )
    right = max(bisect_left(times_s, time_s), 1)
    left = right - 1
    return energies_j[left] + _slope(times_s, energies_j, left, right) * (time_s - times_s[left])


def _slope(times_s: Sequence[float], energies_j: Sequence[float], left: int, right: int) -> float:
    return (energies_j[right] - energies_j[left]) / (times_s[right] - times_s[left])
