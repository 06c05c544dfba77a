"""Sums and medians of what may be unknown."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

from zeusrun.analysis.net_amounts import never_trained

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from zeusrun.trial import Trial


def sum_known(values: Iterable[float | None]) -> float | None:
    """Return the sum of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return _finite(sum(known)) if known else None


def total(own: Sequence[Trial], value: Callable[[Trial], float | None]) -> float | None:
    """Return the sum over attempts; ``None`` if that of one that trained is unknown."""
    found = [value(trial) for trial in own if not never_trained(trial)]
    return None if None in found else sum_known(found)


def median_known(values: Iterable[float | None]) -> float | None:
    """Return the median of what is known; ``None`` if nothing is."""
    known = [value for value in values if value is not None]
    return _finite(statistics.median(known)) if known else None


def _finite(amount: float) -> float | None:
    """Return an amount; ``None`` if it comes from damaged records."""
    return amount if math.isfinite(amount) else None
