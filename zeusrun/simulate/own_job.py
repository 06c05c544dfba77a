"""Builds a job to simulate from a job's own history: what its runs took, and two laws for the rest.

A batch size without runs is a guess. Epochs to the target follow ``1 + batch size / critical batch
size`` (McCandlish et al., "An Empirical Model of Large-Batch Training", 2018), and the time of an
epoch is a part for its samples and a part for its steps; both are fitted to the batch sizes with
runs. They extrapolate, so they may be wrong, and then they are wrong for all guesses together: the
best of several independent guesses would be a saving that nothing shows.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.analysis.run_costs import draw_log_epochs
from zeusrun.bandit.auto.beliefs import newest_paces, way_gone
from zeusrun.bandit.auto.evidence import gather
from zeusrun.bandit.problem import SDS90, mean_log_epochs, merged_profile
from zeusrun.bandit.proof import undisturbed, whole_way, with_ranks_of
from zeusrun.bandit.reinterpret import read_trial, read_trials
from zeusrun.cost import cost_j
from zeusrun.errors import UsageError
from zeusrun.lever import POWER, Lever
from zeusrun.simulate.engine import SAMPLES_PER_EPOCH, LearningCurve, Rate, SimulatedJob
from zeusrun.target import meets_target
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.auto.evidence import Evidence
    from zeusrun.bandit.problem import Array, Observation, Pace, Problem, Runs
    from zeusrun.trial import Trial

LEAST_RUNS = 5  # that reached the target; the spread of fewer is unknown
CURVES = 24  # learning curves of a batch size; a run follows one at random
# Standard deviation of a guess by either law, in logarithms, for each doubling from a batch size
# with runs: as wide as the smooth part of what policy ``auto`` believes.
GUESS_SD = 0.25
_MAX_EPOCHS = 1e6
_GOLDEN_RATIO = (math.sqrt(5) - 1) / 2  # its multiples spread evenly (Kronecker sequence)
_LEAST_LUCK = 1e-9  # as a probability


@dataclass(frozen=True)
class KnownArm:
    """What the history shows of a batch size, or what is guessed."""

    batch_size: int
    runs: int  # that reached or missed the target; 0: a guess
    log_epochs: float  # mean, to the target
    sd: float  # of that mean
    missing: float  # share of the runs that miss the target
    paces: Sequence[Pace]  # of runs that reached the target, here or with another batch size
    rates: Mapping[float, Rate]  # by power limit
    drawn: Array | None = None  # of ``log_epochs``, as the history believes it, jointly for all
    best: KnownArm | None = None  # of a guess: the cheapest known one, which it is compared with


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
    left_out: tuple[int, ...]  # candidates that memory or crashes of the script rule out


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
        targets = [trial.target for trial in trials if trial.metric == problem.metric]
        hardest = max(targets, default=problem.target, key=lambda each: sign * each)
        if sign * problem.target > sign * hardest:
            bound = "at most" if problem.mode == "max" else "at least"
            raise UsageError(
                f"no past run of {job} had a target as hard as {problem.metric} "
                f"{problem.target:g}: runs end at their target, which was {hardest:g}; a target of "
                f"{bound} {hardest:g} can be simulated"
            )
        raise UsageError(
            f"{job} has {shown} run{'' if shown == 1 else 's'} that reached {problem.metric} "
            f"{problem.target:g} under these settings, and a simulation needs {LEAST_RUNS}; submit "
            "it more often first"
        )
    rates = learn_rates(problem, trials)
    energy_known = any(rate.power_w for own in rates.values() for rate in own.values())
    if not rates:
        raise UsageError(f"no run of {job} shows its speed on the devices of this machine")
    if problem.eta_knob > 0 and not energy_known:
        raise UsageError(f"no run of {job} has a known energy, so only eta_knob 0 can be simulated")
    if problem.eta_knob < 1 and problem.max_power_w is None:
        raise UsageError(
            f"the maximum power of the devices of {job} is unknown, so only eta_knob 1 can be "
            "simulated"
        )
    if problem.default not in evidence.fitting:
        raise UsageError(f"memory or a crash rules out the default batch size, {problem.default}")
    known = sorted(evidence.reached)
    drawn = dict(zip(known, draw_log_epochs(problem.default, known, evidence).T, strict=True))
    arms = {
        size: KnownArm(
            size,
            *_learn_epochs(size, drawn.get(size), problem.mode, evidence),
            rates=rates.get(size) or guess_rates(size, rates),
            drawn=drawn.get(size),
        )
        for size in {*evidence.fitting, *evidence.reached}
    }
    # A single lucky run proves little, so the doubt of each counts against it.
    timed = [arms[size] for size in known if size in rates] or [arms[size] for size in known]
    best = min(timed, key=lambda arm: _log_cost(problem, arm) + SDS90 * arm.sd)
    for size, arm in arms.items():
        if not arm.runs or size not in rates:
            away = min(abs(math.log2(other / size)) for other in rates)
            arms[size] = _doubt(problem, arm, GUESS_SD * away, best, len(known))
    longest = max((run.epochs or 1 for run in runs), default=1)
    asked = replace(
        problem,
        candidates=evidence.fitting,
        max_epochs=problem.max_epochs if problem.unit is None else 2 * longest,
        recurrence=1,
        energy_measured=True,
        learning_rates={},
        micro_batch_sizes={},
        samples_per_epoch=problem.samples_per_epoch or SAMPLES_PER_EPOCH,
        levers=tuple(
            Lever(POWER, limit_w)
            for limit_w in sorted({limit for arm in arms.values() for limit in arm.rates})
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
        arms=[arms[size] for size in evidence.fitting],
        reached=reached,
        run_sd=evidence.run_sd,
        energy_known=energy_known,
        left_out=tuple(sorted(set(problem.candidates) - set(evidence.fitting))),
    )


def _trained_on(trial: Trial) -> bool:
    """Whether a run trained on after it had reached its target, and not only until it noticed."""
    before = [point.value for point in trial.curve[:-2] if point.epoch and point.value is not None]
    return any(meets_target(value, trial.target, trial.mode) for value in before)


def _doubt(
    problem: Problem, guess: KnownArm, speed_sd: float, best: KnownArm, known: int
) -> KnownArm:
    """Add the doubt of its speed to a guess, and centre it on what is known.

    A further batch size is cheaper than the cheapest of ``known`` ones with a probability of
    1 / (``known`` + 1), unless the laws say beyond doubt that it is cheaper: each way of trying
    more batch sizes would save something otherwise.
    """
    sd = math.hypot(guess.sd, speed_sd)
    less = _log_cost(problem, best) - _log_cost(problem, guess)
    least = sd * statistics.NormalDist().inv_cdf(known / (known + 1))  # that it costs more
    more = max(0.0, least + less) if less < SDS90 * sd else 0.0
    return replace(guess, log_epochs=guess.log_epochs + more, sd=sd, best=best)


def _log_cost(problem: Problem, arm: KnownArm) -> float:
    """Return the log of what a run costs, in joules; infinite if it never reaches the target."""
    if arm.missing == 1:
        return math.inf
    epoch_j = [
        cost_j(rate.epoch_s * rate.power_w, problem.max_power_w, rate.epoch_s, problem.eta_knob)
        for rate in arm.rates.values()
    ]
    least_j = min(each for each in epoch_j if each is not None)
    return arm.log_epochs + math.log(least_j / (1 - arm.missing))


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
    guess = statistics.NormalDist().inv_cdf(max(_LEAST_LUCK, (0.5 + seed * _GOLDEN_RATIO) % 1))
    which = (np.random.default_rng(seed // 2).random() + seed % 2) / 2
    level = _draw_log_epochs(arm, which, guess)
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


def _draw_log_epochs(arm: KnownArm, which: float, luck: float) -> float:
    """Draw the mean log epochs of a batch size.

    ``which``, from 0 to 1, is the draw of all that have runs; ``luck`` is that of all guesses.
    A guess also varies with the best known batch size.
    """
    if arm.best is not None:
        away = arm.log_epochs - arm.best.log_epochs + arm.sd * luck
        return away + _draw_log_epochs(arm.best, which, luck)
    if arm.drawn is None:  # it has never reached the target
        return arm.log_epochs
    return float(arm.drawn[int(which * len(arm.drawn))])


def _learn_epochs(
    size: int, drawn: Array | None, mode: str, evidence: Evidence
) -> tuple[int, float, float, float, Sequence[Pace]]:
    """Return what ``KnownArm`` says of epochs: known, from a run cut short, or by the law."""
    results, reached = (each.get(size, ()) for each in (evidence.results, evidence.reached))
    missed = [run for run in results if run.status is TrialStatus.MISSED]
    newest, sd, count = newest_paces(evidence), evidence.run_sd, len(reached) + len(missed)
    paces = [run.pace for run in reached if run.pace] or newest
    if drawn is not None:
        lost = _weigh(missed)  # those that are no bad luck
        others = (1 - evidence.luck.missing_of(size)) * _weigh(reached) / (_weigh(reached) + lost)
        return count, float(np.mean(drawn)), float(np.std(drawn)), 1 - others, paces
    if missed:  # it has never reached the target
        return count, math.log(_MAX_EPOCHS), 0.0, 1.0, paces
    stopped = [run for run in (*results, *evidence.cut.get(size, ())) if run.pace]
    if stopped and newest:
        ways = [(run, way_gone(mode, newest, run.pace[-1][1])) for run in stopped]
        run, way = max(ways, key=lambda each: each[1])
        return 0, math.log(run.epochs_today / way), sd + GUESS_SD * (1 - way), 0.0, paces
    return 0, *_guess_log_epochs(size, evidence), 0.0, paces


def _guess_log_epochs(size: int, evidence: Evidence) -> tuple[float, float]:
    """Return the log epochs of a batch size by the law, and their standard deviation."""
    known = {arm: mean_log_epochs(runs)[0] for arm, runs in evidence.reached.items()}
    near = min(known, key=lambda other: abs(math.log(other / size)))
    spread = math.hypot(evidence.run_sd, GUESS_SD * math.log2(near / size))
    if len(known) > 1:
        epochs = {float(arm): math.exp(log) for arm, log in known.items()}
        fixed, growing = fit_line(epochs, [_weigh(evidence.reached[arm]) for arm in known])
        return math.log(fixed + growing * size), spread
    raise UsageError(
        f"only batch size {near} has reached the target, so nothing says how many epochs "
        f"{size} takes; submit the job once with another --batch-size"
    )


def _weigh(runs: Runs) -> float:
    """Return how many runs they count as: their training may have changed since."""
    return sum(run.weight for run in runs)


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
    for trial in (with_ranks_of(problem, each) for each in trials):
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
