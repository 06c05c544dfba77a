"""The two accounts of a device's energy: its counter, which is watched, and its sampled power."""

from __future__ import annotations

from zeusrun.energy.series import REACH_S, EnergySeries, trapezoid_j

# A counter that has not moved for this long, while more than this was drawn all along, stands
# still. NVML's moves every 100 ms or so, some old ones every second, and a GPU that draws under
# half a watt is asleep.
STILL_S = 2.0
ASLEEP_W = 0.5
# Without a power reading, a counter that has not moved for this long is taken to be at rest.
REST_S = 0.5
# A counter that moves on by more than so many times the maximum power, over the time since it last
# moved and the second by which it may be late, tells what nothing can have used.
_LEAP = 3.0
_LATE_S = 1.0
_UNKNOWN_MAX_POWER_W = 3000.0  # more than any one GPU draws
# Sampled power says nothing about a longer silence; a counter does.
MAX_GAP_S = 5.0


class CounterAccount:
    """Energy by a device's counter, until it proves wrong.

    Attributes:
        dropped: Whether it has: it is then never looked at again.
        moved: Whether it has been seen to move.
        series: What it told.
    """

    def __init__(self, *, is_model: bool, max_power_w: float | None = None) -> None:
        """Begin.

        Args:
            is_model: Whether it is no counter but a model, which may stand still and is exact at
                every look.
            max_power_w: The most that the device may draw; ``None`` if unknown.
        """
        self.dropped = False
        self.moved = False
        self.series = EnergySeries()
        self._is_model = is_model
        self._leap_w = _LEAP * (max_power_w or _UNKNOWN_MAX_POWER_W)
        self._moved_s = 0.0
        self._drawing_since_s = 0.0
        self._told_s = 0.0
        self._misses = 0  # since it told something

    def look(
        self,
        time_s: float,
        energy_j: float | None,
        power_w: float | None,
        utilization: float | None = None,
    ) -> str | None:
        """Take what the counter tells, and what the device tells beside it.

        Args:
            time_s: When, later than at the last look.
            energy_j: What the counter tells.
            power_w: Momentary draw.
            utilization: See ``device.Health``: without a power reading, 0 says that it may sleep.

        Returns:
            What is wrong with it, if it was dropped just now.
        """
        last_j = self.series.last_j
        if energy_j is None:
            return self._miss(time_s)
        self._told_s, self._misses = time_s, 0
        if last_j is not None and energy_j < last_j:
            return self._drop(f"ran backwards, from {last_j:.1f} to {energy_j:.1f} J")
        if last_j is None or energy_j > last_j:
            if last_j is not None and self._is_leap(time_s, energy_j - last_j):
                return self._drop(
                    f"leapt from {last_j:.1f} to {energy_j:.1f} J within "
                    f"{time_s - self._moved_s:.1f} s, more than can be drawn"
                )
            self.moved = last_j is not None
            self._moved_s = self._drawing_since_s = time_s
            self.series.add(time_s, energy_j)
            return None
        if self._may_stand(power_w, utilization):
            self._drawing_since_s = time_s
        elif time_s - self._drawing_since_s >= STILL_S:
            told = "it tells no power" if power_w is None else f"{power_w:.0f} W are drawn"
            return self._drop(f"stands still while {told}")
        if self._is_at_rest(time_s, power_w):
            self.series.rest(time_s)
        else:
            self.series.wait(time_s)
        return None

    def _miss(self, time_s: float) -> str | None:
        """Take a look at which it tells nothing: once, or for as long as energy is extrapolated."""
        if self.series.last_j is None:
            return self._drop("is not supported")
        self._misses += 1
        if self._misses == 1 or time_s - self._told_s < REACH_S:
            return None
        return self._drop("is not told any more")

    def _is_leap(self, time_s: float, step_j: float) -> bool:
        within_s = time_s - self._moved_s + _LATE_S
        return not self._is_model and step_j > self._leap_w * within_s

    def _may_stand(self, power_w: float | None, utilization: float | None) -> bool:
        """Whether the device may be asleep."""
        if self._is_model:
            return True
        return utilization == 0 if power_w is None else power_w < ASLEEP_W

    def _is_at_rest(self, time_s: float, power_w: float | None) -> bool:
        """Whether a counter that has not moved says that nothing was used, rather than not yet."""
        if self._is_model:
            return True
        if power_w is not None:
            return power_w < ASLEEP_W
        return time_s - (self.series.last_s or 0.0) >= REST_S

    def _drop(self, complaint: str) -> str:
        self.dropped = True
        return complaint


class PowerAccount:
    """Energy by integrating sampled power, as far as it was sampled without a long silence."""

    def __init__(self) -> None:
        self._series = EnergySeries()
        self._last: tuple[float, float] | None = None
        self._gaps_s: list[tuple[float, float]] = []

    def __bool__(self) -> bool:
        """Whether any power was told."""
        return self._last is not None

    @property
    def last_s(self) -> float | None:
        """When power was told last; ``None`` before the first sample."""
        return None if self._last is None else self._last[0]

    @property
    def has_gap(self) -> bool:
        """Whether it was silent for too long at any time."""
        return bool(self._gaps_s)

    @property
    def total_j(self) -> float | None:
        """Joules since the first sample; ``None`` before it, and from the first gap."""
        return None if self._gaps_s else self._series.last_j

    def add(self, time_s: float, power_w: float) -> None:
        """Take a sample, later than all others."""
        total_j = self._series.last_j or 0.0  # the origin of the integral, not a measurement
        if self._last is not None:
            last_s, last_w = self._last
            total_j += trapezoid_j(last_s, last_w, time_s, power_w)
            if time_s - last_s > MAX_GAP_S:
                self._add_gap(last_s, time_s)
        self._series.add(time_s, total_j)
        self._last = (time_s, power_w)

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if it holds a gap or was not sampled."""
        if any(start_s < until_s and since_s < end_s for start_s, end_s in self._gaps_s):
            return None
        return self._series.energy_j(since_s, until_s)

    def _add_gap(self, start_s: float, end_s: float) -> None:
        if self._gaps_s and self._gaps_s[-1][1] == start_s:  # a driver that is always this slow
            start_s = self._gaps_s.pop()[0]
        self._gaps_s.append((start_s, end_s))
