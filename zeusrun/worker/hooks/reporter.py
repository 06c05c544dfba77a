"""Records the metrics that hooks see, at most about once a second each."""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from zeusrun.worker.context import RunContext
    from zeusrun.worker.hooks.observer import Observer

_INTERVAL_S = 1.0  # between two records of one metric in one epoch
_MAX_NAMES = 1000


class Reporter:
    """Records on rank 0 what the script passes to libraries with hooks.

    Attributes:
        muted: Whether to record nothing, as during an evaluation after the training.
    """

    def __init__(self, run: RunContext, observer: Observer) -> None:
        self._run = run
        self._observer = observer
        self.muted = False
        self._counts: dict[tuple[str, str], int] = {}
        self._written: dict[tuple[str, str], tuple[int, float, float]] = {}
        self._held: dict[tuple[str, str], tuple[int, float]] = {}

    def log(self, source: str, metrics: Mapping[str, Any], epoch: int | None = None) -> None:
        """Record those of the metrics that are numbers.

        A metric that is logged at every step is recorded once a second, when an epoch is over, and
        when it meets the target.

        Args:
            source: The library.
            metrics: Values by name; what is not one number is ignored. Values of a mapping
                within it get both names: ``accuracy/f1``.
            epoch: Epochs completed; by default, the passes over the training loader, else the
                number of values of the metric.
        """
        run = self._run
        if run.rank != 0 or self.muted:
            return
        now = time.monotonic()
        values: dict[int, dict[str, float]] = {}
        for name, raw in _flat(metrics):
            value = number_of(raw)
            key = (source, name)
            if value is None or (key not in self._counts and len(self._counts) >= _MAX_NAMES):
                continue
            count = self._counts[key] = self._counts.get(key, 0) + 1
            at = next(n for n in (epoch, self._observer.epoch, count) if n is not None)
            last_epoch, last_t, last_value = self._written.get(key, (-1, -math.inf, math.nan))
            if at == last_epoch and value == last_value:
                self._held.pop(key, None)
                continue
            soon = at == last_epoch and now - last_t < _INTERVAL_S
            if soon and not run.meets_target(name, value):
                self._held[key] = (at, value)
                continue
            held = self._held.pop(key, None)
            if held is not None and held[0] != at:
                values.setdefault(held[0], {})[name] = held[1]
            self._written[key] = (at, now, value)
            values.setdefault(at, {})[name] = value
        for at in sorted(values):
            run.report_for(source, at, values[at])

    def flush(self) -> None:
        """Record the last value of every metric that was held back."""
        held, self._held = self._held, {}
        together: dict[tuple[str, int], dict[str, float]] = {}
        for (source, name), (epoch, value) in held.items():
            together.setdefault((source, epoch), {})[name] = value
        for (source, epoch), values in together.items():
            self._run.report_for(source, epoch, values)


def _flat(metrics: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, raw in metrics.items():
        if isinstance(raw, dict):
            yield from ((f"{name}/{inner}", value) for inner, value in raw.items())
        else:
            yield str(name), raw


def number_of(raw: Any) -> float | None:
    """Return a number, or a tensor or array of one number, as a float; ``None`` for all else."""
    if isinstance(raw, (str, bytes, bool)) or raw is None:
        return None
    try:
        return float(raw)
    except Exception:  # noqa: BLE001 - it may be of any type; an int may be too large
        return None
