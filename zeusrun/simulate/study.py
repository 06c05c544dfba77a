"""Simulates many seeds of many jobs under several policies, on all cores if asked to."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter, defaultdict
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.simulate.job import best_arm, expected, never_optimising
from zeusrun.simulate.replay import ATTEMPTS, build_problem, replay
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from zeusrun.simulate.job import Expected, SimulatedJob
    from zeusrun.simulate.replay import Played
    from zeusrun.simulate.scenario import Scenario

Amounts: TypeAlias = NDArray[np.float64]
"""Cost in joules, energy in joules and time in seconds by recurrence, shape ``(n, 3)``."""

_CHUNK = 400  # recurrences that a process simulates before it reports: a fraction of a second


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How to simulate.

    Attributes:
        recurrences: Of every job; those of a cluster trace may have fewer.
        eta_knob: Weight of energy in the cost.
        cost_factor: Stop a trial at this multiple of the cheapest cost; ``None`` never stops one.
        attempts: That a recurrence may make.
        in_flight: Recurrences under way at any time.
        load: Random arrivals instead; see ``Scenario.arrivals``.
    """

    recurrences: int = 50
    eta_knob: float = 0.5
    cost_factor: float | None = 2.0
    attempts: int = ATTEMPTS
    in_flight: int = 1
    load: float | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Episode:
    """One seed of one job under one policy. All shapes are by recurrence, in order of start.

    Attributes:
        name: Of the scenario.
        policy: By name.
        seed: The seed.
        starts_s: When each recurrence began.
        spent: What each recurrence took, failed attempts, looks and profiling included.
        best: What the best batch size takes on average, at its best power limit.
        never: What the default takes on average at its highest power limit.
        reached: Whether an attempt of each recurrence reached the target.
        arms: Attempts by batch size.
        attempts: Trials without those that were only looked at.
        failed: Those among them that missed the target.
        last_attempts: Recurrences that made their last attempt allowed, or ended without a model.
        looks: Trials that were only looked at.
        best_arm: The best batch size, at the first recurrence.
    """

    name: str
    policy: str
    seed: int
    starts_s: NDArray[np.float64]
    spent: Amounts
    best: Amounts
    never: Amounts
    reached: NDArray[np.bool_]
    arms: Mapping[int, int]
    attempts: int
    failed: int
    last_attempts: int
    looks: int
    best_arm: int

    @property
    def regret_j(self) -> NDArray[np.float64]:
        """Cost over the best batch size's expected cost, by recurrence."""
        regret: NDArray[np.float64] = self.spent[:, 0] - self.best[:, 0]
        return regret


_Cell: TypeAlias = "tuple[Scenario, str, int]"


def run_study(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    seeds: Sequence[int],
    settings: Settings | None = None,
    *,
    processes: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> list[Episode]:
    """Simulate every scenario under every policy with every seed.

    The result does not depend on the number of processes. With more than one, a script that
    calls this needs the usual ``if __name__ == "__main__":``, see ``multiprocessing``.

    Args:
        scenarios: What; scenarios of one name are merged by time.
        policies: Names as in a job file.
        seeds: Of the runs and the policies' own draws; of the job, too, where it is synthetic.
        settings: How.
        processes: To spread the work over.
        on_progress: Told the share that is done.

    Returns:
        By name, policy and seed, in the order given.

    Raises:
        UsageError: If there is nothing to simulate, no such policy, or no batch size that ever
            reaches a job's target.
    """
    if not (scenarios and policies and seeds):
        raise UsageError("there is nothing to simulate: no workload, no policy or no seed")
    for policy in policies:
        create_policy(policy)
    settings = settings or Settings()
    cells = [(each, policy, seed) for each in scenarios for policy in policies for seed in seeds]
    chunks = list(_chunks(cells, settings))
    episodes: list[Episode] = []
    for done, chunk in enumerate(_simulate_all(chunks, settings, processes), 1):
        episodes += chunk
        if on_progress:
            on_progress(done / len(chunks))
    by_key: defaultdict[tuple[str, str, int], list[Episode]] = defaultdict(list)
    for episode in episodes:
        by_key[episode.name, episode.policy, episode.seed].append(episode)
    return [_merged(same) for same in by_key.values()]


def simulate(scenario: Scenario, policy: str, seed: int, settings: Settings) -> Episode:
    """Simulate one seed of one scenario."""
    job = scenario.build(seed)
    recurrences = settings.recurrences
    if scenario.submissions:
        recurrences = min(recurrences, len(scenario.submissions))
    arrivals = scenario.arrivals(job, settings.eta_knob, settings.load, recurrences, seed)
    played = replay(
        job,
        create_policy(policy),
        build_problem(job, settings.eta_knob, settings.cost_factor),
        recurrences,
        [seed, *scenario.salt],
        attempts=settings.attempts,
        in_flight=settings.in_flight,
        arrivals=arrivals,
    )
    ratios = [each.ratio for each in scenario.submissions[:recurrences]] or [1.0] * recurrences
    scale = np.array(ratios)[:, None]
    starts_s, spent, reached = _charged(played, recurrences)
    counted = [each.trial for each in played if each.trial.status is not TrialStatus.CANCELLED]
    made = np.bincount([trial.recurrence - 1 for trial in counted], minlength=recurrences)
    best, never = _references(job, settings.eta_knob, recurrences)
    return Episode(
        name=scenario.name,
        policy=policy,
        seed=seed,
        starts_s=starts_s,
        spent=spent * scale,
        best=best * scale,
        never=never * scale,
        reached=reached,
        arms=Counter(trial.global_batch_size for trial in counted),
        attempts=len(counted),
        failed=sum(trial.status is not TrialStatus.REACHED for trial in counted),
        last_attempts=int(np.sum(~reached | (made >= settings.attempts))),
        looks=len(played) - len(counted),
        best_arm=best_arm(job, settings.eta_knob, 1),
    )


def _charged(
    played: Sequence[Played], recurrences: int
) -> tuple[NDArray[np.float64], Amounts, NDArray[np.bool_]]:
    """Add up what every recurrence took."""
    starts_s = np.full(recurrences, np.inf)
    spent = np.zeros((recurrences, 3))
    reached = np.zeros(recurrences, dtype=np.bool_)
    for trial, start_s, _ in played:
        at = trial.recurrence - 1
        starts_s[at] = min(starts_s[at], start_s)
        spent[at] += (trial.cost_j or 0.0, trial.energy_j or 0.0, trial.time_s or 0.0)
        reached[at] |= trial.status is TrialStatus.REACHED
    return starts_s, spent, reached


def _references(job: SimulatedJob, eta_knob: float, recurrences: int) -> tuple[Amounts, Amounts]:
    """Return what the best batch size takes, and the default if nothing is optimised."""
    best: list[Expected] = []
    never: list[Expected] = []
    changes = {first for first, _ in job.eras}
    for recurrence in range(1, recurrences + 1):
        if recurrence == 1 or recurrence in changes:
            least = expected(job, best_arm(job, eta_knob, recurrence), eta_knob, recurrence)
            now = never_optimising(job, eta_knob, recurrence)
            if not np.isfinite(least.cost_j):
                raise UsageError(f"{job.name}: no batch size ever reaches the target")
        best.append(least)
        never.append(now)
    return np.array(best), np.array(never)


def _merged(episodes: Sequence[Episode]) -> Episode:
    """Merge the episodes of one name, policy and seed by start; there is one but for clusters."""
    if len(episodes) == 1:
        return episodes[0]
    first = episodes[0]
    starts_s = np.concatenate([each.starts_s for each in episodes])
    order = np.argsort(starts_s, kind="stable")
    return Episode(
        name=first.name,
        policy=first.policy,
        seed=first.seed,
        starts_s=starts_s[order],
        spent=np.concatenate([each.spent for each in episodes])[order],
        best=np.concatenate([each.best for each in episodes])[order],
        never=np.concatenate([each.never for each in episodes])[order],
        reached=np.concatenate([each.reached for each in episodes])[order],
        arms=sum((Counter(each.arms) for each in episodes), Counter()),
        attempts=sum(each.attempts for each in episodes),
        failed=sum(each.failed for each in episodes),
        last_attempts=sum(each.last_attempts for each in episodes),
        looks=sum(each.looks for each in episodes),
        best_arm=first.best_arm,
    )


def _chunks(cells: Iterable[_Cell], settings: Settings) -> Iterable[list[_Cell]]:
    chunk: list[_Cell] = []
    size = 0
    for cell in cells:
        chunk.append(cell)
        size += min(settings.recurrences, len(cell[0].submissions) or settings.recurrences)
        if size >= _CHUNK:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def _simulate_all(
    chunks: Sequence[list[_Cell]], settings: Settings, processes: int
) -> Iterable[list[Episode]]:
    """Yield the episodes of every chunk, in order."""
    work = [(chunk, settings) for chunk in chunks]
    processes = min(processes, len(work))
    if processes <= 1:
        yield from map(_simulate_chunk, work)
        return
    # Spawned, not forked: whoever calls may have threads, such as those of a progress bar.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, mp_context=context, initializer=_ignore_interrupts)
    try:
        yield from pool.map(_simulate_chunk, work)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _simulate_chunk(work: tuple[list[_Cell], Settings]) -> list[Episode]:
    cells, settings = work
    return [simulate(*cell, settings) for cell in cells]


def _ignore_interrupts(*_: Any) -> None:  # noqa: ANN401
    """Leave Ctrl-C to the process that waits: it stops the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
