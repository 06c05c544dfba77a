"""What the steps of a training have shown: their times, and the noise scale of each epoch."""

from __future__ import annotations

import statistics
import time
from collections import deque

_MAX_TIMES = 32  # of a batch size, to take the median of


class StepHistory:
    """Step times by batch size, and the noise scale summed over the steps of an epoch."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._last_t: float | None = None  # the last step; ``None`` after a pause
        self._steps = 0  # of this epoch
        self._noise_scales: list[float] = []  # of the steps of this epoch at which it was known

    def begin_epoch(self) -> None:
        """Forget the steps of the epoch before, but not their times."""
        self._last_t, self._steps, self._noise_scales = None, 0, []

    def add_step(self, batch_size: int, samples: int, noise_scale: float | None) -> None:
        """Add a step that has just ended; one with fewer samples than a batch is not timed."""
        now_t = time.monotonic()
        if self._last_t is not None and samples == batch_size:
            times = self._times.setdefault(batch_size, deque(maxlen=_MAX_TIMES))
            times.append(now_t - self._last_t)
        self._last_t = now_t
        self._steps += 1
        if noise_scale is not None:
            self._noise_scales.append(noise_scale)

    def pause(self) -> None:
        """Do not time the next step: it has another batch size."""
        self._last_t = None

    def median_times_s(self) -> dict[int, float]:
        """Return the median seconds of a step, by batch size."""
        return {size: statistics.median(times) for size, times in self._times.items()}

    def sum_noise_scale(self) -> float | None:
        """Return the noise scale summed over the steps of this epoch; ``None`` if never known.

        A step at which it was not known counts as the mean of the others.
        """
        if not self._noise_scales:
            return None
        return statistics.fmean(self._noise_scales) * self._steps
