"""Simulates scenarios under several policies with many seeds."""

from __future__ import annotations

import multiprocessing
import signal
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from zeusrun.bandit.registry import create_policy
from zeusrun.errors import UsageError
from zeusrun.simulate.engine import best_arm, expected, never_optimising
from zeusrun.simulate.replay import ATTEMPTS, ask_about, replay
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.random import Generator
    from numpy.typing import NDArray

    from zeusrun.bandit.problem import Array
    from zeusrun.simulate.engine import Expected, SimulatedJob


Amounts: TypeAlias = "Array"
"""For each recurrence: cost in joules, energy in joules and time in seconds; shape ``(n, 3)``."""

_CHUNK = 400  # recurrences between two progress reports of a process: a fraction of a second
_JOB_STREAM = 77  # with a seed, the random generator that makes a job


@dataclass(frozen=True)
class Scenario:
    """A recurring job to simulate."""

    name: str
    job: SimulatedJob | Callable[[Generator], SimulatedJob]  # or a function that makes it

    def build(self, seed: int) -> SimulatedJob:
        """Return the job of a seed."""
        rng = np.random.default_rng([seed, _JOB_STREAM])
        return self.job(rng) if callable(self.job) else self.job


@dataclass(frozen=True, kw_only=True)
class StudySettings:
    """How to simulate; the fields are those of a job file."""

    recurrences: int = 50  # of every job
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
    spent: Amounts  # failed attempts, speed checks and probes included
    best: Amounts  # of the best batch size on average, at its best power limit
    never: Amounts  # of the default on average, at its highest power limit
    reached: NDArray[np.bool_]  # whether an attempt reached the target
    arms: Mapping[int, int]  # attempts by batch size, without trials that ended at a speed check
    failed: int  # attempts that missed the target
    last_attempts: int  # recurrences that made their last attempt, or ended without a model
    speed_checks: int  # trials that ended at their speed check
    best_arm: int  # at the first recurrence

    @property
    def regret_j(self) -> Array:
        """Cost minus the expected cost of the best batch size in joules, by recurrence."""
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
    this needs ``if __name__ == "__main__":``; see ``multiprocessing``. ``on_progress`` receives
    the finished share, from 0 to 1.

    Raises:
        UsageError: If a policy is unknown, or no batch size of a job reaches its target.
    """
    for policy in policies:
        create_policy(policy)
    cells = [(each, policy, seed) for each in scenarios for policy in policies for seed in seeds]
    episodes = []
    for episode in _simulate_all(cells, settings or StudySettings(), processes):
        episodes.append(episode)
        if on_progress:
            on_progress(len(episodes) / len(cells))
    return episodes


def simulate(scenario: Scenario, policy: str, seed: int, settings: StudySettings) -> Episode:
    """Simulate one seed of one scenario."""
    job, recurrences = scenario.build(seed), settings.recurrences
    best, never = _references(job, settings.eta_knob, recurrences)
    played = replay(
        job,
        create_policy(policy),
        ask_about(job, settings.eta_knob, settings.cost_factor),
        recurrences,
        seed,
        attempts=settings.attempts,
        in_flight=settings.in_flight,
    )
    spent = np.zeros((recurrences, 3))
    reached = np.zeros(recurrences, dtype=np.bool_)
    for trial, _, _ in played:
        at = trial.recurrence - 1
        spent[at] += (trial.cost_j or 0.0, trial.energy_j or 0.0, trial.time_s or 0.0)
        reached[at] |= trial.status is TrialStatus.REACHED
    attempts = [each.trial for each in played if each.trial.status is not TrialStatus.CANCELLED]
    made = np.bincount([trial.recurrence - 1 for trial in attempts], minlength=recurrences)
    return Episode(
        name=scenario.name,
        policy=policy,
        seed=seed,
        spent=spent,
        best=best,
        never=never,
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


def _simulate_all(
    cells: Sequence[tuple[Scenario, str, int]], settings: StudySettings, processes: int
) -> Iterable[Episode]:
    """Yield the episodes in order."""
    work = partial(simulate, settings=settings)
    chunk = max(1, _CHUNK // settings.recurrences)
    if processes <= 1 or len(cells) <= chunk:
        yield from (work(*cell) for cell in cells)
        return
    # Spawned, not forked, because the caller may have threads, such as those of a progress bar.
    # Only the caller handles Ctrl-C, and stops the pool.
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
