"""Two accounts of a device's energy: its hardware counter, and its sampled power integrated."""

from __future__ import annotations

import math

from zeusrun.energy.series import REACH_S, EnergySeries

# A counter that does not move for STILL_S while the device draws more than ASLEEP_W is stuck.
# NVML's counter moves about every 100 ms, on some old GPUs every second. A GPU that draws less than
# half a watt is asleep.
STILL_S = 2.0
ASLEEP_W = 0.5
# Without a power reading, a counter that does not move for this long means that no energy is used.
REST_S = 0.5
# A counter step is impossible if it means more than _LEAP times the maximum power, over the time
# since the last step plus the second by which a step may be late.
_LEAP = 3.0
_LATE_S = 1.0
_UNKNOWN_MAX_POWER_W = 3000.0  # more than any one GPU draws
# Sampled power cannot be integrated over a longer gap between samples. A counter can.
MAX_GAP_S = 5.0


class CounterAccount:
    """Energy by a device's counter, until the counter proves wrong.

    A model (``is_model``) computes the energy: it may stand still, and each of its values is exact.
    """

    def __init__(self, *, is_model: bool, max_power_w: float | None = None) -> None:
        self.moved = False  # since the first sample
        self.series = EnergySeries()
        self._is_model = is_model
        self._most_w = max_power_w or math.inf
        self._leap_w = _LEAP * (max_power_w or _UNKNOWN_MAX_POWER_W)
        self._moved_s = 0.0
        self._drawing_since_s = 0.0
        self._answered_s = 0.0
        self._misses = 0  # reads without a value since the last value

    def add(
        self,
        time_s: float,
        energy_j: float | None,
        power_w: float | None,
        utilization: float | None = None,
    ) -> str | None:
        """Add a later reading; return what is wrong with the counter if it is to be dropped."""
        last_j = self.series.last_j
        if energy_j is None:
            return self._miss(time_s)
        self._answered_s, self._misses = time_s, 0
        if last_j is not None and energy_j < last_j:
            return f"ran backwards, from {last_j:.1f} to {energy_j:.1f} J"
        if last_j is None or energy_j > last_j:
            within_s = time_s - self._moved_s
            most_j = self._leap_w * (within_s + _LATE_S)
            if last_j is not None and not self._is_model and energy_j - last_j > most_j:
                return (
                    f"leapt from {last_j:.1f} to {energy_j:.1f} J within {within_s:.1f} s, more "
                    "than the device can draw"
                )
            self.moved = last_j is not None
            self._moved_s = self._drawing_since_s = time_s
            if self._is_model:  # it finds a process, and all that it has used, a second late
                self.series.catch_up(time_s, energy_j, self._most_w)
            else:
                self.series.add(time_s, energy_j)
            return None
        asleep = self._is_model or (power_w is not None and power_w < ASLEEP_W)
        if asleep or (power_w is None and utilization == 0):
            self._drawing_since_s = time_s
        elif time_s - self._drawing_since_s >= STILL_S:
            power = "power is unknown" if power_w is None else f"the device draws {power_w:.0f} W"
            return f"stands still while {power}"
        if asleep or (power_w is None and time_s - (self.series.last_s or 0.0) >= REST_S):
            self.series.rest(time_s)  # no energy was used
        else:
            self.series.wait(time_s)  # a step is due
        return None

    def _miss(self, time_s: float) -> str | None:
        if self.series.last_j is None:
            return "is not supported"
        self._misses += 1  # it may miss one value, or as many as fit into REACH_S
        tolerable = self._misses == 1 or time_s - self._answered_s < REACH_S
        return None if tolerable else "does not answer any more"


class PowerAccount:
    """Energy by integrating sampled power, where there is no long gap between samples."""

    def __init__(self) -> None:
        self._series = EnergySeries()
        self._last: tuple[float, float] | None = None
        self._gaps_s: list[tuple[float, float]] = []

    def __bool__(self) -> bool:  # whether there is any sample
        return self._last is not None

    @property
    def last_s(self) -> float | None:
        """When the last sample was taken; ``None`` before the first."""
        return self._series.last_s

    @property
    def has_gap(self) -> bool:
        """Whether there was a gap longer than ``MAX_GAP_S`` at any time."""
        return bool(self._gaps_s)

    @property
    def total_j(self) -> float | None:
        """Joules since the first sample; ``None`` before it, and after the first gap."""
        return None if self._gaps_s else self._series.last_j

    def add(self, time_s: float, power_w: float) -> None:
        """Add a sample, later than all before."""
        total_j = self._series.last_j or 0.0  # the origin of the integral, not a measurement
        if self._last is not None:
            last_s, last_w = self._last
            total_j += 0.5 * (last_w + power_w) * (time_s - last_s)
            if time_s - last_s > MAX_GAP_S:
                self._gaps_s.append((last_s, time_s))
        self._series.add(time_s, total_j)
        self._last = (time_s, power_w)

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if it holds a gap or was not sampled."""
        if any(start_s < until_s and since_s < end_s for start_s, end_s in self._gaps_s):
            return None
        return self._series.energy_j(since_s, until_s)
