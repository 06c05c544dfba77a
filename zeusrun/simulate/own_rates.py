"""Speed and power of a job's batch sizes by its own runs, and a law for those that never ran."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.observation import merged_profile
from zeusrun.bandit.proof import undisturbed, whole_way
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.simulate.job import Rate

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.observation import Observation
    from zeusrun.bandit.problem import Problem
    from zeusrun.trial import Trial


def fit_line(values: Mapping[float, float], weights: Iterable[float]) -> tuple[float, float]:
    """Fit ``a + b x`` with ``a, b >= 0`` to positive values by x; relative errors count."""
    x, y = np.array(list(values)), np.array(list(values.values()))
    scale = np.sqrt(np.array(list(weights), dtype=float)) / y
    columns = np.stack([scale, scale * x], axis=1)
    goal = scale * y
    (a, b), *_ = np.linalg.lstsq(columns, goal, rcond=None)
    if a < 0 or b < 0:  # then one of the two alone fits best
        alone = [float(columns[:, i] @ goal / (columns[:, i] @ columns[:, i])) for i in (0, 1)]
        errors = [float(np.sum((columns[:, i] * alone[i] - goal) ** 2)) for i in (0, 1)]
        return (alone[0], 0.0) if errors[0] <= errors[1] else (0.0, alone[1])
    return float(a), float(b)


def learn_rates(problem: Problem, trials: Sequence[Trial]) -> dict[int, dict[float, Rate]]:
    """Return speed and power of the batch sizes that ran on today's devices."""
    local: dict[int, list[tuple[Trial, Observation]]] = {}
    for trial in trials:
        run = read_trial(problem, trial) if trial.variant == problem.variant else None
        if run is not None and run.local:
            local.setdefault(trial.global_batch_size, []).append((trial, run))
    rates = {size: _rates_of(problem, size, own[-20:]) for size, own in sorted(local.items())}
    return _fill_power({size: own for size, own in rates.items() if own})


def _fill_power(rates: Mapping[int, dict[float, Rate]]) -> dict[int, dict[float, Rate]]:
    """Return rates in which an unknown power, 0, is that of the nearest known batch size."""
    known = {size: max(rate.power_w for rate in own.values()) for size, own in rates.items()}
    sizes = [size for size, power_w in known.items() if power_w] or list(rates)
    filled = {}
    for size, own in rates.items():
        power_w = known[min(sizes, key=lambda other: abs(math.log(other / size)))]
        filled[size] = {w: Rate(rate.epoch_s, rate.power_w or power_w) for w, rate in own.items()}
    return filled


def _rates_of(
    problem: Problem, size: int, local: Sequence[tuple[Trial, Observation]]
) -> dict[float, Rate]:
    whole = [rate for trial, _ in local if (rate := _whole_rate(trial))]
    runs = [run for _, run in local]
    points = merged_profile(runs) or next((run.profile[:1] for run in runs if run.profile), ())
    steps = (problem.samples_per_epoch or 0.0) / size
    profile = {
        point.power_limit_w or _no_limit_w(problem): Rate(steps / point.steps_per_s, point.power_w)
        for point in points
        if steps and point.steps_per_s > 0
    }
    if not whole:
        return profile
    known_w = [rate.power_w for rate in whole if rate.power_w] or [0.0]
    rate = Rate(statistics.median(each.epoch_s for each in whole), statistics.median(known_w))
    if not profile or not merged_profile(runs):
        return {_no_limit_w(problem): rate}
    held_w = next((t.power_limit_w for t, _ in reversed(local) if t.power_limit_w in profile), None)
    if held_w is None:
        return profile
    slower = rate.epoch_s / profile[held_w].epoch_s  # evaluations and checkpoints
    return {limit: Rate(each.epoch_s * slower, each.power_w) for limit, each in profile.items()}


def _no_limit_w(problem: Problem) -> float:
    return problem.max_power_w or 1.0


def _whole_rate(trial: Trial) -> Rate | None:
    """Return seconds and watts of a run's epochs; watts of 0 are unknown."""
    way = undisturbed(trial, whole_way(trial))
    if way is None or not way.time_s:
        return None
    return Rate(way.time_s / way.epochs, (way.energy_j or 0.0) / way.time_s)


def guess_rates(size: int, rates: Mapping[int, Mapping[float, Rate]]) -> dict[float, Rate]:
    """Return the rates of a batch size that never ran: those of its neighbour, at another speed."""
    near = min(rates, key=lambda other: abs(math.log(other / size)))
    fastest = {arm: min(rate.epoch_s for rate in own.values()) for arm, own in rates.items()}
    samples_s, steps_s = fit_line({1 / arm: s for arm, s in fastest.items()}, [1] * len(fastest))
    factor = 1.0
    if len(fastest) > 1:
        factor = (samples_s + steps_s / size) / (samples_s + steps_s / near)
    return {limit: Rate(rate.epoch_s * factor, rate.power_w) for limit, rate in rates[near].items()}
