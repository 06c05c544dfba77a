"""What was seen of one device over a run, and which of its two accounts of energy to believe."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.energy.counter import CounterAccount, PowerAccount
from zeusrun.energy.series import REACH_S
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from zeusrun.energy.device import Reading

# A device that does not answer for longer than a driver takes to restart is lost.
LOST_S = 5.0
# Two accounts of the same energy that are further apart than this, over at least so long, are told
# to the user. In a shorter run, the 1 s average that sampled power may be can explain it.
_DISAGREEMENT = 0.1
_JUDGED_S = 30.0


class Accounts(NamedTuple):
    """The same energy by both accounts; ``None`` where there is no such account.

    Attributes:
        counter_j: Joules by the counter, while it is believed.
        integrated_j: Joules by integrating sampled power.
    """

    counter_j: float | None
    integrated_j: float | None


class EnergyTrack:
    """The readings of one device, and the choice between its counter and its sampled power.

    The choice is made by watching. A counter is believed once it has moved, until it stands still
    while power is drawn, runs backwards or leaps; then sampled power takes over for the whole run.
    A device without power readings has only its counter: that may stand still only while nothing
    is computed, and until it has moved it counts for nothing.

    A device may miss answers for a few seconds, as while its driver restarts: its energy is unknown
    until it answers again.
    """

    def __init__(
        self, name: str, claimed_source: EnergySource, max_power_w: float | None = None
    ) -> None:
        """Begin; nothing is known yet.

        Args:
            name: What to call the device.
            claimed_source: The best that it says it has; of a model nothing is doubted.
            max_power_w: The most that it may draw; ``None`` if unknown.
        """
        self.failed = False
        self._name = name
        self._is_model = claimed_source is EnergySource.ESTIMATED
        self._counter = CounterAccount(is_model=self._is_model, max_power_w=max_power_w)
        self._power = PowerAccount()
        # What goes before the total of sampled power, once that takes over; None: it never was
        # sampled alongside.
        self._before_power_j: float | None = 0.0
        self._last: tuple[float, Reading] | None = None
        self._missing_since_s: float | None = None
        self._told_missing = self._told_back = self._told_silent = False

    def add(self, time_s: float, reading: Reading) -> tuple[str, ...]:
        """Take a reading.

        Args:
            time_s: When, on a monotonic clock. A reading no later than the last is ignored.
            reading: What was read.

        Returns:
            Sentences for the user on what has just changed about this device's energy.
        """
        if self._last is not None and time_s <= self._last[0]:
            return ()
        told = () if self._missing_since_s is None else self._come_back(time_s)
        if self.failed:
            return told
        self._last = (time_s, reading)
        if reading.power_w is not None:
            told = (*told, *self._add_power(time_s, reading.power_w))
        if self._counter.dropped:
            return told
        if reading.energy_j is None and not self._counter.series and not self._power:
            return (*told, *self._tell_silent())
        utilization = None if reading.health is None else reading.health.utilization
        complaint = self._counter.look(time_s, reading.energy_j, reading.power_w, utilization)
        return told if complaint is None else (*told, self._turn_to_power(time_s, complaint))

    def miss(self, time_s: float, why: str) -> tuple[str, ...]:
        """Take note that the device did not answer; its energy is unknown until it does.

        Args:
            time_s: When it was asked.
            why: What it said instead.

        Returns:
            A sentence for the user, the first time and when the device is given up.
        """
        if self._missing_since_s is None:
            self._missing_since_s = time_s if self._last is None else self._last[0]
        self.failed = self.failed or time_s - self._missing_since_s > LOST_S
        if self._told_missing and not (self.failed and self._told_back):
            return ()
        return self._tell_missing(why)

    def end(self) -> tuple[str, ...]:
        """Take note that nothing follows: a device that does not answer now has failed.

        Returns:
            A sentence for the user on what makes its energy unknown, unless one stands already.
        """
        if self.failed:
            return ()
        if self._missing_since_s is None:
            return self._tell_unfinished()
        self.failed = True
        return self._tell_missing("it did not answer at the end") if self._told_back else ()

    def fail(self) -> None:
        """Give up on the device: its energy is unknown from now on, over any window."""
        self.failed = True

    @property
    def last_s(self) -> float | None:
        """When it was read last; ``None`` before the first reading."""
        return None if self._last is None else self._last[0]

    @property
    def source(self) -> EnergySource | None:
        """Where the joules come from; ``None`` if there are none."""
        if self._is_out():
            return None
        if not self._counts():
            return EnergySource.INTEGRATED if self._power else None
        return EnergySource.ESTIMATED if self._is_model else EnergySource.COUNTER

    @property
    def cumulative_j(self) -> float | None:
        """Joules that only grow and start anywhere: the counter's, or goes on by sampled power.

        ``None`` if the device tells neither, or from the first gap in its sampled power.
        """
        if self._last is not None and not self._counter.dropped:
            return self._last[1].energy_j
        before_j, total_j = self._before_power_j, self._power.total_j
        return None if total_j is None or before_j is None else before_j + total_j

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if the device failed or was not watched there."""
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
        """Return a sentence if the two accounts of a window contradict each other.

        Returns:
            It, or ``None`` if they agree, if there are not both, or if the window is too short.
        """
        counter_j, integrated_j = self.accounts_j(since_s, until_s)
        if counter_j is None or integrated_j is None or until_s - since_s < _JUDGED_S:
            return None
        if abs(counter_j - integrated_j) <= _DISAGREEMENT * counter_j:
            return None
        return (
            f"the energy of {self._name} is in doubt: {counter_j:.0f} J by its counter, which is "
            f"billed, and {integrated_j:.0f} J by sampled power over {until_s - since_s:.0f} s"
        )

    def power_w(self) -> float | None:
        """Return the latest draw, or the last second's mean where only a counter tells."""
        if self._last is None or self._is_out():
            return None
        power_w = self._last[1].power_w
        if power_w is None and self._counts():
            return self._counter.series.power_w()
        return power_w

    def _is_out(self) -> bool:
        return self.failed or self._missing_since_s is not None

    def _counts(self) -> bool:
        """Whether the counter is believed."""
        counter = self._counter
        return bool(counter.series) and not counter.dropped and (counter.moved or self._is_model)

    def _add_power(self, time_s: float, power_w: float) -> tuple[str, ...]:
        had_gap = self._power.has_gap
        self._power.add(time_s, power_w)
        if had_gap or not self._power.has_gap or self._counts():
            return ()
        return self._tell_gap()

    def _turn_to_power(self, time_s: float, complaint: str) -> str:
        """Let sampled power go on from where the counter was believed last."""
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

    def _come_back(self, time_s: float) -> tuple[str, ...]:
        missed_s = time_s - (self._missing_since_s or 0.0)
        self._missing_since_s = None
        if missed_s > LOST_S:
            self.failed = True
            return self._tell_missing("it did not answer in time") if self._told_back else ()
        if self._told_back:
            return ()
        self._told_back = True
        return (f"{self._name} answers again after {missed_s:.1f} s; its energy is known again",)

    def _tell_missing(self, why: str) -> tuple[str, ...]:
        self._told_missing = True
        return (f"{self._name} failed; the energy of this run is unknown: {why}",)

    def _tell_unfinished(self) -> tuple[str, ...]:
        """Tell at the end what only the end shows: power that never came back, a dead counter."""
        if self._last is None or self._counts():
            return ()
        if self._power.last_s is not None:
            silent_s = self._last[0] - self._power.last_s
            return () if self._power.has_gap or silent_s <= REACH_S else self._tell_gap()
        if self._counter.dropped or not self._counter.series:
            return ()  # which was told when it was seen
        remedy = "the energy of this run is unknown"
        return (f"the energy counter of {self._name} never moved, and no power was told; {remedy}",)

    def _tell_gap(self) -> tuple[str, ...]:
        return (
            f"the power of {self._name} was not told for too long; its energy is unknown there",
        )

    def _tell_silent(self) -> tuple[str, ...]:
        if self._told_silent:
            return ()
        self._told_silent = True
        return (f"{self._name} tells neither energy nor power; the energy of this run is unknown",)
