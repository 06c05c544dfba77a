"""One account of a device's energy over a run: cumulative joules, bounded in memory."""

from __future__ import annotations

from array import array

from zeusrun.energy.integrate import energy_between, recent_power_w

# A series of this length (0.5 MB; 55 minutes at 10 Hz) is thinned evenly to half, but for its last
# minute. Energies are cumulative, so only resolution is lost: after a day, samples 3 to 5 s apart.
MAX_SAMPLES = 1 << 15
_KEPT_WHOLE_S = 60.0


class EnergySeries:
    """Cumulative energy by one account: a counter, or sampled power integrated.

    A counter is a staircase: NVML's moves about every 100 ms, some only every second. Looked at as
    often as it moves, it beats with the looks: some see no step, some see two. Only a look at which
    it has moved tells what had been used by then, so only those are samples, and energy is
    interpolated between them. A sample is then late by no more than the looks are apart, however
    rarely the counter moves, and a window is off by no more than what one step holds.
    """

    def __init__(self, max_samples: int = MAX_SAMPLES) -> None:
        self._max_samples = max_samples
        self._times_s = array("d")
        self._energies_j = array("d")
        self._looked_s = 0.0
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
        """Append a sample, later than all others."""
        times_s, energies_j = self._times_s, self._energies_j
        times_s.append(time_s)
        energies_j.append(energy_j)
        self._looked_s = time_s
        if self._begins_within_a_step and len(times_s) == 3:
            self._date_the_first()
        if len(times_s) >= self._max_samples:
            self._thin()

    def wait(self, time_s: float) -> None:
        """Take note of a look between two steps: what was used since the last one is not told."""
        self._looked_s = time_s
        if len(self._times_s) == 1:
            self._begins_within_a_step = True

    def rest(self, time_s: float) -> None:
        """Take note of a look that tells that nothing has been used since the last sample."""
        energies_j = self._energies_j
        if len(energies_j) >= 2 and energies_j[-1] == energies_j[-2]:
            self._times_s[-1] = self._looked_s = time_s
        else:
            self.add(time_s, energies_j[-1])

    def energy_j(self, since_s: float, until_s: float) -> float | None:
        """Return the joules of a window; see ``integrate.energy_between``."""
        return energy_between(
            self._times_s, self._energies_j, since_s, until_s, looked_s=self._looked_s
        )

    def power_w(self) -> float | None:
        """Return the mean watts of about the last second; ``None`` before two samples."""
        return recent_power_w(self._times_s, self._energies_j)

    def _date_the_first(self) -> None:
        """Correct the first sample, which a counter that moves once a second told up to 1 s late.

        At the first look, the counter may have been about to move. What it had not told is
        reckoned from the first two steps that were seen, and cannot be more than the first one.
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
