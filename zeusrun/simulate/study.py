"""Simulates scenarios under several policies with many seeds, and sums them up."""

from __future__ import annotations

import multiprocessing
import signal
import zlib
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from zeusrun.analysis.amounts import group_by
from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import best_arm, expected, never_optimising
from zeusrun.simulate.replay import ATTEMPTS, Arrival, ask_about, replay
from zeusrun.simulate.traces import ClusterRun, load_groups, load_jobs, parse_workload
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from numpy.random import Generator
    from numpy.typing import NDArray

    from zeusrun.bandit.problem import Array
    from zeusrun.simulate.engine import Expected, SimulatedJob


Amounts: TypeAlias = "Array"
"""Cost in joules, energy in joules and time in seconds by recurrence, shape ``(n, 3)``."""

_CHUNK = 400  # recurrences that a process simulates before it reports: a fraction of a second
_JOB_STREAM = 77  # with a seed: the generator that a job is made from


@dataclass(frozen=True)
class Scenario:
    """A recurring job to simulate. Scenarios of one name are reported together."""

    name: str
    job: SimulatedJob | Callable[[Generator], SimulatedJob]  # or what makes one for each seed
    runs: tuple[ClusterRun, ...] = ()  # of a cluster trace; empty: each waits for one before it
    salt: tuple[int, ...] = ()  # added to every seed, so that groups of a cluster trace differ

    def build(self, seed: int) -> SimulatedJob:
        """Return the job of a seed."""
        rng = np.random.default_rng([seed, _JOB_STREAM])
        return self.job(rng) if callable(self.job) else self.job


def build_scenarios(
    workloads: Sequence[str], trace_dir: Path, gpu: str | None, cluster: Path | None = None
) -> list[Scenario]:
    """Build the scenarios of some workloads of recorded traces; no workload means all.

    Each group of a ``cluster`` trace is one scenario.

    Raises:
        UsageError: If something that the user named does not exist.
    """
    wanted = [parse_workload(text) for text in workloads]
    jobs = load_jobs(trace_dir, gpu, wanted)
    by_name = {job.name: Scenario(job.name, job) for job in jobs}
    if cluster is None:
        return list(by_name.values())
    groups = defaultdict(list)
    for group in load_groups(cluster, by_name):
        salt = zlib.crc32(group.name.encode())
        scenario = replace(by_name[group.dataset], runs=group.runs, salt=(salt,))
        groups[group.dataset].append(scenario)
    return [scenario for name in by_name for scenario in groups[name]]


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How to simulate; the fields are those of a job file and the flags of ``simulate``."""

    recurrences: int = 50  # of every job; a group of a cluster trace may have fewer
    eta_knob: float = 0.5
    cost_factor: float | None = 2.0
    attempts: int = ATTEMPTS
    in_flight: int = 1  # recurrences that run at the same time


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One seed of one scenario under one policy. Arrays are by recurrence, in order of start."""

    name: str  # of the scenario
    policy: str
    seed: int
    starts_s: Array
    spent: Amounts  # failed attempts, speed checks and probes included
    best: Amounts  # of the best batch size on average, at its best power limit
    never: Amounts  # of the default on average, at its highest power limit
    reached: NDArray[np.bool_]  # whether an attempt reached the target
    arms: Mapping[int, int]  # attempts by batch size; a trial ended by its speed check is none
    failed: int  # attempts that missed the target
    last_attempts: int  # recurrences that made their last attempt, or ended without a model
    speed_checks: int  # trials ended by their speed check
    best_arm: int  # at the first recurrence

    @property
    def regret_j(self) -> Array:
        """Cost over the best batch size's expected cost, by recurrence."""
        return np.asarray(self.spent[:, 0] - self.best[:, 0])


def run_study(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    seeds: Sequence[int],
    settings: StudySettings | None = None,
    *,
    processes: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> list[Episode]:
    """Simulate every scenario under every policy with every seed; episodes come in that order.

    The result does not depend on the number of processes. With more than one, a script that calls
    this needs the usual ``if __name__ == "__main__":``, see ``multiprocessing``. Scenarios of one
    name are merged by time. ``on_progress`` receives the share that is done.

    Raises:
        UsageError: If there is no such policy, or no batch size that reaches a job's target.
    """
    for policy in policies:
        create_policy(policy)
    cells = [(each, policy, seed) for each in scenarios for policy in policies for seed in seeds]
    by_key: defaultdict[tuple[str, str, int], list[Episode]] = defaultdict(list)
    for done, episode in enumerate(_simulate_all(cells, settings or StudySettings(), processes), 1):
        by_key[episode.name, episode.policy, episode.seed].append(episode)
        if on_progress:
            on_progress(done / len(cells))
    return [_merged(same) for same in by_key.values()]


def simulate(scenario: Scenario, policy: str, seed: int, settings: StudySettings) -> Episode:
    """Simulate one seed of one scenario."""
    job = scenario.build(seed)
    runs = scenario.runs[: settings.recurrences]
    recurrences = len(runs) or settings.recurrences
    best, never = _references(job, settings.eta_knob, recurrences)
    default_s = never[0, 2]
    if not np.isfinite(default_s):  # the default never reaches the target: its runs all fail
        rates = job.rates[job.default]
        default_s = job.max_epochs * rates[max(rates)].epoch_s
    played = replay(
        job,
        create_policy(policy),
        ask_about(job, settings.eta_knob, settings.cost_factor),
        recurrences,
        [seed, *scenario.salt],
        attempts=settings.attempts,
        in_flight=settings.in_flight,
        arrivals=[Arrival(run.start_s, run.duration_s / default_s) for run in runs],
    )
    starts_s = np.full(recurrences, np.inf)
    spent = np.zeros((recurrences, 3))
    reached = np.zeros(recurrences, dtype=np.bool_)
    for trial, start_s, _ in played:
        at = trial.recurrence - 1
        starts_s[at] = min(starts_s[at], start_s)
        spent[at] += (trial.cost_j or 0.0, trial.energy_j or 0.0, trial.time_s or 0.0)
        reached[at] |= trial.status is TrialStatus.REACHED
    attempts = [each.trial for each in played if each.trial.status is not TrialStatus.CANCELLED]
    made = np.bincount([trial.recurrence - 1 for trial in attempts], minlength=recurrences)
    scale = np.array([run.ratio for run in runs] or [1.0] * recurrences)[:, None]
    return Episode(
        name=scenario.name,
        policy=policy,
        seed=seed,
        starts_s=starts_s,
        spent=spent * scale,
        best=best * scale,
        never=never * scale,
        reached=reached,
        arms=Counter(trial.global_batch_size for trial in attempts),
        failed=sum(trial.status is not TrialStatus.REACHED for trial in attempts),
        last_attempts=int(np.sum(~reached | (made >= settings.attempts))),
        speed_checks=len(played) - len(attempts),
        best_arm=best_arm(job, settings.eta_knob, 1),
    )


def _references(job: SimulatedJob, eta_knob: float, recurrences: int) -> tuple[Amounts, Amounts]:
    """Return the expected amounts of the best batch size, and of never optimising."""
    best: list[Expected] = []
    never: list[Expected] = []
    changes = {first for first, _ in job.eras}
    for recurrence in range(1, recurrences + 1):
        if recurrence == 1 or recurrence in changes:
            least = expected(job, best_arm(job, eta_knob, recurrence), eta_knob, recurrence)
            now = never_optimising(job, eta_knob, recurrence)
            if not np.isfinite(least.cost_j):
                limits = f"{job.target:g} within {job.max_epochs} epochs"
                raise UsageError(f"{job.name}: no batch size ever reaches {limits}")
        best.append(least)
        never.append(now)
    return np.array(best), np.array(never)


def _merged(episodes: Sequence[Episode]) -> Episode:
    """Merge the groups of a cluster trace of one name, policy and seed, by start."""
    if len(episodes) == 1:
        return episodes[0]
    order = np.argsort(np.concatenate([each.starts_s for each in episodes]), kind="stable")
    values: dict[str, Any] = {
        name: np.concatenate([getattr(each, name) for each in episodes])[order]
        for name in ("starts_s", "spent", "best", "never", "reached")
    }
    for name in ("failed", "last_attempts", "speed_checks"):
        values[name] = sum(getattr(each, name) for each in episodes)
    values["arms"] = sum((Counter(each.arms) for each in episodes), Counter[int]())
    return replace(episodes[0], **values)


def _simulate_all(
    cells: Sequence[tuple[Scenario, str, int]], settings: StudySettings, processes: int
) -> Iterable[Episode]:
    """Yield the episodes in order."""
    work = partial(simulate, settings=settings)
    chunk = max(1, _CHUNK // settings.recurrences)
    if processes <= 1 or len(cells) <= chunk:
        yield from (work(*cell) for cell in cells)
        return
    # Spawned, not forked: the caller may have threads, such as those of a progress bar. Only the
    # caller handles Ctrl-C: it stops the pool.
    pool = ProcessPoolExecutor(
        min(processes, -(-len(cells) // chunk)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=signal.signal,
        initargs=(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        yield from pool.map(work, *zip(*cells, strict=True), chunksize=chunk)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


BASELINE = "zeus"  # the published policy; others are compared with it

Spread: TypeAlias = "dict[str, Any]"
"""``mean``, ``median``, ``p5`` and ``p95`` over seeds: a number, or a list by recurrence."""


@dataclass(frozen=True)
class Ratios:
    """Total cost, energy and time over those of a reference; ``None`` if that is unknown."""

    cost: float | None = None
    energy: float | None = None
    time: float | None = None


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One workload under one policy, over all seeds; the fields are those of the JSON.

    A best run is the expected cost of the best batch size at its best power limit.
    """

    workload: str
    policy: str
    seeds: int
    recurrences: int  # of each seed
    cost_j: Spread  # of all recurrences
    energy_j: Spread
    time_s: Spread
    regret_j: Spread  # cost over that of best runs
    regret_best_runs: Spread  # in best runs
    cumulative_cost_j: Spread  # by recurrence
    cumulative_regret_j: Spread
    cumulative_regret_best_runs: Spread
    never_j: float | None  # of the default at its highest limit; None if it misses the target
    best_j: float  # of best runs
    best_batch_sizes: tuple[int, ...]  # at the first recurrence; a family has several
    to_never: Ratios  # against the default at its highest limit
    to_best: Ratios  # against best runs
    to_zeus: Ratios  # against policy zeus: means over seeds, in best runs
    zeus_regret_best_runs: float | None  # mean over seeds; None if zeus was not simulated
    regret_to_zeus: float | None  # None if the regret of zeus is unknown or not above 0
    batch_sizes: Mapping[int, float]  # share of the attempts
    attempts: float  # per recurrence
    looks: float  # trials ended by their speed check, per recurrence
    failed_share: float  # of the attempts
    unreached: int  # recurrences of all seeds in which no attempt reached the target


def summarise(episodes: Sequence[Episode], policies: Sequence[str]) -> list[Summary]:
    """Sum up some policies of a study, and compare them with ``zeus`` if it was simulated."""
    groups = group_by(episodes, lambda episode: (episode.name, episode.policy))
    return [
        _summary(own, groups.get((workload, BASELINE), []))
        for workload in dict.fromkeys(workload for workload, _ in groups)
        for (name, policy), own in groups.items()
        if name == workload and policy in policies
    ]


def pooled_regret(summaries: Sequence[Summary], policy: str) -> float | None:
    """Return the regret of a policy over all workloads, in best runs, over that of ``zeus``."""
    pairs = [
        (each.regret_best_runs["mean"], each.zeus_regret_best_runs)
        for each in summaries
        if each.policy == policy and each.zeus_regret_best_runs is not None
    ]
    of_zeus = sum(zeus for _, zeus in pairs)
    return sum(own for own, _ in pairs) / of_zeus if of_zeus > 0 else None


def _summary(own: Sequence[Episode], zeus: Sequence[Episode]) -> Summary:
    spent = np.array([each.spent.sum(axis=0) for each in own])
    costs_j = np.array([each.spent[:, 0] for each in own]).cumsum(axis=1)
    regrets_j = np.array([each.regret_j for each in own]).cumsum(axis=1)
    regrets = np.array([_regrets(each) for each in own])
    never_j = float(np.mean([each.never[:, 0].sum() for each in own]))
    arms = sum((Counter(each.arms) for each in own), Counter[int]())
    attempts, recurrences = sum(arms.values()), len(own[0].starts_s)
    of_zeus = float(np.mean([_regrets(each)[-1] for each in zeus])) if zeus else None
    in_bests = [_in_bests(each) for each in own]
    to_zeus = Ratios()
    if zeus:
        theirs = np.mean([_in_bests(each) for each in zeus], axis=0)
        to_zeus = _ratios([np.mean(in_bests, axis=0) / theirs])
    return Summary(
        workload=own[0].name,
        policy=own[0].policy,
        seeds=len(own),
        recurrences=recurrences,
        cost_j=_spread(spent[:, 0]),
        energy_j=_spread(spent[:, 1]),
        time_s=_spread(spent[:, 2]),
        regret_j=_spread(regrets_j[:, -1]),
        regret_best_runs=_spread(regrets[:, -1]),
        cumulative_cost_j=_spread(costs_j),
        cumulative_regret_j=_spread(regrets_j),
        cumulative_regret_best_runs=_spread(regrets),
        never_j=never_j if np.isfinite(never_j) else None,
        best_j=float(np.mean([each.best[:, 0].sum() for each in own])),
        best_batch_sizes=tuple(sorted({each.best_arm for each in own})),
        to_never=_ratios([each.spent.sum(0) / each.never.sum(0) for each in own]),
        to_best=_ratios(in_bests),
        to_zeus=to_zeus,
        zeus_regret_best_runs=of_zeus,
        regret_to_zeus=float(regrets[:, -1].mean() / of_zeus) if of_zeus and of_zeus > 0 else None,
        batch_sizes={arm: arms[arm] / attempts for arm in sorted(arms)},
        attempts=attempts / len(own) / recurrences,
        looks=sum(each.speed_checks for each in own) / len(own) / recurrences,
        failed_share=sum(each.failed for each in own) / attempts,
        unreached=sum(int((~each.reached).sum()) for each in own),
    )


def _regrets(episode: Episode) -> Array:
    """Cumulative regret in best runs, by recurrence."""
    return np.asarray((episode.regret_j / episode.best[:, 0]).cumsum())


def _in_bests(episode: Episode) -> Array:
    """Total cost, energy and time over those of the best batch size."""
    return np.asarray(episode.spent.sum(axis=0) / episode.best.sum(axis=0))


def _ratios(by_seed: Sequence[Array]) -> Ratios:
    """Return means over seeds; unknown if the reference is infinite: it misses the target."""
    return Ratios(*np.mean(by_seed, axis=0).tolist()) if np.all(by_seed) else Ratios()


def _spread(values: Array) -> Spread:
    """Return mean and quantiles over the first axis."""
    low, median, high = np.quantile(values, (0.05, 0.5, 0.95), axis=0)
    named = {"mean": values.mean(axis=0), "median": median, "p5": low, "p95": high}
    return {name: value.tolist() for name, value in named.items()}
