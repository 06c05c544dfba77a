"""Compares what a run of each arm would teach with what it would cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.beliefs import believe
from zeusrun.bandit.auto.evidence import gather
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.bandit.auto.beliefs import Array, Beliefs
    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.observation import Observation
    from zeusrun.bandit.problem import Problem

# The job is expected to recur as often as it has, plus this.
HORIZON = 30

# Gauss-Hermite nodes and weights of a standard normal (Golub and Welsch, 1969); those of numpy
# take longer to import than the rest of this package.
_NODES, _VECTORS = np.linalg.eigh(np.diag(np.sqrt(np.arange(1.0, 13.0)), 1), UPLO="U")
_WEIGHTS = _VECTORS[0] ** 2


@dataclass(frozen=True)
class Assessment:
    """Everything that a decision of ``auto`` depends on."""

    problem: Problem
    evidence: Evidence
    beliefs: Beliefs
    recurrences: int  # runs that have reached the target
    values: Array | None  # of trying each arm, in runs of the incumbent; ``None``: no cost is known


def assess(problem: Problem, runs: Sequence[Observation]) -> Assessment:
    """Assess all runs of the job, oldest first."""
    evidence = gather(problem, runs)
    beliefs = believe(problem, evidence)
    recurrences = sum(run.status is TrialStatus.REACHED for run in runs)
    values = None
    if beliefs.incumbent_cost_j is not None:
        usable = [arm for arm in evidence.fitting if arm not in evidence.failed_now]
        values = values_of_trying(beliefs, usable, evidence.in_flight, recurrences)
    return Assessment(problem, evidence, beliefs, recurrences, values)


def values_of_trying(
    beliefs: Beliefs, usable: Collection[int], in_flight: Collection[int], recurrences: int
) -> Array:
    """Return the value of trying each arm, in runs of the incumbent, shape ``(n,)``.

    The knowledge gradient (Frazier, Powell and Dayanik, 2009) in log cost: the expected saving over
    the horizon from one more run of the arm, less the expected cost of that run above one of the
    incumbent, which its bound limits. Zero for the incumbent; minus infinity for arms that are not
    usable, and for arms in flight in other recurrences, whose results are assumed as expected.
    """
    incumbent = beliefs.incumbent
    if incumbent is None:
        raise ValueError("there is no incumbent to compare with")
    noise = beliefs.run_sd**2
    mean, covariance = beliefs.mean - beliefs.mean[incumbent], beliefs.covariance
    flying = [i for i, arm in enumerate(beliefs.arms) if arm in in_flight and i != incumbent]
    for i in flying:
        known = covariance[i, i] + noise
        covariance = covariance - np.outer(covariance[i], covariance[i]) / known
    open_ = [i for i, arm in enumerate(beliefs.arms) if arm in usable]
    tried = [i for i in open_ if i != incumbent and i not in flying]
    values = np.full(len(beliefs.arms), -math.inf)
    values[incumbent] = 0.0
    if not tried:
        return values
    variance = np.maximum(0.0, covariance.diagonal()[tried])
    shifts = covariance[np.ix_(open_, tried)] / np.sqrt(variance + noise)
    after = mean[open_, None, None] + shifts[..., None] * _NODES - shifts[..., None] ** 2 / 2
    gain = np.exp(mean[open_].min()) - np.exp(after).min(axis=0) @ _WEIGHTS
    cost = np.exp(mean[tried])
    stopped = math.inf if beliefs.bound_factor is None else beliefs.bound_factor
    loss = np.maximum(np.minimum(cost * np.exp(variance / 2) - 1, stopped), cost - 1)
    values[tried] = (recurrences + HORIZON) * gain - loss
    return values
