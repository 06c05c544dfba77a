"""The cumulative energy of one device or job over time."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

# How far outside the samples energy is extrapolated. At 10 Hz a window ends at most one period
# after the last sample; the rest allows for slow driver calls.
REACH_S = 1.0
# Span of a slope: NVML's counter moves about every 100 ms, so an interval of 100 ms may contain no
# step or two, and a second contains nine to eleven.
SLOPE_S = 1.0
# At this length (0.5 MB; 55 minutes at 10 Hz) half of the samples are removed evenly, except in the
# last minute. Only resolution is lost: after a day, samples are 3 to 5 s apart.
MAX_SAMPLES = 1 << 15
_KEPT_WHOLE_S = 60.0


class EnergySeries:
    """Cumulative energy by one account: a counter, or sampled power integrated. Memory is bounded.

    A counter is a staircase: NVML's moves about every 100 ms, some only every second. Only a
    reading after a step is exact, so only those are samples, and energy is interpolated between
    them. A window is then off by at most the energy of one step.
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
        self._times_s.append(time_s)
        self._energies_j.append(energy_j)
        self._read_s = time_s
        if self._begins_within_a_step and len(self._times_s) == 3:
            self._correct_first()
        if len(self._times_s) >= self._max_samples:
            self._thin()

    def catch_up(self, time_s: float, energy_j: float, highest_w: float) -> None:
        """Append a sample; what comes faster than ``highest_w`` was used a second before it."""
        times_s, energies_j = self._times_s, self._energies_j
        late = len(self) > 1 and energy_j - energies_j[-1] > highest_w * (time_s - times_s[-1])
        if late:
            since_s = max(times_s[0], time_s - SLOPE_S)
            since_j = min(self._energy_at(since_s), energy_j)
            while times_s[-1] >= since_s and len(self) > 1:
                del times_s[-1], energies_j[-1]
            if times_s[-1] < since_s:
                self.add(since_s, since_j)
        self.add(time_s, energy_j)

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
        """Return the joules of a window; ``ValueError`` if it ends before it starts.

        Before the first and after the last sample, energy continues as in the nearest second of
        samples. ``None`` if there are fewer than two samples, or the window reaches more than
        ``REACH_S`` beyond the readings.
        """
        if until_s < since_s:
            raise ValueError(f"the window ends at {until_s} s, before it starts at {since_s} s")
        if len(self) < 2:
            return None
        if since_s < self._times_s[0] - REACH_S or until_s > self._read_s + REACH_S:
            return None
        return self._energy_at(until_s) - self._energy_at(since_s)

    def power_w(self) -> float | None:
        """Return the mean watts of about the last second; ``None`` with fewer than two samples."""
        return self._slope(self._last_second(), len(self) - 1) if len(self) >= 2 else None

    def _energy_at(self, time_s: float) -> float:
        times_s, last = self._times_s, len(self) - 1
        if time_s < times_s[0]:
            known, left, right = 0, 0, max(bisect_right(times_s, times_s[0] + SLOPE_S) - 1, 1)
        elif time_s > times_s[last]:
            known, left, right = last, self._last_second(), last
        else:
            right = max(bisect_left(times_s, time_s), 1)
            known = left = right - 1
        watts = self._slope(left, right)
        return self._energies_j[known] + watts * (time_s - times_s[known])

    def _last_second(self) -> int:
        """Return the index of the first sample of the last second."""
        return min(bisect_left(self._times_s, self._times_s[-1] - SLOPE_S), len(self) - 2)

    def _slope(self, left: int, right: int) -> float:
        times_s, energies_j = self._times_s, self._energies_j
        return (energies_j[right] - energies_j[left]) / (times_s[right] - times_s[left])

    def _correct_first(self) -> None:
        """Correct the first sample: the counter may have been about to move.

        The missing energy is estimated from the next two steps, and is at most the first one.
        """
        energies_j, step_s = self._energies_j, self._times_s[1] - self._times_s[0]
        energies_j[0] = max(energies_j[0], energies_j[1] - self._slope(1, 2) * step_s)

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
