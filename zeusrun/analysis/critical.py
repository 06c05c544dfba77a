"""The critical batch size of a job, from the epochs that its own batch sizes needed. Pure.

Epochs to the target grow as ``1 + batch size / critical batch size`` (McCandlish et al., "An
Empirical Model of Large-Batch Training", 2018, arXiv:1812.06162): up to it, twice the batch size
needs little more than half the steps; far beyond it, as many.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.problem import mean_log_epochs

if TYPE_CHECKING:
    from zeusrun.bandit.auto.evidence import Evidence

_LEAST_RUNS = 3
_LAW_SD = 0.1  # of the log epochs of a batch size: the law is rough
_FACTOR = 16.0  # how far beyond the batch sizes with runs it may be
_KNOWN_WITHIN = 4.0  # times the batch sizes with runs: further away, an end is unknown


class CriticalSize(NamedTuple):
    """A critical batch size with its range of 90 %; ``None`` for an end that cannot be told."""

    low: float | None
    value: float
    high: float | None
    sizes: int  # batch sizes that it is fitted to


def fit_critical(evidence: Evidence) -> CriticalSize | None:
    """Return the critical batch size; ``None`` without three runs of at least two batch sizes."""
    reached = {size: runs for size, runs in evidence.reached.items() if runs}
    if len(reached) < 2 or sum(map(len, reached.values())) < _LEAST_RUNS:
        return None
    sizes = np.array(sorted(reached))
    means, counts = zip(*(mean_log_epochs(reached[size]) for size in sorted(reached)), strict=True)
    precision = 1 / (evidence.run_sd**2 / np.array(counts) + _LAW_SD**2)
    # Any critical batch size is as likely as twice that, within what the batch sizes can tell.
    tried = np.geomspace(sizes[0] / _FACTOR, sizes[-1] * _FACTOR, 400)
    rest = np.array(means) - np.log1p(sizes / tried[:, None])
    rest -= (rest @ precision / precision.sum())[:, None]
    fit = -(rest**2 @ precision) / 2
    below = np.cumsum(np.exp(fit - fit.max()))
    low, value, high = np.interp(np.array([0.05, 0.5, 0.95]) * below[-1], below, tried)
    return CriticalSize(
        float(low) if low > sizes[0] / _KNOWN_WITHIN else None,
        float(value),
        float(high) if high < sizes[-1] * _KNOWN_WITHIN else None,
        len(sizes),
    )
