"""The readings of one device over a run, and the choice between its two accounts of energy."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.counter import CounterAccount, PowerAccount
from zeusrun.energy.series import REACH_S
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
        self._name = name
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
        return (f"the energy counter of {self._name} {complaint}; {remedy}",)

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
        return (f"{self._name} {why}",) if silent else ()

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
            f"the energy of {self._name} is uncertain: {counter_j:.0f} J by its counter, which is "
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
        return (f"{self._name} failed; {_UNKNOWN}: {self._error}",)
