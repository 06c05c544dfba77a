"""Which arm to run next: what one run of it would teach against what it would cost. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from zeusrun.bandit.auto.beliefs import Array, Beliefs

# What is learned is used for as many recurrences as there were, and these.
HORIZON = 30

# Gauss-Hermite nodes and weights of a standard normal (Golub and Welsch, 1969); numpy's own take
# longer to import than the rest of this package.
_NODES, _VECTORS = np.linalg.eigh(np.diag(np.sqrt(np.arange(1.0, 13.0)), 1), UPLO="U")
_WEIGHTS = _VECTORS[0] ** 2


def values_of_trying(
    beliefs: Beliefs,
    usable: Collection[int],
    in_flight: Collection[int],
    recurrences: int,
) -> Array:
    """Return what trying each arm is worth, in runs of the incumbent, shape ``(n,)``.

    The knowledge gradient (Frazier, Powell and Dayanik, 2009) in log cost: how much cheaper the
    best arm is expected to look after one more run of this one, over the horizon, less what that
    run is expected to cost more than one of the incumbent. It is charged at most what it would
    be stopped at. Zero for the incumbent; minus infinity for arms that may not be run and for
    those in flight, whose results are taken to come in as expected.

    Args:
        beliefs: With an incumbent.
        usable: Arms that may be run.
        in_flight: Arms that other recurrences are running.
        recurrences: How many there were.
    """
    incumbent = beliefs.incumbent
    if incumbent is None:
        raise ValueError("there is no incumbent to compare with")
    noise = beliefs.run_sd**2
    mean, covariance = beliefs.mean - beliefs.mean[incumbent], beliefs.covariance
    flying = [i for i, arm in enumerate(beliefs.arms) if arm in in_flight and i != incumbent]
    for i in flying:
        covariance = covariance - np.outer(covariance[i], covariance[i]) / (
            covariance[i, i] + noise
        )
    open_ = [i for i, arm in enumerate(beliefs.arms) if arm in usable]
    tried = [i for i in open_ if i != incumbent and i not in flying]
    values = np.full(len(beliefs.arms), -math.inf)
    values[incumbent] = 0.0
    if not tried:
        return values
    variance = np.maximum(0.0, covariance.diagonal()[tried])
    moves = covariance[np.ix_(open_, tried)] / np.sqrt(variance + noise)
    after = mean[open_, None, None] + moves[..., None] * _NODES - moves[..., None] ** 2 / 2
    gain = np.exp(mean[open_].min()) - np.exp(after).min(axis=0) @ _WEIGHTS
    cost = np.exp(mean[tried])
    stopped = math.inf if beliefs.bound_factor is None else beliefs.bound_factor
    loss = np.maximum(np.minimum(cost * np.exp(variance / 2) - 1, stopped), cost - 1)
    values[tried] = (recurrences + HORIZON) * gain - loss
    return values
