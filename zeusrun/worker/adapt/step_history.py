"""What the steps of a training have shown: how long they take at each batch size."""

from __future__ import annotations

import statistics
import time
from collections import deque

_MAX_TIMES = 32  # of a batch size, to take the median of


class StepHistory:
    """Step times by batch size."""

    def __init__(self) -> None:
        self._times: dict[int, deque[float]] = {}
        self._last_t: float | None = None  # the last step; ``None`` after a pause

    def add_step(self, batch_size: int, samples: int) -> None:
        """Add a step that has just ended; one with fewer samples than a batch is not timed."""
        now_t = time.monotonic()
        if self._last_t is not None and samples == batch_size:
            times = self._times.setdefault(batch_size, deque(maxlen=_MAX_TIMES))
            times.append(now_t - self._last_t)
        self._last_t = now_t

    def pause(self) -> None:
        """Do not time the next step: it has another batch size, or begins an epoch."""
        self._last_t = None

    def median_times_s(self) -> dict[int, float]:
        """Return the median seconds of a step, by batch size."""
        return {size: statistics.median(times) for size, times in self._times.items()}
