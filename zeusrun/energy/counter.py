"""Two accounts of a device's energy: its hardware counter, and its sampled power integrated."""

from __future__ import annotations

import math

from zeusrun.energy.series import EnergySeries

# A counter that does not move for STILL_S while the device draws more than ASLEEP_W is stuck.
# NVML's counter moves about every 100 ms, on some old GPUs every second. A GPU that draws less than
# half a watt is asleep.
STILL_S = 2.0
ASLEEP_W = 0.5
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
        self._leap_w = math.inf if is_model else _LEAP * (max_power_w or _UNKNOWN_MAX_POWER_W)
        self._moved_s = 0.0
        self._drawing_since_s = 0.0
        self._answered_s = 0.0

    def add(self, time_s: float, energy_j: float | None, power_w: float | None) -> str | None:
        """Add a later reading; return what is wrong with the counter if it is to be dropped."""
        last_j = self.series.last_j
        if energy_j is None:
            if last_j is None:
                return "is not supported"
            well = time_s - self._answered_s <= STILL_S
            return None if well else "does not answer any more"
        self._answered_s = time_s
        if last_j is not None and energy_j < last_j:
            return f"ran backwards, from {last_j:.1f} to {energy_j:.1f} J"
        if last_j is None or energy_j > last_j:
            within_s = time_s - self._moved_s
            if last_j is not None and energy_j - last_j > self._leap_w * (within_s + _LATE_S):
                return (
                    f"leapt from {last_j:.1f} to {energy_j:.1f} J within {within_s:.1f} s, more "
                    "than the device can draw"
                )
            self.moved = last_j is not None
            self._moved_s = self._drawing_since_s = time_s
            self.series.add(time_s, energy_j)
        elif self._is_model or (power_w is not None and power_w < ASLEEP_W):
            self._drawing_since_s = time_s
            self.series.rest(time_s)  # no energy was used
        elif time_s - self._drawing_since_s >= STILL_S:
            power = "power is unknown" if power_w is None else f"the device draws {power_w:.0f} W"
            return f"stands still while {power}"
        else:
            self.series.wait(time_s)  # a step is due
        return None


class PowerAccount(EnergySeries):
    """Energy by integrating sampled power, where there is no long gap between samples."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps_s: list[tuple[float, float]] = []  # those longer than ``MAX_GAP_S``
        self._last_w = 0.0

    @property
    def total_j(self) -> float | None:
        """Joules since the first sample; ``None`` before it, and after the first gap."""
        return None if self.gaps_s else self.last_j

    def sample(self, time_s: float, power_w: float) -> None:
        """Add a sample, later than all before."""
        last_s, total_j = self.last_s, self.last_j
        if last_s is None or total_j is None:
            total_j = 0.0  # the origin of the integral, not a measurement
        else:
            total_j += 0.5 * (self._last_w + power_w) * (time_s - last_s)
            if time_s - last_s > MAX_GAP_S:
                self.gaps_s.append((last_s, time_s))
        self.add(time_s, total_j)
        self._last_w = power_w

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if it holds a gap or was not sampled."""
        if any(start_s < until_s and since_s < end_s for start_s, end_s in self.gaps_s):
            return None
        return super().energy_j(since_s, until_s)
