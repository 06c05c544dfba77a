"""What was seen of one device over a run, and which of its two accounts of energy to believe."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

from zeusrun.gpu.integrate import energy_between, recent_power_w, trapezoid_j
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from zeusrun.gpu.device import Reading

# A counter that has not moved for this long, while more than this was drawn all along, stands
# still. NVML's moves every 100 ms or so, and a GPU that draws under half a watt is asleep.
STILL_S = 2.0
ASLEEP_W = 0.5
# Sampled power says nothing about a longer silence; a counter does.
MAX_GAP_S = 5.0
# A series of this length (1 MB; 1.8 hours at 10 Hz) is thinned evenly to half, but for its last
# minute. Energies are cumulative, so only resolution is lost: after a day, samples 3 to 5 s apart.
MAX_SAMPLES = 1 << 16
_KEPT_WHOLE_S = 60.0


class EnergySeries:
    """Cumulative energy of one device by one account: a counter, or sampled power integrated."""

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._max_samples = max_samples
        self._times_s = array("d")
        self._energies_j = array("d")

    def __len__(self) -> int:
        return len(self._times_s)

    @property
    def last_j(self) -> float | None:
        """The latest cumulative joules; ``None`` before the first sample."""
        return self._energies_j[-1] if self._energies_j else None

    def add(self, time_s: float, energy_j: float) -> None:
        """Append a sample, later than all others."""
        self._times_s.append(time_s)
        self._energies_j.append(energy_j)
        if len(self._times_s) >= self._max_samples:
            self._thin()

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; see ``integrate.energy_between``."""
        return energy_between(self._times_s, self._energies_j, since_s, until_s)

    def power_w(self) -> float | None:
        """Return the mean watts of about the last second; ``None`` before two samples."""
        return recent_power_w(self._times_s, self._energies_j)

    def _thin(self) -> None:
        times_s, energies_j = self._times_s, self._energies_j
        self._times_s, self._energies_j = array("d"), array("d")
        distance_s = 2 * (times_s[-1] - times_s[0]) / self._max_samples
        next_s = times_s[0]
        whole_s = times_s[-1] - _KEPT_WHOLE_S
        for time_s, energy_j in zip(times_s, energies_j, strict=True):
            if time_s >= next_s or time_s >= whole_s:
                self._times_s.append(time_s)
                self._energies_j.append(energy_j)
                next_s = time_s + distance_s


class EnergyTrack:
    """The readings of one device, and the choice between its counter and its sampled power.

    The choice is made by watching. A counter is believed once it has moved, until it stands still
    while power is drawn or runs backwards; then sampled power takes over for the whole run. A
    device without power readings has only its counter, which nothing can then contradict but
    itself.
    """

    def __init__(self, name: str, claimed_source: EnergySource) -> None:
        self.failed = False
        self._name = name
        self._estimated = claimed_source is EnergySource.ESTIMATED
        self._counter = EnergySeries()
        self._counter_moved = False
        self._counter_dropped = False
        self._still_since_s = 0.0
        self._integrated = EnergySeries()
        self._gaps_s: list[tuple[float, float]] = []
        self._last_power: tuple[float, float] | None = None
        self._last: tuple[float, Reading] | None = None

    def add(self, time_s: float, reading: Reading) -> str | None:
        """Take a reading.

        Args:
            time_s: When, on a monotonic clock. A reading no later than the last is ignored.
            reading: What was read.

        Returns:
            A sentence for the user if the counter was dropped just now.
        """
        if self._last is not None and time_s <= self._last[0]:
            return None
        self._last = (time_s, reading)
        if reading.power_w is not None:
            self._add_power(time_s, reading.power_w)
        if reading.energy_j is None or self._counter_dropped:
            return None
        complaint = self._watch_counter(time_s, reading.energy_j, reading.power_w)
        if complaint is None:
            self._counter.add(time_s, reading.energy_j)
            return None
        self._counter_dropped = True
        remedy = "sampled power is integrated instead" if self._integrated else "energy is unknown"
        return f"the energy counter of {self._name} {complaint}; {remedy}"

    def fail(self) -> None:
        """Give up on the device: its energy is unknown from now on, over any window."""
        self.failed = True

    @property
    def source(self) -> EnergySource | None:
        """Where the joules come from; ``None`` if there are none."""
        series = None if self.failed else self._trusted()
        if series is None:
            return None
        if self._estimated:
            return EnergySource.ESTIMATED
        return EnergySource.COUNTER if series is self._counter else EnergySource.INTEGRATED

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; ``None`` if the device failed or was not watched there."""
        series = None if self.failed else self._trusted()
        if series is None:
            return None
        if series is self._integrated and any(
            start_s < until_s and since_s < end_s for start_s, end_s in self._gaps_s
        ):
            return None
        return series.energy_j(since_s, until_s)

    def power_w(self) -> float | None:
        """Return the latest draw, or the last second's mean where only a counter tells."""
        if self.failed or self._last is None:
            return None
        power_w = self._last[1].power_w
        if power_w is None and not self._counter_dropped:
            return self._counter.power_w()
        return power_w

    def _trusted(self) -> EnergySeries | None:
        believed = self._counter_moved or not self._integrated
        if self._counter and believed and not self._counter_dropped:
            return self._counter
        return self._integrated or None

    def _add_power(self, time_s: float, power_w: float) -> None:
        total_j = self._integrated.last_j or 0.0  # the origin of the integral, not a measurement
        if self._last_power is not None:
            last_s, last_w = self._last_power
            total_j += trapezoid_j(last_s, last_w, time_s, power_w)
            if time_s - last_s > MAX_GAP_S:
                self._gaps_s.append((last_s, time_s))
        self._integrated.add(time_s, total_j)
        self._last_power = (time_s, power_w)

    def _watch_counter(self, time_s: float, energy_j: float, power_w: float | None) -> str | None:
        last_j = self._counter.last_j
        if last_j is not None and energy_j < last_j:
            return f"ran backwards, from {last_j:.1f} to {energy_j:.1f} J"
        moved = last_j is not None and energy_j > last_j
        self._counter_moved = self._counter_moved or moved
        if last_j is None or moved or power_w is None or power_w < ASLEEP_W:
            self._still_since_s = time_s
        elif time_s - self._still_since_s >= STILL_S:
            return f"stands still while {power_w:.0f} W are drawn"
        return None
