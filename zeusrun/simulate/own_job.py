"""Builds a job to simulate from the history of a real job.

A batch size without runs on today's devices is left out, because its speed is unknown.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.run_costs import draw_log_epochs
from zeusrun.bandit.auto.beliefs import newest_paces
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import merged_profile
from zeusrun.bandit.proof import undisturbed, whole_way, with_ranks_of
from zeusrun.bandit.reinterpret import read_trial, read_trials
from zeusrun.errors import UsageError
from zeusrun.lever import POWER, Lever
from zeusrun.simulate.engine import SAMPLES_PER_EPOCH, LearningCurve, Rate, SimulatedJob
from zeusrun.target import meets_target
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.problem import Array, Observation, Pace, Problem, Runs
    from zeusrun.trial import Trial

LEAST_RUNS = 5  # that reached the target; the spread of fewer is unknown
CURVES = 24  # learning curves of a batch size; a run follows one at random
_MAX_EPOCHS = 1e6


@dataclass(frozen=True)
class KnownArm:
    """The facts about a batch size in the history."""

    batch_size: int
    runs: int  # runs that reached or missed the target
    log_epochs: float  # mean, to the target
    missing: float  # share of the runs that miss the target
    paces: Sequence[Pace]  # of runs that reached the target, here or with another batch size
    rates: Mapping[float, Rate]  # by power limit
    drawn: Array | None  # samples of ``log_epochs``; ``None``: no run reached the target


@dataclass(frozen=True)
class JobModel:
    """What a history says of a job under some settings."""

    job: str
    problem: Problem  # what a policy is asked in the simulation
    runs: Runs  # the history as a policy sees it; all before recurrence 1
    arms: Sequence[KnownArm]  # ascending
    reached: int  # runs that the epochs are known from
    run_sd: float  # of one run's log epochs
    energy_known: bool
    left_out: tuple[int, ...]  # candidates without usable runs here, or with crashes


def learn(job: str, problem: Problem, trials: Sequence[Trial]) -> JobModel:
    """Build the model of a job from its trials, oldest first.

    Raises:
        UsageError: If they show too little; the message says what is missing.
    """
    problem, every = read_trials(problem, trials)
    runs = [run for run in every if run is not None]
    evidence = gather(problem, runs)
    reached = sum(map(len, evidence.reached.values()))
    sign = 1 if problem.mode == "max" else -1
    # Of runs that ended at an easier target, only the luckiest show when they reached this one.
    shown = min(
        reached,
        sum(
            run is not None and run.status is TrialStatus.REACHED
            for trial, run in zip(trials, every, strict=True)
            if sign * trial.target >= sign * problem.target or _trained_on(trial)
        ),
    )
    if shown < LEAST_RUNS:
        raise UsageError(
            f"{job} has {shown} run{'' if shown == 1 else 's'} that reached {problem.metric} "
            f"{problem.target:g} under these settings, and a simulation needs {LEAST_RUNS}; runs "
            "that ended at an easier target do not count. Submit it more often first"
        )
    rates = learn_rates(problem, trials)
    known = sorted(evidence.reached)
    drawn = dict(zip(known, draw_log_epochs(problem.default, known, evidence).T, strict=True))
    arms = [
        arm
        for size in evidence.fitting
        if size in rates
        and (arm := _learn_arm(size, drawn.get(size), rates[size], evidence)) is not None
    ]
    sizes = tuple(arm.batch_size for arm in arms)
    if problem.default not in evidence.fitting:
        raise UsageError(
            f"memory or a crash rules out the default batch size of {job}, {problem.default}; "
            "set batch_size.default to a batch size that runs"
        )
    if problem.default not in sizes:
        raise UsageError(
            f"no run of {job} shows what its default batch size, {problem.default}, takes on the "
            "devices of this machine"
        )
    energy_known = any(rate.power_w for by_limit in rates.values() for rate in by_limit.values())
    if problem.eta_knob > 0 and not energy_known:
        raise UsageError(f"no run of {job} has a known energy, so only eta_knob 0 can be simulated")
    if problem.eta_knob < 1 and problem.max_power_w is None:
        raise UsageError(
            f"the maximum power of the devices of {job} is unknown, so only eta_knob 1 can be "
            "simulated"
        )
    longest = max((run.epochs or 1 for run in runs), default=1)
    asked = replace(
        problem,
        candidates=sizes,
        max_epochs=problem.max_epochs if problem.unit is None else 2 * longest,
        recurrence=1,
        energy_measured=True,
        learning_rates={},
        micro_batch_sizes={},
        samples_per_epoch=problem.samples_per_epoch or SAMPLES_PER_EPOCH,
        levers=tuple(
            Lever(POWER, limit_w)
            for limit_w in sorted({limit for arm in arms for limit in arm.rates})
        ),
        variant=None,
    )
    return JobModel(
        job=job,
        problem=asked,
        runs=[
            run._replace(recurrence=run.recurrence - problem.recurrence)
            for run in runs
            if run.status is not TrialStatus.DISPATCHED
        ],
        arms=arms,
        reached=reached,
        run_sd=evidence.run_sd,
        energy_known=energy_known,
        left_out=tuple(sorted(set(problem.candidates) - set(sizes))),
    )


def _trained_on(trial: Trial) -> bool:
    """Whether a run trained on after it had reached its target, and not only until it noticed."""
    before = [point.value for point in trial.curve[:-2] if point.epoch and point.value is not None]
    return any(meets_target(value, trial.target, trial.mode) for value in before)


def draw_job(model: JobModel, seed: int) -> SimulatedJob:
    """Draw one job that the history may be of; the same seed gives every model the same luck."""
    problem = model.problem
    return SimulatedJob(
        name=model.job,
        default=problem.default,
        mode=problem.mode,
        target=problem.target,
        max_epochs=problem.max_epochs,
        max_power_w=problem.max_power_w or 0.0,
        rates={arm.batch_size: arm.rates for arm in model.arms},
        eras=[(1, {arm.batch_size: _curves(model, arm, seed) for arm in model.arms})],
    )


def _curves(model: JobModel, arm: KnownArm, seed: int) -> list[LearningCurve]:
    rng = np.random.default_rng(seed)  # the luck of runs is that of all batch sizes
    # Of successive seeds, as many are good as bad, and so are the runs of each: otherwise the
    # median over the usual seeds would be too low for every job, or too high. A draw and its mirror
    # image are half of all draws apart.
    which = (np.random.default_rng(seed // 2).random() + seed % 2) / 2
    level = arm.log_epochs if arm.drawn is None else float(arm.drawn[int(which * len(arm.drawn))])
    curves = []
    lucks = rng.standard_normal(CURVES)
    lucks = (lucks - lucks.mean()) / lucks.std()
    for luck, which, chance in zip(lucks, rng.random(CURVES), rng.random(CURVES), strict=True):
        log_epochs = min(math.log(_MAX_EPOCHS), level + model.run_sd * float(luck))
        epochs = max(1, round(math.exp(log_epochs)))
        pace = arm.paces[int(which * len(arm.paces))] if arm.paces else ()
        pace = pace or ((1, model.problem.target),)
        stretched = {math.ceil(epoch * epochs / pace[-1][0]): value for epoch, value in pace}
        if chance >= arm.missing and epochs <= model.problem.max_epochs:
            curves.append(LearningCurve(epochs, tuple(stretched.items())))
        else:
            stretched.popitem()  # it never comes to the target
            within = ((n, v) for n, v in stretched.items() if n <= model.problem.max_epochs)
            curves.append(LearningCurve(None, tuple(within)))
    return curves


def _learn_arm(
    size: int, drawn: Array | None, rates: Mapping[float, Rate], evidence: Evidence
) -> KnownArm | None:
    """Return the facts about a batch size; ``None`` if no run reached or missed the target."""
    results, reached = (each.get(size, ()) for each in (evidence.results, evidence.reached))
    missed = [run for run in results if run.status is TrialStatus.MISSED]
    paces = [run.pace for run in reached if run.pace] or newest_paces(evidence)
    if drawn is not None:
        lost = _weigh(missed)  # those that are no bad luck
        others = (1 - evidence.luck.missing_of(size)) * _weigh(reached) / (_weigh(reached) + lost)
        log_epochs, missing = float(np.mean(drawn)), 1 - others
    elif missed:  # the batch size has never reached the target
        log_epochs, missing = math.log(_MAX_EPOCHS), 1.0
    else:
        return None
    runs = len(reached) + len(missed)
    return KnownArm(size, runs, log_epochs, missing, paces, rates, drawn)


def _weigh(runs: Runs) -> float:
    """Return how many runs they count as: their training may have changed since."""
    return sum(run.weight for run in runs)


def learn_rates(problem: Problem, trials: Sequence[Trial]) -> dict[int, dict[float, Rate]]:
    """Return speed and power of the batch sizes that ran on today's devices."""
    local: dict[int, list[tuple[Trial, Observation]]] = {}
    for trial in (with_ranks_of(problem, each) for each in trials):
        run = read_trial(problem, trial) if trial.variant == problem.variant else None
        if run is not None and run.local:
            local.setdefault(trial.global_batch_size, []).append((trial, run))
    rates = {
        size: _rates_of(problem, size, of_size[-20:]) for size, of_size in sorted(local.items())
    }
    return _fill_power({size: of_size for size, of_size in rates.items() if of_size})


def _fill_power(rates: Mapping[int, dict[float, Rate]]) -> dict[int, dict[float, Rate]]:
    """Return rates in which an unknown power, 0, is that of the nearest known batch size."""
    known = {
        size: max(rate.power_w for rate in by_limit.values()) for size, by_limit in rates.items()
    }
    sizes = [size for size, power_w in known.items() if power_w] or list(rates)
    filled = {}
    for size, by_limit in rates.items():
        power_w = known[min(sizes, key=lambda other: abs(math.log(other / size)))]
        filled[size] = {
            w: Rate(rate.epoch_s, rate.power_w or power_w) for w, rate in by_limit.items()
        }
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
