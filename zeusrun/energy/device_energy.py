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


class Accounts(NamedTuple):
    """The same energy by both accounts; ``None`` where an account is missing.

    Attributes:
        counter_j: Joules by the counter, while it is trusted.
        integrated_j: Joules by integrating sampled power.
    """

    counter_j: float | None
    integrated_j: float | None


class EnergyTrack:
    """The readings of one device, and the choice between its counter and its sampled power.

    A counter is trusted once it has moved, until it stands still while the device draws power, runs
    backwards or leaps. Then sampled power is used for the whole run. A device without power
    readings has only its counter, which may stand still only while the device computes nothing;
    until it has moved, the energy is unknown.

    A device may fail to answer for a few seconds, for example while its driver restarts. Its energy
    is unknown until it answers again.
    """

    def __init__(
        self, name: str, claimed_source: EnergySource, max_power_w: float | None = None
    ) -> None:
        """Start without readings.

        Args:
            name: Name of the device for messages.
            claimed_source: The best source that the device claims; a model is always trusted.
            max_power_w: The most that it may draw; ``None`` if unknown.
        """
        self.failed = False
        self._name = name
        self._is_model = claimed_source is EnergySource.ESTIMATED
        self._counter = CounterAccount(is_model=self._is_model, max_power_w=max_power_w)
        self._power = PowerAccount()
        # Joules to add to the total of sampled power once that replaces the counter; None if power
        # was not sampled while the counter was trusted.
        self._before_power_j: float | None = 0.0
        self._last: tuple[float, Reading] | None = None
        self._missing_since_s: float | None = None
        self._reported_missing = self._reported_back = self._reported_silent = False

    def add(self, time_s: float, reading: Reading) -> tuple[str, ...]:
        """Add a reading.

        Args:
            time_s: When, on a monotonic clock. A reading no later than the last is ignored.
            reading: The reading.

        Returns:
            Sentences for the user on what this reading changes about the device's energy.
        """
        if self._last is not None and time_s <= self._last[0]:
            return ()
        texts = () if self._missing_since_s is None else self._return(time_s)
        if self.failed:
            return texts
        self._last = (time_s, reading)
        if reading.power_w is not None:
            texts = (*texts, *self._add_power(time_s, reading.power_w))
        if self._counter.dropped:
            return texts
        if reading.energy_j is None and not self._counter.series and not self._power:
            return (*texts, *self._describe_silent())
        utilization = None if reading.health is None else reading.health.utilization
        complaint = self._counter.add(time_s, reading.energy_j, reading.power_w, utilization)
        return texts if complaint is None else (*texts, self._switch_to_power(time_s, complaint))

    def miss(self, time_s: float, why: str) -> tuple[str, ...]:
        """Record that the device did not answer; its energy is unknown until it does.

        Args:
            time_s: When it was read.
            why: The error.

        Returns:
            A sentence for the user, the first time and when the device counts as lost.
        """
        if self._missing_since_s is None:
            self._missing_since_s = time_s if self._last is None else self._last[0]
        self.failed = self.failed or time_s - self._missing_since_s > LOST_S
        if self._reported_missing and not (self.failed and self._reported_back):
            return ()
        return self._describe_missing(why)

    def end(self) -> tuple[str, ...]:
        """Record the end of the run: a device that does not answer now has failed.

        Returns:
            A sentence for the user on why its energy is unknown, unless there was one already.
        """
        if self.failed:
            return ()
        if self._missing_since_s is None:
            return self._describe_unfinished()
        self.failed = True
        return self._describe_missing("it did not answer at the end") if self._reported_back else ()

    def fail(self) -> None:
        """Mark the device as failed: its energy is unknown over every window."""
        self.failed = True

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
        """Cumulative joules with an arbitrary origin: the counter, continued by sampled power.

        ``None`` if the device has neither, or after the first gap in its sampled power.
        """
        if self._last is not None and not self._counter.dropped:
            return self._last[1].energy_j
        before_j, total_j = self._before_power_j, self._power.total_j
        return None if total_j is None or before_j is None else before_j + total_j

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
        """Return a warning if the two accounts of a window differ too much.

        Returns:
            ``None`` if they agree, if one is missing, or if the window is too short.
        """
        counter_j, integrated_j = self.accounts_j(since_s, until_s)
        if counter_j is None or integrated_j is None or until_s - since_s < _JUDGED_S:
            return None
        if abs(counter_j - integrated_j) <= _DISAGREEMENT * counter_j:
            return None
        return (
            f"the energy of {self._name} is in doubt: {counter_j:.0f} J by its counter, which "
            f"counts, but {integrated_j:.0f} J by sampled power over {until_s - since_s:.0f} s"
        )

    def power_w(self) -> float | None:
        """Return the latest power; without readings, the counter's mean of the last second."""
        if self._last is None or self._is_out():
            return None
        power_w = self._last[1].power_w
        if power_w is None and self._counts():
            return self._counter.series.power_w()
        return power_w

    def _is_out(self) -> bool:
        return self.failed or self._missing_since_s is not None

    def _counts(self) -> bool:
        """Whether the counter is trusted."""
        counter = self._counter
        return bool(counter.series) and not counter.dropped and (counter.moved or self._is_model)

    def _add_power(self, time_s: float, power_w: float) -> tuple[str, ...]:
        had_gap = self._power.has_gap
        self._power.add(time_s, power_w)
        if had_gap or not self._power.has_gap or self._counts():
            return ()
        return self._describe_gap()

    def _switch_to_power(self, time_s: float, complaint: str) -> str:
        """Continue by sampled power from the last trusted value of the counter."""
        counted_s, counted_j = self._counter.series.last_s, self._counter.series.last_j
        total_j = self._power.total_j
        if counted_s is not None and counted_j is not None:
            self._before_power_j = None
            if total_j is not None:
                since_j = self._power.energy_j(counted_s, time_s) or 0.0
                self._before_power_j = counted_j + since_j - total_j
        if not self._power:
            remedy = "the energy of this run is unknown"
        elif self._power.has_gap:
            remedy = "sampled power has a gap, so the energy of this run is unknown"
        else:
            remedy = "sampled power is integrated instead"
        return f"the energy counter of {self._name} {complaint}; {remedy}"

    def _return(self, time_s: float) -> tuple[str, ...]:
        missed_s = time_s - (self._missing_since_s or 0.0)
        self._missing_since_s = None
        if missed_s > LOST_S:
            self.failed = True
            return (
                self._describe_missing("it did not answer in time") if self._reported_back else ()
            )
        if self._reported_back:
            return ()
        self._reported_back = True
        return (f"{self._name} answers again after {missed_s:.1f} s; its energy is known again",)

    def _describe_missing(self, why: str) -> tuple[str, ...]:
        self._reported_missing = True
        return (f"{self._name} failed; the energy of this run is unknown: {why}",)

    def _describe_unfinished(self) -> tuple[str, ...]:
        """Return what only the end shows: power that never came back, a stuck counter."""
        if self._last is None or self._counts():
            return ()
        if self._power.last_s is not None:
            silent_s = self._last[0] - self._power.last_s
            return () if self._power.has_gap or silent_s <= REACH_S else self._describe_gap()
        if self._counter.dropped or not self._counter.series:
            return ()  # there was a warning at that time
        remedy = "the energy of this run is unknown"
        return (f"the energy counter of {self._name} never moved, and power is unknown; {remedy}",)

    def _describe_gap(self) -> tuple[str, ...]:
        return (
            f"{self._name} reported no power for too long; its energy is unknown for that time",
        )

    def _describe_silent(self) -> tuple[str, ...]:
        if self._reported_silent:
            return ()
        self._reported_silent = True
        return (
            f"{self._name} reports neither energy nor power; the energy of this run is unknown",
        )
