"""The readings of one device over a run, and the choice between its two accounts of energy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.series import REACH_S, EnergySeries
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from zeusrun.energy.device import Reading

# A device that does not answer for this long, longer than a driver restart takes, is lost.
LOST_S = 5.0
# Warn if the two accounts of the same energy differ by more than this over at least this long. In
# a shorter run, sampled power that is a 1 s average can explain the difference.
_DISAGREEMENT = 0.1
_JUDGED_S = 30.0
_UNKNOWN = "the energy of this run is unknown"


class Accounts(NamedTuple):
    """Joules by the counter, while it is trusted, and by sampled power; ``None`` is unknown."""

    counter_j: float | None
    integrated_j: float | None


class EnergyTrack:
    """The readings of one device, and the choice between its counter and its sampled power.

    A counter is trusted once it has moved, until it stands still while the device draws power, runs
    backwards or leaps. Then sampled power is used for the whole run. A device without power
    readings has only its counter; until that has moved, the energy is unknown.

    While a device does not answer, its energy is unknown; after ``LOST_S`` it has ``failed`` for
    good. Methods that return a tuple of strings return sentences for the user.
    """

    def __init__(
        self, name: str, claimed_source: EnergySource, max_power_w: float | None = None
    ) -> None:
        """Start without readings; ``name`` is for messages."""
        self.failed = False
        self.name = name
        self._is_model = claimed_source is EnergySource.ESTIMATED
        self._max_power_w = max_power_w
        self._dropped = False  # the counter, for the rest of the run
        self._counter = CounterAccount(is_model=self._is_model, max_power_w=max_power_w)
        self._power = PowerAccount()
        self._last: tuple[float, Reading] | None = None
        self._missing_since_s: float | None = None
        self._error = ""  # of the last reading that failed

    def add(self, time_s: float, reading: Reading) -> tuple[str, ...]:
        """Add a reading; one that is no later than the last is ignored."""
        if self._last is not None and time_s <= self._last[0]:
            return ()
        if self._missing_since_s is not None and time_s - self._missing_since_s > LOST_S:
            return self._lose()
        self._missing_since_s, self._last = None, (time_s, reading)
        if reading.power_w is not None:
            self._power.sample(time_s, reading.power_w)
        if self._dropped:
            return ()
        complaint = self._counter.add(time_s, reading.energy_j, reading.power_w)
        if complaint is None:
            return ()
        self._dropped = True
        remedy = "sampled power is integrated instead" if self._power else _UNKNOWN
        return (f"the energy counter of {self.name} {complaint}; {remedy}",)

    def miss(self, time_s: float, error: str) -> tuple[str, ...]:
        """Record that the device did not answer; its energy is unknown until it does."""
        self._error = error
        if self._missing_since_s is None:
            self._missing_since_s = time_s if self._last is None else self._last[0]
        return self._lose() if time_s - self._missing_since_s > LOST_S else ()

    def end(self) -> tuple[str, ...]:
        """Record the end of the run: a device that does not answer now is lost."""
        if self._missing_since_s is not None and not self.failed:
            return self._lose()
        if self._last is None or self.failed or self._counts():
            return ()
        if self._power.last_s is not None:
            silent = bool(self._power.gaps_s) or self._last[0] - self._power.last_s > REACH_S
            why = "reported no power for too long; its energy is unknown for that time"
        else:
            silent = not self._dropped  # there was a warning at that time
            why = f"reported no power, and its energy counter never moved; {_UNKNOWN}"
        return (f"{self.name} {why}",) if silent else ()

    @property
    def last_s(self) -> float | None:
        """When it was read last; ``None`` before the first reading."""
        return None if self._last is None else self._last[0]

    @property
    def source(self) -> EnergySource | None:
        """Where the joules come from; ``None`` if they are unknown."""
        if self._is_out():
            return None
        if not self._counts():
            return EnergySource.INTEGRATED if self._power else None
        return EnergySource.ESTIMATED if self._is_model else EnergySource.COUNTER

    @property
    def cumulative_j(self) -> float | None:
        """Cumulative joules with an arbitrary origin; ``None`` once the counter was dropped.

        Sampled power takes the place of a counter that has never answered.
        """
        if self._last is not None and not self._dropped:
            return self._last[1].energy_j
        return None if self._counter.series else self._power.total_j

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if the device failed or was not sampled there."""
        if self._is_out():
            return None
        if self._counts():
            return self._counter.series.energy_j(since_s, until_s)
        return self._power.energy_j(since_s, until_s)

    def accounts_j(self, since_s: float, until_s: float) -> Accounts:
        """Return the joules of a window by both accounts; a model has neither."""
        if self._is_out() or self._is_model:
            return Accounts(None, None)
        counted_j = self._counter.series.energy_j(since_s, until_s) if self._counts() else None
        return Accounts(counted_j, self._power.energy_j(since_s, until_s))

    def disagreement(self, since_s: float, until_s: float) -> str | None:
        """Return a warning if the two accounts of a long window differ too much."""
        counter_j, integrated_j = self.accounts_j(since_s, until_s)
        if counter_j is None or integrated_j is None or until_s - since_s < _JUDGED_S:
            return None
        if abs(counter_j - integrated_j) <= _DISAGREEMENT * counter_j:
            return None
        return (
            f"the energy of {self.name} is uncertain: {counter_j:.0f} J by its counter, which is "
            f"used, but {integrated_j:.0f} J by sampled power over {until_s - since_s:.0f} s"
        )

    def power_w(self) -> float | None:
        """Return the latest power; without readings, the counter's mean of the last second."""
        if self._last is None or self._is_out():
            return None
        power_w = self._last[1].power_w
        if power_w is None and self._counts():
            power_w = self._counter.series.power_w()
            if self._is_model and power_w is not None:
                return min(power_w, self._max_power_w or power_w)  # clock ticks are 10 ms
        return power_w

    def _is_out(self) -> bool:
        return self.failed or self._missing_since_s is not None

    def _counts(self) -> bool:
        """Whether the counter is trusted."""
        counter = self._counter
        return bool(counter.series) and not self._dropped and (counter.moved or self._is_model)

    def _lose(self) -> tuple[str, ...]:
        self.failed = True
        return (f"{self.name} failed; {_UNKNOWN}: {self._error}",)


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
        self._highest_w = max_power_w or math.inf
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
        within_s = time_s - self._moved_s
        most_j = self._leap_w * (within_s + _LATE_S)
        if last_j is not None and not 0 <= energy_j - last_j <= most_j:
            return f"jumped from {last_j:.1f} to {energy_j:.1f} J within {within_s:.1f} s"
        if last_j is None or energy_j > last_j:
            self.moved = last_j is not None
            self._moved_s = self._drawing_since_s = time_s
            if self._is_model:  # it finds a process, and all that it has used, a second late
                self.series.catch_up(time_s, energy_j, self._highest_w)
            else:
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
