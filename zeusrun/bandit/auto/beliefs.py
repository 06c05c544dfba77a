"""Beliefs about every batch size: epochs to the target, joules per epoch, and uncertainty.

Log epochs and log joules per epoch are two Gaussian processes over ``x = log2(batch size /
default)`` with the same kernel: epochs depend on the data, joules per epoch on the machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import average_speed, better, finite_exp, mean_log_epochs
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.problem import Array, Pace, Problem, Runs


# Tuned on the public traces of the Zeus project; benchmarks/ablations.py prints what each is worth.
SLOPE_SD = 0.15  # of the straight part, per doubling
BEND_SD, BEND_DOUBLINGS = 0.5, 2.0  # of the smooth part, and its length scale
OWN_SD = 0.03  # of each arm by itself: no curve is perfectly smooth
CLIFF_SD = 0.3  # of an arm that has only failed: failures are cliffs, and say little of neighbours
LEVEL_VARIANCE = 10.0
DEVICE_STEEPNESS = 0.5  # of the difference between the speeds of two kinds of devices
OVERHEAD = 0.25  # how much overhead per step a low power draw means
_MOST = 1e9  # times more, of a damaged history
BOUND_SDS = 2.0  # a run that costs this much more than the incumbent, and an epoch, does not matter


@dataclass(frozen=True)
class Beliefs:
    """Gaussian beliefs in log cost over the candidates, shape ``(n,)`` each."""

    arms: tuple[int, ...]  # candidates, ascending
    log_epochs: Array  # mean of log epochs to the target, if luck is not bad
    log_misses: Array  # log of the joules to the target ÷ those of a run that reaches it
    log_epoch_cost: Array  # mean of log joules per epoch
    mean: Array  # of log joules to the target
    covariance: Array  # of the mean, shape ``(n, n)``; without the spread between runs
    speed_covariance: Array  # that part of it which is of log joules per epoch
    speed_noise: float  # variance of one run's log joules per epoch
    run_sd: float  # of one run's log cost
    bound_factor: float | None  # other arms are stopped at this multiple of the incumbent's cost
    incumbent: int | None  # index of the arm of least mean among those that have reached the target
    incumbent_cost_j: float | None  # expected of its next run; ``None`` while no cost is known


def believe(problem: Problem, evidence: Evidence) -> Beliefs:
    """Fold evidence into beliefs."""
    arms, run_sd = problem.candidates, evidence.run_sd
    known = evidence.results, evidence.cut, evidence.speeds, evidence.speeds_elsewhere
    seen = tuple(dict.fromkeys(chain(arms, *known)))
    x = np.log2(np.array(seen, dtype=float) / problem.default)
    prior = prior_covariance(x)
    noise = evidence.speed_sd**2
    speeds, elsewhere = (
        {
            arm: (math.log(average_speed(of_arm)), noise / len(of_arm))
            for arm, of_arm in each.items()
        }
        for each in (evidence.speeds, evidence.speeds_elsewhere)
    )
    speed, speed_covariance = _speed_prior(x, evidence.power_w, problem.max_power_w), prior
    if elsewhere:  # the level of other devices says nothing of today's, but the curve is similar
        common = prior_covariance(x, math.sqrt(1 - DEVICE_STEEPNESS**2))
        speed, common = condition(common, speed, seen, elsewhere)
        speed_covariance = common + prior_covariance(x, DEVICE_STEEPNESS)
    speed, speed_covariance = condition(speed_covariance, speed, seen, speeds)

    speed_by_arm = dict(zip(seen, speed.tolist(), strict=True))
    least_cost, epoch_share = _cheapest(problem, evidence, speed_by_arm)
    bound_factor = None
    if problem.cost_factor is not None:  # a run takes whole epochs, so one more is allowed
        bound_factor = min(problem.cost_factor, math.exp(BOUND_SDS * run_sd) + epoch_share)
    counts = _epochs(problem.mode, evidence, bound_factor or 0.0, least_cost, speed_by_arm)
    epochs_seen = {arm: _weigh(of_arm, run_sd) for arm, of_arm in counts.items()}
    cliff = np.array([arm in evidence.results and arm not in evidence.reached for arm in seen])
    epochs, epochs_covariance = condition(
        prior + CLIFF_SD**2 * np.diag(cliff), np.zeros(len(x)), seen, epochs_seen
    )

    n = len(arms)
    pairs = zip(arms, epochs.tolist(), strict=False)
    misses = np.array([log_misses(problem, evidence, *each) for each in pairs])
    mean = (epochs + speed)[:n] + misses
    usable = evidence.reached.keys() & set(evidence.fitting)
    options = [i for i, arm in enumerate(arms) if arm in usable]
    incumbent = min(options, key=lambda i: float(mean[i]), default=None)
    cost_j = None
    if incumbent is not None and speeds:
        cost_j = finite_exp(float(mean[incumbent]) + (run_sd**2 + noise) / 2)
    return Beliefs(
        arms=arms,
        log_epochs=epochs[:n],
        log_misses=misses,
        log_epoch_cost=speed[:n],
        mean=mean,
        covariance=(epochs_covariance + speed_covariance)[:n, :n],
        speed_covariance=speed_covariance[:n, :n],
        speed_noise=noise,
        run_sd=math.sqrt(run_sd**2 + noise),
        bound_factor=bound_factor,
        incumbent=incumbent,
        incumbent_cost_j=cost_j,
    )


def prior_covariance(x: Array, steepness: float = 1.0) -> Array:
    """Return the prior covariance of either process, shape ``(n, n)``.

    The curve is relative to the default (``x = 0``), where only ``OWN_SD`` and the level are
    uncertain. It is ``steepness`` times as steep as usual.
    """
    near = np.exp(-0.5 * (x / BEND_DOUBLINGS) ** 2)
    apart = np.exp(-0.5 * ((x[:, None] - x) / BEND_DOUBLINGS) ** 2)
    bend = apart - near[:, None] - near + 1
    curve = SLOPE_SD**2 * x[:, None] * x + BEND_SD**2 * bend
    covariance: Array = LEVEL_VARIANCE + steepness**2 * curve + OWN_SD**2 * np.eye(len(x))
    return covariance


def _speed_prior(x: Array, power_w: float | None, max_power_w: float | None) -> Array:
    """Return the prior mean of log joules per epoch.

    A GPU that draws little power waits a lot, but less with larger steps. A share ``c / (1 + c)``
    of the time at the default is assumed to be such overhead: ``c = OVERHEAD (1 - u) / u``, where
    ``u`` is the power drawn as a share of the maximum.
    """
    used = power_w / max_power_w if power_w and max_power_w else 0.5
    overhead = OVERHEAD * (1 / min(1.0, max(0.02, used)) - 1)
    prior: Array = np.log((1 + overhead * 2.0**-x) / (1 + overhead))
    return prior


def condition(
    covariance: Array, prior: Array, seen: Sequence[int], data: Mapping[int, tuple[float, float]]
) -> tuple[Array, Array]:
    """Condition a Gaussian process on ``(value, variance)`` by arm; mean and covariance."""
    if not data:
        return prior, covariance
    at = [seen.index(arm) for arm in data]
    values, variances = np.array(list(data.values())).T
    known = covariance[:, at]
    gain = np.linalg.solve(known[at] + np.diag(variances), known.T)
    return prior + (values - prior[at]) @ gain, covariance - known @ gain


def _weigh(counts: Sequence[tuple[float, float]], run_sd: float) -> tuple[float, float]:
    """Return the log of the weighted mean of ``(epochs, weight)``, and its variance."""
    weight = sum(each for _, each in counts)
    return math.log(sum(epochs * each for epochs, each in counts) / weight), run_sd**2 / weight


def log_misses(problem: Problem, evidence: Evidence, arm: int, log_epochs: float) -> float:
    """Return what misses add to the log of the joules to the target.

    Each takes as many epochs as the longest run so far, at most as many as its bound pays for.
    Another run follows it.
    """
    if not evidence.reached:
        return 0.0
    chance = evidence.luck.missing_of(arm)
    longest = max(run.epochs_today for of_arm in evidence.results.values() for run in of_arm)
    spent = longest / finite_exp(log_epochs)
    if problem.cost_factor is not None:
        spent = min(spent, max(problem.cost_factor, evidence.widest.get(arm, 0.0)))
    return math.log1p(chance / (1 - chance) * min(max(1.0, spent), _MOST))


def _cheapest(
    problem: Problem, evidence: Evidence, log_epoch_cost: Mapping[int, float]
) -> tuple[float | None, float]:
    """Return the least log cost of reaching the target, and the share of it that an epoch costs.

    Failures are included. ``None`` and 0 while nothing has reached the target.
    """
    costs = []
    usable = evidence.reached.keys() & set(evidence.fitting) or evidence.reached.keys()
    for arm in usable:
        log_epochs, _ = mean_log_epochs(evidence.reached[arm])
        log_epochs += log_misses(problem, evidence, arm, log_epochs)
        costs.append((log_epochs + log_epoch_cost[arm], finite_exp(-log_epochs)))
    return min(costs, default=(None, 0.0))


def _epochs(
    mode: str,
    evidence: Evidence,
    bound_factor: float,
    least_cost: float | None,
    log_epoch_cost: Mapping[int, float],
) -> dict[int, list[tuple[float, float]]]:
    """Return, by arm, the epochs that each run counts as, and its weight, at most 1.

    The mean is arithmetic, so that it includes the cost of occasional failures. A failed run counts
    as the epochs that its bound would have paid for, plus those of a new run of the best arm. A run
    cut short is extrapolated by the learning curves of whole runs; its weight is multiplied by the
    square of the share of the way that it went.
    """
    counts: dict[int, list[tuple[float, float]]] = {}
    for arm, runs in evidence.results.items():
        # Epochs of this arm that cost as much as a new run of the best arm.
        fresh = 0.0 if least_cost is None else finite_exp(least_cost - log_epoch_cost[arm])
        counts[arm] = [
            (run.epochs_today, run.weight)
            if run.status is TrialStatus.REACHED
            else (
                max(run.epochs_today, bound_factor * fresh) + (fresh or run.epochs_today),
                run.weight,
            )
            for run in runs
        ]
    furthest = min if mode == "min" else max
    cut = (run.pace for runs in evidence.cut.values() for run in runs)
    paces = newest_paces(evidence) or [furthest(cut, key=lambda pace: pace[-1][1], default=())]
    for arm, runs in evidence.cut.items():
        for run in runs:
            share = way_gone(mode, paces, run.pace[-1][1])
            counts.setdefault(arm, []).append((run.epochs_today / share, run.weight * share**2))
    return counts


def newest_paces(evidence: Evidence) -> list[Pace]:
    """Return the learning curve of each arm's newest run that reached the target."""
    return [runs[-1].pace for runs in evidence.reached.values() if runs[-1].pace]


def way_gone(mode: str, paces: Sequence[Pace], value: float) -> float:
    """Return epochs to a value ÷ epochs of the whole run, averaged over learning curves."""
    total = 0.0
    for pace in paces:
        gone = next((epoch for epoch, other in pace if not better(mode, value, other)), pace[-1][0])
        total += gone / pace[-1][0]
    return total / len(paces)


HORIZON = 20  # recurrences in which a try has to pay for itself
LEAST_SAVING = 0.05  # of the cost of a run: what a try must be expected to save at least

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
    values: Array | None  # of trying each arm, in runs of the incumbent; ``None``: no cost is known
    start: float  # what a start of the script costs, in runs of the incumbent; 0 if unknown


def assess(problem: Problem, runs: Runs) -> Assessment:
    """Assess all runs of the job, oldest first."""
    evidence = gather(problem, runs)
    beliefs = believe(problem, evidence)
    values, start = None, 0.0
    if beliefs.incumbent_cost_j is not None:
        start = problem.startup_s * (problem.max_power_w or 0.0) / beliefs.incumbent_cost_j
        # One speed check a recurrence: each is a start of the script.
        known = evidence.speeds if evidence.checked_now else evidence.fitting
        usable = [
            arm for arm in evidence.fitting if arm in known and arm not in evidence.failed_now
        ]
        values = values_of_trying(beliefs, usable, evidence.in_flight, start)
    return Assessment(problem, evidence, beliefs, values, start)


def saved_by_check(now: Assessment, index: int, price: float) -> float:
    """Return the expected saving of a speed check of an arm before the arm is tried.

    After the check, the most valuable arm of known speed runs. If this is not the checked arm, the
    check has cost ``price`` and a start. The unit of all costs is a run of the incumbent. The
    result is negative if the check costs more than it saves.
    """
    beliefs, evidence = now.beliefs, now.evidence
    known = {*evidence.speeds, beliefs.arms[index]}
    usable = known.intersection(evidence.fitting) - evidence.failed_now
    column = beliefs.speed_covariance[index]
    shift = column / math.sqrt(column[index] + beliefs.speed_noise)
    then = replace(beliefs, covariance=beliefs.covariance - np.outer(shift, shift))
    saved = 0.0
    for node, weight in zip(_NODES, _WEIGHTS, strict=True):
        then = replace(then, mean=beliefs.mean + shift * node - shift**2 / 2)
        values = values_of_trying(then, usable, evidence.in_flight, now.start)
        best = float(values.max())
        if best <= LEAST_SAVING:  # then the incumbent runs
            best = 0.0
        if best != values[index]:
            saved += weight * (best - values[index] - price - now.start)
    return saved


def values_of_trying(
    beliefs: Beliefs, usable: Collection[int], in_flight: Collection[int], start: float = 0.0
) -> Array:
    """Return the value of trying each arm, in runs of the incumbent, shape ``(n,)``.

    The knowledge gradient (Frazier, Powell and Dayanik, 2009) in log cost. What a run teaches is
    the expected saving over the next ``HORIZON`` recurrences. The value is what a run of the arm
    teaches more than one of the incumbent, less what it is expected to cost more, at most up to
    its bound and the ``start`` of another run. Zero for the incumbent; minus infinity for arms that
    are not usable, and for arms in flight in other recurrences, whose results are assumed as
    expected.
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
    options = [i for i in open_ if i not in flying]
    values = np.full(len(beliefs.arms), -math.inf)
    if options:
        variance = np.maximum(0.0, covariance.diagonal()[options])
        shifts = covariance[np.ix_(open_, options)] / np.sqrt(variance + noise)
        after = mean[open_, None, None] + shifts[..., None] * _NODES - shifts[..., None] ** 2 / 2
        gain = np.exp(mean[open_].min()) - np.exp(after).min(axis=0) @ _WEIGHTS
        cost = np.exp(mean[options])
        stopped = math.inf if beliefs.bound_factor is None else beliefs.bound_factor + start
        loss = np.maximum(np.minimum(cost * np.exp(variance / 2) - 1, stopped), cost - 1)
        of_incumbent = gain[options.index(incumbent)] if incumbent in options else 0.0
        values[options] = HORIZON * (gain - of_incumbent) - loss
    values[incumbent] = 0.0
    return values
