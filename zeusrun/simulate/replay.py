"""Replays the recurrences of a job, one after the other or overlapping."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.observation import Run
from zeusrun.bandit.problem import Problem
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.bandit.stopping import is_last_attempt, is_repeat, is_target_in_doubt
from zeusrun.simulate.engine import SAMPLES_PER_EPOCH, Play, run_trial
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.bandit.registry import Policy
    from zeusrun.simulate.job import SimulatedJob
    from zeusrun.trial import Trial

ATTEMPTS = 5
"""Attempts of a recurrence, as a job file has it by default."""

LOOKS_LIMIT = 50
"""Looks of a recurrence; then it ends without the target."""

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
    attempts: int = ATTEMPTS,
    in_flight: int = 1,
    arrivals: Sequence[Arrival] = (),
) -> list[Played]:
    """Run recurrences of a job under a policy.

    A trial that misses the target is followed at once by the next attempt, as in a submit: up to
    ``attempts`` of them, none with a batch size that has failed in the recurrence, and no third
    one before anything has ever reached the target. Until it ends, others see of a trial no more
    than that it runs.

    Args:
        job: The job.
        policy: Chooses every trial.
        problem: See ``build_problem``; its recurrence is set here.
        recurrences: How many.
        seed: Of the courses that runs take, and of the policy's own draws.
        attempts: How many a recurrence may make.
        in_flight: Recurrences under way at any time: the next begins when one ends.
        arrivals: When each recurrence begins instead, whatever else runs; one each, by time.

    Returns:
        Every trial, oldest first by start.

    Raises:
        ValueError: If a count does not fit.
    """
    if in_flight < 1 or (arrivals and len(arrivals) != recurrences):
        raise ValueError(f"{recurrences} recurrences, {len(arrivals)} arrivals, {in_flight=}")
    state = _Replay(job, policy, problem, seed, attempts=attempts, arrivals=arrivals)
    return state.play(recurrences, in_flight)


class _Replay:
    """The state of a replay: what was started, and what happens next."""

    def __init__(
        self,
        job: SimulatedJob,
        policy: Policy,
        problem: Problem,
        seed: int | Sequence[int],
        *,
        attempts: int,
        arrivals: Sequence[Arrival],
    ) -> None:
        entropy = [seed] if isinstance(seed, int) else list(seed)
        self._world = np.random.default_rng([*entropy, 1])
        self._rng = np.random.default_rng([*entropy, 2])
        self._job, self._policy, self._problem = job, policy, problem
        self._attempts, self._arrivals = attempts, arrivals
        self._played: list[Played] = []
        self._runs: list[Run] = []  # as policies see ``_played``
        self._made: defaultdict[int, list[Trial]] = defaultdict(list)  # by recurrence
        # (time, _END, index of the trial) or (time, _START, recurrence)
        self._events: list[tuple[float, int, int]] = []

    def play(self, recurrences: int, in_flight: int) -> list[Played]:
        first = len(self._arrivals) or min(in_flight, recurrences)
        starts = [arrival.start_s for arrival in self._arrivals] or [0.0] * first
        self._events = [(time_s, _START, n) for n, time_s in enumerate(starts, 1)]
        heapify(self._events)
        following = first + 1
        while self._events:
            now_s, kind, number = heappop(self._events)
            if kind == _START:
                over = not self._start(number, now_s)
            else:
                trial = self._played[number].trial
                self._runs[number] = _read(self._problem, trial)
                self._made[trial.recurrence].append(trial)
                over = self._over(trial.recurrence)
                if not over:
                    heappush(self._events, (now_s, _START, trial.recurrence))
            if over and following <= recurrences:
                heappush(self._events, (now_s, _START, following))
                following += 1
        return self._played

    def _over(self, recurrence: int) -> bool:
        """Whether a recurrence ends with the last of its trials so far."""
        made = self._made[recurrence]
        if made[-1].status is TrialStatus.REACHED:
            return True
        looks = sum(trial.status is TrialStatus.CANCELLED for trial in made)
        if looks >= LOOKS_LIMIT or len(made) - looks >= self._attempts:
            return True
        return is_target_in_doubt(made, self._runs)

    def _start(self, recurrence: int, now_s: float) -> bool:
        """Start the next trial of a recurrence; return whether there was one left to start."""
        job, made = self._job, self._made[recurrence]
        attempt = 1 + sum(trial.status is not TrialStatus.CANCELLED for trial in made)
        last = is_last_attempt(made, self._attempts)
        problem = self._problem
        if (problem.recurrence, problem.last_attempt) != (recurrence, last):
            problem = replace(problem, recurrence=recurrence, last_attempt=last)
            self._problem = problem
        decision = self._policy.choose(problem, self._runs, self._rng)
        if is_repeat(decision, made):
            return False
        courses = job.courses(decision.global_batch_size, recurrence)
        course = courses[int(self._world.integers(len(courses)))]
        play = Play(job, self._policy, problem, self._runs, self._rng)
        name = f"{job.name}-{recurrence}-{attempt}"
        trial = run_trial(play, decision, course, attempt=attempt, name=name)
        stretch = self._arrivals[recurrence - 1].stretch if self._arrivals else 1.0
        end_s = now_s + (trial.time_s or 0.0) * stretch
        heappush(self._events, (end_s, _END, len(self._played)))
        self._played.append(Played(trial, now_s, end_s))
        arm, stage = trial.global_batch_size, trial.stage
        self._runs.append(Run(arm, recurrence, TrialStatus.DISPATCHED, stage))
        return True


def _read(problem: Problem, trial: Trial) -> Run:
    run = read_trial(problem, trial)
    if run is None:
        raise ValueError(f"a simulated trial ended as {trial.status.value}, which says nothing")
    return run
