"""Sorts what the runs of a job show of each arm, for policy ``auto``."""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.bandit.auto.drift import DOUBTED, LEAST, is_cut, is_settled, weigh_shown
from zeusrun.bandit.problem import (
    FAILED,
    OUTDONE,
    RUN_SD,
    RUN_SD_WEIGHT,
    SPEED_RUNS,
    Spread,
    average_speed,
    finite_exp,
    mean_log_epochs,
    newest_speeds,
    timed_runs,
    usual_speed,
)
from zeusrun.bandit.tally import failed_now, fitting, rule_out_crashed
from zeusrun.trial import Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from zeusrun.bandit.problem import Observation, Problem, Runs, RunsByArm

OWN_MISSES = 20.0  # weight of the job's share of bad luck, in runs of the arm
TOO_MANY = 3  # with so many failures per success, no failure is bad luck
BAD_LUCK = 0.1  # chance that a failure of an arm that has reached the target is bad luck


class Luck(NamedTuple):
    """How the runs of arms that have reached the target scatter, as a mixture.

    Some miss the target, however long they train. The epochs of the others are log-normal.
    """

    spread: Spread  # of the others
    missing: Mapping[int, float]  # chance that the next run of an arm misses
    elsewhere: float  # the same of an arm that has not reached the target

    def missing_of(self, arm: int) -> float:
        """Return the chance that the next run of an arm misses the target by bad luck."""
        return self.missing.get(arm, self.elsewhere)


def find_luck(reached: RunsByArm, failed: RunsByArm) -> tuple[Luck, dict[int, list[Observation]]]:
    """Return the luck that weighted runs show, and the failed ones with the weight of the others.

    Of an arm that has reached the target, a failed run is bad luck, or it would have taken more
    epochs than it was given: it counts as either as far as its epochs make that likely.
    """
    squares, freedom = RUN_SD_WEIGHT * RUN_SD**2, RUN_SD_WEIGHT
    means = {arm: mean_log_epochs(of_arm) for arm, of_arm in reached.items()}
    for arm, (mean, total) in means.items():
        of_arm = reached[arm]
        squares += sum(run.weight * (math.log(run.epochs_today) - mean) ** 2 for run in of_arm)
        freedom += max(0.0, total - 1)
    sd, missed = math.sqrt(squares / freedom), dict.fromkeys(reached, 0.0)
    others = {arm: list(of_arm) for arm, of_arm in failed.items()}
    for arm in reached.keys() & failed.keys():
        if len(failed[arm]) >= TOO_MANY * len(reached[arm]):
            continue  # such as of a smoke test
        (mean, total), others[arm] = means[arm], []
        for run in failed[arm]:
            far = math.log(run.epochs_today) - mean
            late = (1 - BAD_LUCK) * math.erfc(far / sd / math.sqrt(2 + 2 / total)) / 2
            chance = BAD_LUCK / (BAD_LUCK + late)
            missed[arm] += chance
            others[arm].append(run._replace(weight=run.weight * (1 - chance)))
            squares += others[arm][-1].weight * max(0.0, far) ** 2 * total / (total + 1)
            freedom += others[arm][-1].weight * (far > 0)
    counts = {arm: len(of_arm) + missed[arm] for arm, of_arm in reached.items()}
    total = sum(missed.values())
    # Jeffreys' prior (1946), but only after the first miss: most trainings never miss.
    job = (min(1.0, total) / 2 + total) / (1 + sum(counts.values()))
    missing = {
        arm: (OWN_MISSES * job + missed[arm]) / (OWN_MISSES + counts[arm]) for arm in reached
    }
    return Luck(Spread(math.sqrt(squares / freedom), freedom), missing, job), others


# Standard deviations of log joules per epoch between runs, of a steady and of a noisy machine, and
# how many machines are noisy. docs/policies.md shows the ranges that follow.
STEADY_SD, NOISY_SD, NOISY_SHARE = 0.01, 0.2, 0.18
# Differences of successive runs overlap, so one says less than a deviation from a known mean (von
# Neumann, Annals of Mathematical Statistics, 1941: 0.8 of three runs, 0.7 of nine).
DIFFERENCE_WEIGHT = 0.75
OUTLIER = 30.0  # the square of a difference counts up to so many medians of all squares
PROVEN = frozenset({Stage.EXPLOIT, Stage.RETRY})  # run as the best known, not to try them


@dataclass(frozen=True)
class Evidence:
    """The runs of a job by arm, oldest first. Arms without a value are absent."""

    results: RunsByArm  # since the job last changed; successes first
    reached: RunsByArm  # those that reached the target
    cut: RunsByArm  # the same, cut short with a learning curve
    speeds: Mapping[int, Sequence[float]]  # joules per epoch of the newest runs
    # The same on the newest other devices, by the batch size that gives a rank as much work today.
    speeds_elsewhere: Mapping[int, Sequence[float]]
    speed_sd: float  # standard deviation of one run's log joules per epoch
    speed_freedom: float  # degrees of freedom of it
    timed: RunsByArm  # the runs that show the speed of each arm
    power_w: float | None  # drawn at the known arm nearest to the default
    run_sd: float  # standard deviation of log epochs of one run that reaches the target
    freedom: float  # degrees of freedom of it
    luck: Luck
    widest: Mapping[int, float]  # factor between the expected epochs and the most of the next run
    fitting: tuple[int, ...]  # candidates that neither memory nor crashes of the script rule out
    crashed: Mapping[int, str]  # arms that crashes of the script rule out, and why
    crashed_now: frozenset[int]  # in the recurrence being decided, as the next five
    failed_now: frozenset[int]
    out_of_memory_now: frozenset[int]  # of those that ran in the recurrence
    ran_now: frozenset[int]
    missed_now: frozenset[int]  # failed, and not only stopped at a bound
    proven_failed_now: bool  # whether an arm failed that was run as the best known
    lost_now_j: float  # known cost of these failures
    checked_now: bool  # whether a speed was checked
    out_of_memory: Mapping[int, int]  # how often
    in_flight: frozenset[int]
    failed_since: Counter[int]  # failures of each arm since a run reached the target
    outdated: int  # how many runs no longer count, because the job has changed since
    last_reached: int | None  # arm of the newest run that reached the target, whenever that was


def gather(problem: Problem, runs: Runs) -> Evidence:
    """Sort the runs of a job, oldest first."""
    shown = weigh_shown(runs)
    successes = [run.arm for run, _ in shown if run.status is TrialStatus.REACHED]
    weighed = [
        run if sure else run._replace(weight=chance, log_shift=log_shift)
        for run, (chance, log_shift, sure) in shown
    ]
    relevant = _even_out([run for run in _without_old_bounds(weighed) if run.weight >= LEAST])
    reached = _by_arm(problem, [run for run in relevant if run.status is TrialStatus.REACHED])
    failed = _by_arm(problem, [run for run in relevant if run.status in FAILED])
    luck, failed = find_luck(reached, failed)
    timed = timed_runs(runs)
    variance, speed_freedom = _find_speed_variance(timed)
    crashed = rule_out_crashed(runs)
    now = [run for run in runs if run.recurrence == problem.recurrence]
    out_of_memory = Counter(run.arm for run in runs if run.status is TrialStatus.OOM)
    lost = [run for run in now if run.status in OUTDONE]
    results = {arm: [*reached.get(arm, ()), *failed.get(arm, ())] for arm in {**reached, **failed}}
    return Evidence(
        results=results,
        reached=reached,
        cut=_by_arm(problem, filter(is_cut, relevant)),
        speeds=_speeds(runs, timed, variance),
        speeds_elsewhere=_speeds_elsewhere(problem, runs),
        speed_sd=math.sqrt(variance),
        speed_freedom=speed_freedom,
        timed=timed,
        power_w=_power(problem, timed),
        run_sd=luck.spread.sd,
        freedom=luck.spread.freedom,
        luck=luck,
        widest={arm: _widest(luck.spread, of_arm) for arm, of_arm in reached.items()},
        fitting=fitting(problem.candidates, out_of_memory, runs, crashed),
        crashed=crashed,
        crashed_now=frozenset(run.arm for run in now if run.status is TrialStatus.FAILED),
        out_of_memory=out_of_memory,
        in_flight=frozenset(run.arm for run in runs if run.status is TrialStatus.DISPATCHED),
        failed_now=failed_now(problem, lost, OUTDONE),
        out_of_memory_now=frozenset(r.arm for r in lost if r.status is TrialStatus.OOM),
        ran_now=frozenset(run.arm for run in lost),
        missed_now=failed_now(problem, lost, OUTDONE - {TrialStatus.STOPPED}),
        proven_failed_now=any(run.status in FAILED and run.stage in PROVEN for run in lost),
        checked_now=any(run.stage is Stage.SPEED_CHECK for run in now),
        lost_now_j=sum((run.epochs or 1) * (run.epoch_cost_j or 0.0) for run in lost),
        failed_since=_failed_since(runs),
        outdated=sum(is_settled(run) and run.weight < LEAST for run in weighed),
        last_reached=successes[-1] if successes else None,
    )


def _failed_since(runs: Runs) -> Counter[int]:
    """Count the failures of each arm since the newest run that reached the target."""
    since = takewhile(lambda run: run.status is not TrialStatus.REACHED, reversed(runs))
    return Counter(run.arm for run in since if run.status in OUTDONE)


def was_bounded(run: Observation) -> bool:
    """Whether a run of the best known arm was stopped: its bound may be the cause, not the arm."""
    return run.status is TrialStatus.STOPPED and run.stage in PROVEN


def _without_old_bounds(runs: Runs) -> Runs:
    """Leave out runs that were stopped before one reached the target again.

    Their bounds are from before the job changed. A run that missed the target with all of its
    epochs counts.
    """
    since = max((i + 1 for i, run in enumerate(runs) if run.weight < DOUBTED), default=len(runs))
    reached = (i for i, run in enumerate(runs) if run.status is TrialStatus.REACHED and i >= since)
    old = range(since, next(reached, 0))
    return [r for i, r in enumerate(runs) if i not in old or r.status is not TrialStatus.STOPPED]


def _even_out(runs: Runs) -> Runs:
    """Correct the epochs of each run: estimate where between two reports it passed the target.

    Without this, two nearly equal runs can differ by a whole report interval. The mean over all
    runs stays the same.
    """
    shares = [run.last_step[1] for run in runs if run.last_step]
    usual = statistics.fmean(shares) if shares else 0.0
    even = []
    for run in runs:
        if run.last_step:
            (step, share), epochs = run.last_step, max(1, run.epochs or 1)
            times = max(0.5, epochs + step * (share - usual)) / epochs
            even.append(run._replace(log_shift=run.log_shift + math.log(times)))
        else:
            even.append(run)
    return even


def _widest(spread: Spread, runs: Runs) -> float:
    """Return the factor between the expected epochs and the most of the next run of an arm.

    After an edit, the first run shows how many epochs it takes now: it may take as many as after
    the very first run of a job.
    """
    today = any(run.differs is None for run in runs)
    widest = spread.widest(sum(run.weight for run in runs))
    return widest if today else max(widest, Spread().widest(1))


def _by_arm(problem: Problem, runs: Iterable[Observation]) -> dict[int, list[Observation]]:
    arms: defaultdict[int, list[Observation]] = defaultdict(list)
    for run in runs:
        arms[run.arm].append(run)
    window = problem.window or 0  # [-0:] is everything
    return {arm: of_arm[-window:] for arm, of_arm in arms.items()}


def _find_speed_variance(timed: RunsByArm) -> tuple[float, float]:
    """Return the variance of log joules per epoch between runs of an arm, and its freedom.

    It comes from the differences of successive runs, pooled over arms, so a lasting change of speed
    is one large difference. A few slow nights count as far as the others make them likely. The
    machine is steady or noisy; each counts as far as the differences make it likely. ``freedom`` is
    that of a chi-square estimate of as large a variance of its own.
    """
    squares: list[float] = []
    for of_arm in timed.values():
        logs = [math.log(cost) for cost in newest_speeds(of_arm, math.inf)]
        squares += [(new - old) ** 2 / 2 for old, new in pairwise(logs)]
    largest = max(STEADY_SD**2, OUTLIER * statistics.median(squares)) if squares else 0.0
    total = DIFFERENCE_WEIGHT * sum(min(each, largest) for each in squares)
    freedom = 1 + DIFFERENCE_WEIGHT * len(squares)  # either prior counts as one run
    likelihood = ((STEADY_SD**2 + total) / (NOISY_SD**2 + total)) ** (freedom / 2)
    odds = NOISY_SHARE / (1 - NOISY_SHARE) * NOISY_SD / STEADY_SD * likelihood
    noisy = odds / (1 + odds)
    apart = (NOISY_SD**2 - STEADY_SD**2) / freedom  # the two variances, once all runs count
    variance = (STEADY_SD**2 + total) / freedom + noisy * apart
    between = noisy * (1 - noisy) * apart**2
    spread = 2 * (variance**2 + between) / freedom + between
    return variance, max(1.0, 2 * variance**2 / spread)


def _speeds(runs: Runs, timed: RunsByArm, variance: float) -> dict[int, list[float]]:
    """Return joules per epoch of the newest runs of each arm.

    After an edit, the arms that have not run since are as much slower as those that have.
    """
    found = {arm: newest_speeds(of_arm, variance) for arm, of_arm in timed.items()}
    edited = timed_runs(run for run in runs if run.differs is not None)
    since = [arm for arm in edited if timed[arm][-1].differs is None]
    if since:
        logs = [math.log(average_speed(found[arm]) / usual_speed(edited[arm])) for arm in since]
        factor = finite_exp(statistics.fmean(logs))
        for arm in edited.keys() - set(since):
            found[arm] = [cost_j * factor for cost_j in found[arm]]
    return found


def _speeds_elsewhere(problem: Problem, runs: Runs) -> dict[int, list[float]]:
    """Return joules per epoch on the newest devices other than today's, of one training.

    See ``Evidence``. A batch size that is no whole number today is left out.
    """
    others = [(run, run.elsewhere) for run in runs if run.elsewhere is not None]
    found: defaultdict[int, list[float]] = defaultdict(list)
    for run, speed in others:
        newest, last = others[-1]
        alike = (*speed[:2], run.differs) == (*last[:2], newest.differs)
        ranks_then = max(1, speed.hardware.world_size)
        arm, rest = divmod(run.arm * problem.hardware.world_size, ranks_then)
        if alike and arm and not rest:
            found[arm].append(speed.epoch_cost_j)
    return {arm: costs[-SPEED_RUNS:] for arm, costs in found.items()}


def _power(problem: Problem, timed: RunsByArm) -> float | None:
    drawn = {
        arm: max(watts)
        for arm, of_arm in timed.items()
        if (watts := [run.power_w for run in of_arm if run.power_w is not None])
    }
    near = min(drawn, key=lambda arm: (abs(math.log(arm / problem.default)), arm), default=None)
    return None if near is None else drawn[near]
