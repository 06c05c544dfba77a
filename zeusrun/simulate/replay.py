"""Replays the recurrences of a job, one after the other or overlapping."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.problem import Problem
from zeusrun.bandit.reading import read_trial
from zeusrun.bandit.run import Run
from zeusrun.simulate.engine import SAMPLES_PER_EPOCH, Play, run_trial
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.policies import Policy
    from zeusrun.simulate.job import SimulatedJob
    from zeusrun.trial import Trial

ATTEMPTS_LIMIT = 50
"""Attempts of a recurrence, and looks beside them; then it ends without the target."""

_END, _START = 0, 1  # at the same moment, what ends is seen by what starts


class Arrival(NamedTuple):
    """When a recurrence is submitted.

    Attributes:
        start_s: On the clock of the cluster.
        stretch: Seconds on that clock for a second that the job runs.
    """

    start_s: float
    stretch: float = 1.0


class Played(NamedTuple):
    """A trial and when it ran, in seconds on the clock of the cluster."""

    trial: Trial
    start_s: float
    end_s: float


def build_problem(job: SimulatedJob, eta_knob: float, cost_factor: float | None) -> Problem:
    """Return what a policy is asked about a job."""
    return Problem(
        candidates=job.arms,
        default=job.default,
        metric="metric",
        mode=job.mode,
        target=job.target,
        max_epochs=job.max_epochs,
        eta_knob=eta_knob,
        cost_factor=cost_factor,
        recurrence=1,
        world_size=1,
        gpu_model="simulated",
        gpu_count=1,
        energy_measured=True,
        max_power_w=job.max_power_w,
        samples_per_epoch=SAMPLES_PER_EPOCH,
        power_limits_w=job.power_limits_w,
    )


def replay(
    job: SimulatedJob,
    policy: Policy,
    problem: Problem,
    recurrences: int,
    seed: int | Sequence[int],
    *,
    in_flight: int = 1,
    arrivals: Sequence[Arrival] = (),
) -> list[Played]:
    """Run recurrences of a job under a policy.

    A trial that misses the target is followed at once by the next attempt. Until it ends, others
    see of a trial no more than that it runs.

    Args:
        job: The job.
        policy: Chooses every trial.
        problem: See ``build_problem``; its recurrence is set here.
        recurrences: How many.
        seed: Of the courses that runs take, and of the policy's own draws.
        in_flight: Recurrences under way at any time: the next begins when one ends.
        arrivals: When each recurrence begins instead, whatever else runs; one each, by time.

    Returns:
        Every trial, oldest first by start.

    Raises:
        ValueError: If a count does not fit.
    """
    if in_flight < 1 or (arrivals and len(arrivals) != recurrences):
        raise ValueError(f"{recurrences} recurrences, {len(arrivals)} arrivals, {in_flight=}")
    return _Replay(job, policy, problem, seed, arrivals).play(recurrences, in_flight)


class _Replay:
    """The state of a replay: what was started, and what happens next."""

    def __init__(
        self,
        job: SimulatedJob,
        policy: Policy,
        problem: Problem,
        seed: int | Sequence[int],
        arrivals: Sequence[Arrival],
    ) -> None:
        entropy = [seed] if isinstance(seed, int) else list(seed)
        self._world = np.random.default_rng([*entropy, 1])
        self._rng = np.random.default_rng([*entropy, 2])
        self._job, self._policy, self._problem = job, policy, problem
        self._arrivals = arrivals
        self._played: list[Played] = []
        self._runs: list[Run] = []  # as policies see ``_played``
        self._looks: Counter[int] = Counter()
        # (time, _END, index of the trial, 0) or (time, _START, recurrence, attempt)
        self._events: list[tuple[float, int, int, int]] = []

    def play(self, recurrences: int, in_flight: int) -> list[Played]:
        first = len(self._arrivals) or min(in_flight, recurrences)
        starts = [arrival.start_s for arrival in self._arrivals] or [0.0] * first
        self._events = [(time_s, _START, n, 1) for n, time_s in enumerate(starts, 1)]
        heapify(self._events)
        following = first + 1
        while self._events:
            now_s, kind, number, attempt = heappop(self._events)
            if kind == _START:
                self._start(number, attempt, now_s)
                continue
            trial = self._played[number].trial
            self._runs[number] = _read(self._problem, trial)
            looked = trial.status is TrialStatus.CANCELLED
            self._looks[trial.recurrence] += looked
            if not self._over(trial):
                attempt = trial.attempt + (not looked)
                heappush(self._events, (now_s, _START, trial.recurrence, attempt))
            elif following <= recurrences:
                heappush(self._events, (now_s, _START, following, 1))
                following += 1
        return self._played

    def _over(self, trial: Trial) -> bool:
        """Whether the recurrence of a finished trial is over."""
        if trial.status is TrialStatus.REACHED:
            return True
        if trial.status is TrialStatus.CANCELLED:
            return self._looks[trial.recurrence] >= ATTEMPTS_LIMIT
        return trial.attempt >= ATTEMPTS_LIMIT

    def _start(self, recurrence: int, attempt: int, now_s: float) -> None:
        job = self._job
        problem = self._problem
        if problem.recurrence != recurrence:
            problem = self._problem = replace(problem, recurrence=recurrence)
        decision = self._policy.choose(problem, self._runs, self._rng)
        courses = job.courses(decision.global_batch_size, recurrence)
        course = courses[int(self._world.integers(len(courses)))]
        play = Play(job, self._policy, problem, self._runs, self._rng)
        name = f"{job.name}-{recurrence}-{attempt}"
        trial = run_trial(play, decision, course, attempt=attempt, name=name)
        stretch = self._arrivals[recurrence - 1].stretch if self._arrivals else 1.0
        end_s = now_s + (trial.time_s or 0.0) * stretch
        heappush(self._events, (end_s, _END, len(self._played), 0))
        self._played.append(Played(trial, now_s, end_s))
        arm, stage = trial.global_batch_size, trial.stage
        self._runs.append(Run(arm, recurrence, TrialStatus.DISPATCHED, stage))


def _read(problem: Problem, trial: Trial) -> Run:
    run = read_trial(problem, trial)
    if run is None:
        raise ValueError(f"a simulated trial ended as {trial.status.value}, which says nothing")
    return run
