"""What a run with each batch size costs, as draws of what is believed."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.auto.beliefs import condition, log_misses, prior_covariance
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import (
    GAUSSIAN90,
    RUN_SD,
    RUN_SD_WEIGHT,
    SDS90,
    SPEED_RUNS,
    average_speed,
    finite_exp,
    mean_log_epochs,
    newest_speeds,
    student,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.problem import Array, Problem, Runs

DRAWS = 2000
# How steep the curve of epochs over batch sizes is: as policy ``auto`` believes, which draws small
# differences together, or four times that, which leaves large ones as they are.
_STEEPNESS = (1.0, 4.0)
_ODD_FACTOR = 4.0  # between the epochs of two batch sizes; one run alone does not show it
_MAX_LOG = 100.0  # of joules; more comes from a damaged record


class RunCosts(NamedTuple):
    """Draws of a cost in joules, shape ``(DRAWS,)`` each."""

    reached: Array  # of a run that reaches the target
    expected: Array  # to the target: with the runs that miss it by bad luck before


def draw_run_costs(problem: Problem, runs: Runs) -> dict[int, RunCosts]:
    """Draw what a run costs with each batch size of known epochs and speed.

    ``runs`` are of one training, oldest first. The same luck is in the draws of all batch sizes.
    Empty without a run of the default.
    """
    evidence = gather(problem, runs)
    # A speed that only shared runs show is the least that it may be.
    timed = {
        arm for arm, of_arm in evidence.timed.items() if any(not run.disturbed for run in of_arm)
    }
    arms = sorted(arm for arm in evidence.reached if arm in timed)
    if problem.default not in arms:
        return {}
    epochs = draw_log_epochs(problem.default, arms, evidence)
    wider = student(SDS90, evidence.speed_freedom) / GAUSSIAN90
    drawn = {}
    for arm, of_arm in zip(arms, epochs.T, strict=True):
        speeds = _find_speeds(problem.default, arm, evidence)
        sd = wider * evidence.speed_sd / math.sqrt(len(speeds))
        log = math.log(average_speed(speeds)) + of_arm + sd * _luck(1, arm)
        reached = np.exp(np.clip(log, -_MAX_LOG, _MAX_LOG))
        misses = log_misses(problem, evidence, arm, float(of_arm.mean()))
        drawn[arm] = RunCosts(reached, reached * math.exp(misses))
    return drawn


def _luck(of: int, arm: int) -> Array:
    """Return the same Gaussian luck of an arm in every comparison, shape ``(DRAWS,)``.

    The second half mirrors the first: a draw and its mirror image have the right mean.
    """
    luck = np.random.default_rng([of, arm]).standard_normal(DRAWS // 2)
    return np.concatenate([luck, -luck])


def _doubt_of_one(log_epochs: float, means: Sequence[float]) -> float:
    """Return the least variance of an arm with one run: it may be odd, such as a smoke test."""
    nearest = min((abs(log_epochs - mean) for mean in means if mean != log_epochs), default=0.0)
    return nearest**2 if nearest > math.log(_ODD_FACTOR) else 0.0


def _find_speeds(default: int, arm: int, evidence: Evidence) -> Sequence[float]:
    """Return joules per epoch of an arm's runs nearest to the last one of the default.

    A machine that has become slower since is no loss by the batch size. After an edit, the speeds
    of all arms are those of today.
    """
    of_arm, others = evidence.timed[arm], evidence.timed[default]
    newest = evidence.speeds[arm]
    if arm == default or any(run.differs is not None for run in (*of_arm, *others)):
        return newest
    last = others[-1].recurrence
    near = sorted(of_arm, key=lambda run: abs(run.recurrence - last))[
        : max(SPEED_RUNS, len(newest))
    ]
    near.sort(key=lambda run: run.recurrence)
    return newest_speeds(near, evidence.speed_sd**2)


def draw_log_epochs(default: int, arms: Sequence[int], evidence: Evidence) -> Array:
    """Draw the mean log epochs of each arm, shape ``(DRAWS, n)``; each arm has its own luck.

    The spread between runs is the job's own; what other jobs show counts as one run.
    """
    less = RUN_SD_WEIGHT - 1
    freedom = evidence.freedom - less
    variance = (evidence.freedom * evidence.run_sd**2 - less * RUN_SD**2) / freedom
    means, counts = zip(*(mean_log_epochs(evidence.reached[arm]) for arm in arms), strict=True)
    level = float(np.mean(means))
    variances = [
        max(variance / count, _doubt_of_one(mean, means) if count < 2 else 0.0)
        for mean, count in zip(means, counts, strict=True)
    ]
    x = np.log2(np.array(arms, dtype=float) / default)
    away = np.array(means) - level
    data = dict(zip(arms, zip(away.tolist(), variances, strict=True), strict=True))
    log_weights, posteriors = [], []
    for steepness in _STEEPNESS:
        prior = prior_covariance(x, steepness)
        posteriors.append(condition(prior, np.zeros(len(arms)), arms, data))
        seen = prior + np.diag(variances)
        _, size = np.linalg.slogdet(seen)
        log_weights.append(-(away @ np.linalg.solve(seen, away) + size) / 2)
    chance = 1 / (1 + finite_exp(log_weights[1] - log_weights[0]))
    usual = np.tile(np.random.default_rng(0).random(DRAWS // 2) < chance, 2)
    wider = student(SDS90, freedom) / GAUSSIAN90
    luck = wider * np.column_stack([_luck(0, arm) for arm in arms])
    drawn = np.empty((DRAWS, len(arms)))
    for part, (mean, covariance) in zip((usual, ~usual), posteriors, strict=True):
        factor = np.linalg.cholesky(covariance + 1e-9 * np.eye(len(arms)))
        drawn[part] = level + mean + luck[part] @ factor.T
    return drawn
