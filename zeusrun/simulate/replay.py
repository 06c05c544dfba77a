"""Replays the recurrences of a job, one after another or overlapping.

``forecast`` replays a job's own history from today on, and sums up what its next recurrences take.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field, fields, replace
from heapq import heappop, heappush
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from zeusrun.bandit.problem import Observation
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.bandit.stopping import is_repeat, is_target_in_doubt
from zeusrun.choice.problem import Machine, build_problem
from zeusrun.errors import UsageError
from zeusrun.jobfile.spec import sketch_spec
from zeusrun.lever import POWER, Lever
from zeusrun.simulate.engine import SAMPLES_PER_EPOCH, Setting, expected, run_trial
from zeusrun.simulate.own_job import draw_job
from zeusrun.trial import Hardware, Stage, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import Problem, Runs
    from zeusrun.bandit.registry import Policy
    from zeusrun.simulate.engine import SimulatedJob
    from zeusrun.simulate.own_job import JobModel
    from zeusrun.trial import Trial

ATTEMPTS = 5  # of a recurrence, the default of a job file
SPEED_CHECKS = 50  # after so many, a recurrence ends without the target

_END, _START = 0, 1  # at the same moment, ends come first: a trial that starts sees them


class Played(NamedTuple):
    """A trial, and when it started and ended, in seconds."""

    trial: Trial
    start_s: float
    end_s: float


def ask_about(job: SimulatedJob, eta_knob: float, cost_factor: float | None) -> Problem:
    """Return what a policy is asked about a simulated job in its first recurrence."""
    objective = {"metric": "metric", "mode": job.mode, "target": job.target}
    objective |= {"max_epochs": job.max_epochs, "eta_knob": eta_knob}
    spec = sketch_spec(
        job.name, objective, candidates=job.arms, default=job.default, cost_factor=cost_factor
    )
    machine = Machine(
        hardware=Hardware(1, "simulated", 1),
        energy_measured=True,
        max_power_w=job.max_power_w,
        levers=tuple(Lever(POWER, limit_w) for limit_w in job.power_limits_w),
    )
    problem = build_problem(spec, machine, (), 1)
    # ``replay`` counts the attempts.
    return replace(problem, samples_per_epoch=SAMPLES_PER_EPOCH, attempts_left=None)


def replay(
    job: SimulatedJob,
    policy: Policy,
    problem: Problem,
    recurrences: int,
    seed: int,
    *,
    attempts: int = ATTEMPTS,
    in_flight: int = 1,
    before: Runs = (),
) -> list[Played]:
    """Run recurrences of a job under a policy.

    As in a submit, the next attempt follows at once after a trial that misses the target. Until a
    trial ends, other recurrences see only that it runs.

    Args:
        job: The job.
        policy: Chooses every trial.
        problem: From ``ask_about``; its recurrence is set here.
        recurrences: How many.
        seed: Of the learning curves that the runs follow, and of the draws of the policy.
        attempts: How many a recurrence may make.
        in_flight: Recurrences that run at the same time; the next one begins when one ends.
        before: Runs that the policy knows already, of recurrences below 1.

    Returns:
        Every trial, by start.
    """
    world, rng = (np.random.default_rng([seed, stream]) for stream in (1, 2))
    state = _Replay(job, policy, problem, world, rng, attempts, len(before))
    state.runs += before
    return state.play(recurrences, in_flight)


@dataclass
class _Replay:
    """The state of a replay: the trials so far, and the events to come."""

    job: SimulatedJob
    policy: Policy
    problem: Problem
    world: Generator  # draws the learning curves
    rng: Generator  # for the policy
    attempts: int
    before: int  # runs that were known
    played: list[Played] = field(default_factory=list)
    # Those, and ``played`` as policies see it.
    runs: list[Observation] = field(default_factory=list)
    ended: defaultdict[int, list[Trial]] = field(default_factory=lambda: defaultdict(list))
    # (time, _END, index of the trial) or (time, _START, recurrence)
    events: list[tuple[float, int, int]] = field(default_factory=list)

    def play(self, recurrences: int, in_flight: int) -> list[Played]:
        following = min(in_flight, recurrences) + 1
        self.events = [(0.0, _START, number) for number in range(1, following)]
        while self.events:
            now_s, kind, number = heappop(self.events)
            if kind == _START:
                over = not self._start(number, now_s)
            else:
                trial = self.played[number].trial
                run = read_trial(self.problem, trial)
                if run is not None:  # as for every trial that the engine ends
                    self.runs[self.before + number] = run
                self.ended[trial.recurrence].append(trial)
                over = self._is_over(self.ended[trial.recurrence])
                if not over:
                    heappush(self.events, (now_s, _START, trial.recurrence))
            if over and following <= recurrences:
                heappush(self.events, (now_s, _START, following))
                following += 1
        return self.played

    def _is_over(self, made: Sequence[Trial]) -> bool:
        """Whether a recurrence makes no further attempt after these trials."""
        if made[-1].status is TrialStatus.REACHED:
            return True
        checks = sum(trial.status is TrialStatus.CANCELLED for trial in made)
        if checks >= SPEED_CHECKS or len(made) - checks >= self.attempts:
            return True
        return is_target_in_doubt(made, self.runs)

    def _start(self, recurrence: int, now_s: float) -> bool:
        """Start the next trial of a recurrence; return whether there was one left to start."""
        job, made = self.job, self.ended[recurrence]
        attempt = 1 + sum(trial.status is not TrialStatus.CANCELLED for trial in made)
        left = self.attempts - attempt + 1
        if (self.problem.recurrence, self.problem.attempts_left) != (recurrence, left):
            last = left == 1 < self.attempts
            self.problem = replace(
                self.problem, recurrence=recurrence, last_attempt=last, attempts_left=left
            )
        setting = Setting(job, self.policy, self.problem, self.runs, self.rng, made)
        decision = setting.choose(self.runs)
        if is_repeat(decision, made):
            return False
        curves = job.curves(decision.global_batch_size, recurrence)
        curve = curves[int(self.world.integers(len(curves)))]
        name = f"{job.name}-{recurrence}-{attempt}"
        trial = run_trial(setting, decision, curve, attempt=attempt, name=name)
        end_s = now_s + (trial.time_s or 0.0)
        heappush(self.events, (end_s, _END, len(self.played)))
        self.played.append(Played(trial, now_s, end_s))
        status = TrialStatus.DISPATCHED
        self.runs.append(Observation(trial.global_batch_size, recurrence, status, trial.stage))
        return True


_LAST = 10  # recurrences that show which batch size is in use at the end
_TRIES = frozenset({Stage.EXPLORE, Stage.SPEED_CHECK})


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What a job takes from now on under some settings; each field has a value for each seed."""

    batch_sizes: tuple[int, ...]  # in use at the end
    cost_j: tuple[float, ...]  # of a run with that batch size, as are the next two
    energy_j: tuple[float, ...]
    time_s: tuple[float, ...]
    exploring_j: tuple[float, ...]  # what recurrences that try others cost beyond such a run
    control_j: tuple[float, ...]  # the same of recurrences with a control run
    unreached: tuple[int, ...]  # recurrences that end without a model


def forecast(
    model: JobModel,
    policy: Policy,
    *,
    recurrences: int,
    seeds: Sequence[int],
    attempts: int,
    on_seed: Callable[[], None] = lambda: None,
) -> Forecast:
    """Replay a job from today on, with its history, once for each seed.

    The same seed gives two models the same luck. ``on_seed`` is called after each.
    """
    problem, rows = model.problem, []
    for seed in seeds:
        job = draw_job(model, seed)
        played = replay(
            job, policy, problem, recurrences, seed, attempts=attempts, before=model.runs
        )
        trials = [each.trial for each in played]
        reached = {
            trial.recurrence: trial.global_batch_size
            for trial in trials
            if trial.status is TrialStatus.REACHED
        }
        last = [arm for number, arm in reached.items() if number > recurrences - _LAST]
        arm = Counter(last).most_common(1)[0][0] if last else problem.default
        usual = expected(job, arm, problem.eta_knob, 1)
        if not math.isfinite(usual.cost_j):
            raise UsageError(f"{model.job}: no batch size reaches the target in the simulation")
        control = {trial.recurrence for trial in trials if trial.stage is Stage.CONTROL}
        tried = {trial.recurrence for trial in trials if trial.stage in _TRIES} - control
        beyond = [
            sum(trial.cost_j or 0.0 for trial in trials if trial.recurrence in numbers)
            - len(numbers) * usual.cost_j
            for numbers in (tried, control)
        ]
        rows.append((arm, *usual, *beyond, recurrences - len(reached)))
        on_seed()
    names = (field.name for field in fields(Forecast))
    return Forecast(**dict(zip(names, zip(*rows, strict=True), strict=True)))
