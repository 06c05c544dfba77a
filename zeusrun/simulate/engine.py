"""Runs one simulated trial, as long as its policy lets it, and charges all of it.

Training goes on while power limits are probed: a probe costs what its limit costs more than the
best one. A trial is stopped within an epoch when its cost passes the bound, as by the launcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.policy import SPEED_CHECK_S
from zeusrun.bandit.observation import Running, merged_profile
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.cost import cost_j
from zeusrun.simulate.job import watts
from zeusrun.trial import CurvePoint, EnergySource, PowerPoint, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.random import Generator

    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem
    from zeusrun.bandit.registry import Policy
    from zeusrun.simulate.job import Course, SimulatedJob
    from zeusrun.trial import Decision

PROBE_S = 12.0  # a power limit settles for 2 s and is measured for 10 s
SAMPLES_PER_EPOCH = 1_000_000.0  # any number will do: only speeds are compared


@dataclass(frozen=True)
class Play:
    """What a trial is run with.

    Attributes:
        job: What happens.
        policy: Who decides.
        problem: What it is asked.
        runs: What it knows, oldest first.
        rng: For its draws.
    """

    job: SimulatedJob
    policy: Policy
    problem: Problem
    runs: Sequence[Run]
    rng: Generator


def run_trial(play: Play, decision: Decision, course: Course, *, attempt: int, name: str) -> Trial:
    """Carry out a decision.

    Args:
        play: What the trial is run with.
        decision: The policy's.
        course: How the run learns if it is left alone.
        attempt: Its number within the recurrence.
        name: Of the trial.

    Returns:
        ``REACHED``, ``MISSED``, ``STOPPED``, or ``CANCELLED`` where only its speed was looked
        at; ``time_s`` is all of its time.
    """
    return _Simulation(play, decision, course).run(attempt, name)


def _under_own_limits(play: Play, decision: Decision) -> tuple[Play, Decision]:
    """Leave only the limits that the arm was measured under, where it lacks some of the job's."""
    arm = decision.global_batch_size
    limits_w = tuple(sorted(play.job.rates[arm]))
    if decision.power_limit_w is None or limits_w == play.problem.power_limits_w:
        return play, decision
    problem = replace(play.problem, power_limits_w=limits_w)
    known = merged_profile([run for run in play.runs if run.arm == arm])
    limit_w = play.policy.next_limit_w(problem, decision, known)
    return replace(play, problem=problem), replace(decision, power_limit_w=limit_w)


class _Simulation:
    """A trial on its way."""

    def __init__(self, play: Play, decision: Decision, course: Course) -> None:
        self._arm = decision.global_batch_size
        self._rates = play.job.rates[self._arm]
        play, decision = _under_own_limits(play, decision)
        self._play, self._decision, self._course = play, decision, course
        self._time_s = self._energy_j = 0.0
        self._epochs = 0
        self._begun = 0.0  # share of the next epoch that is done
        self._window_s = 0.0  # of the probe under way
        self._curve: list[CurvePoint] = []
        self._epoch_end: CurvePoint | None = None  # of the last whole epoch
        self._best: float | None = None
        self._status: TrialStatus | None = None
        self._reason = ""
        self._fresh: dict[float, PowerPoint] = {}
        self._known: dict[float | None, PowerPoint] = {}
        if decision.power_limit_w is not None:
            own = [run for run in play.runs if run.arm == self._arm]
            self._known = {point.power_limit_w: point for point in merged_profile(own)}
        self._hold(decision.power_limit_w)
        self._looking = self._probing and decision.stage is Stage.LOOK

    def run(self, attempt: int, name: str) -> Trial:
        while self._status is None:
            self._train_epoch()
        return self._trial(attempt, name)

    def _hold(self, limit_w: float | None) -> None:
        """Hold a limit: the highest stands for none."""
        self._probing = limit_w is not None and limit_w not in self._known
        self._limit_w = max(self._rates) if limit_w is None else limit_w
        self._rate = self._rates[self._limit_w]

    def _spend(self, share: float) -> None:
        """Train a share of an epoch, or until the cost passes the bound."""
        seconds, bound = share * self._rate.epoch_s, self._decision.bound
        if bound is not None:
            job, eta_knob = self._play.job, self._play.problem.eta_knob
            left_s = (bound.cost_j - self._spent_j()) / watts(job, self._rate, eta_knob)
            if seconds > max(0.0, left_s):
                seconds = max(0.0, left_s)
                self._status, self._reason = TrialStatus.STOPPED, "its cost passed the bound"
        self._time_s += seconds
        self._energy_j += seconds * self._rate.power_w

    def _spent_j(self) -> float:
        eta_knob = self._play.problem.eta_knob
        time_cost = self._play.job.max_power_w * self._time_s
        return eta_knob * self._energy_j + (1 - eta_knob) * time_cost

    def _train_epoch(self) -> None:
        while self._probing:
            probe_s = SPEED_CHECK_S if self._looking else PROBE_S
            share = (probe_s - self._window_s) / self._rate.epoch_s
            if share > 1 - self._begun:
                self._window_s += (1 - self._begun) * self._rate.epoch_s
                break
            self._spend(share)
            self._begun += share
            if self._status is None:
                self._end_probe()
            if self._status is not None:
                return
        self._spend(1 - self._begun)
        if self._status is not None:
            return
        self._begun = 0.0
        self._epochs += 1
        self._learn()
        if self._status is None:
            running = Running(self._epochs, self._spent_j(), self._best)
            why = self._play.policy.review(self._play.problem, self._decision, running)
            if why is not None:
                self._status, self._reason = TrialStatus.STOPPED, why

    def _learn(self) -> None:
        """Take the metric from the course, at the end of an epoch."""
        pace, epochs = self._course.pace, self._epochs
        reported = len(self._curve)
        rises = reported < len(pace) and pace[reported][0] <= epochs
        if rises:
            self._best = pace[reported][1]
        self._epoch_end = CurvePoint(epochs, self._time_s, self._energy_j, self._best)
        if rises:
            self._curve.append(self._epoch_end)
        if epochs == self._course.epochs:
            self._status, self._reason = TrialStatus.REACHED, "target reached"
        elif epochs >= self._play.job.max_epochs:
            self._status, self._reason = TrialStatus.MISSED, "target missed"

    def _end_probe(self) -> None:
        """Note what was measured, and ask for the next limit; after a look, whether to go on."""
        limit_w, rate = self._limit_w, self._rate
        steps_per_s = SAMPLES_PER_EPOCH / self._arm / rate.epoch_s
        point = PowerPoint(limit_w, steps_per_s, rate.power_w)
        self._fresh[limit_w] = self._known[limit_w] = point
        self._window_s = 0.0
        play = self._play
        if self._looking:
            self._looking = False
            self._status, self._reason = TrialStatus.CANCELLED, "only its speed was looked at"
            looked = read_trial(play.problem, self._trial(1, "look"))
            runs = play.runs if looked is None else [*play.runs, looked]
            decision = play.policy.choose(play.problem, runs, play.rng)
            if decision.global_batch_size != self._arm:
                return
            self._status, self._decision = None, decision
        profile = tuple(self._known.values())
        self._hold(play.policy.next_limit_w(play.problem, self._decision, profile))

    def _trial(self, attempt: int, name: str) -> Trial:
        problem, decision = self._play.problem, self._decision
        time_s, energy_j = self._time_s, self._energy_j
        curve = self._curve
        if self._epoch_end and curve[-1:] != [self._epoch_end]:
            curve = [*curve, self._epoch_end]  # the metric did not rise in it
        return Trial(
            trial=name,
            job=self._play.job.name,
            recurrence=problem.recurrence,
            attempt=attempt,
            status=self._status or TrialStatus.DISPATCHED,
            reason=self._reason,
            global_batch_size=self._arm,
            power_limit_w=self._limit_w,
            world_size=problem.world_size,
            gpu_model=problem.gpu_model,
            gpu_count=problem.gpu_count,
            started_at="",
            time_s=time_s,
            energy_j=energy_j,
            energy_source=EnergySource.COUNTER,
            max_power_w=problem.max_power_w,
            cost_j=cost_j(energy_j, problem.max_power_w, time_s, problem.eta_knob),
            epochs=self._epochs,
            metric=problem.metric,
            run_dir="",
            stage=decision.stage,
            why=decision.why,
            mode=problem.mode,
            target=problem.target,
            max_epochs=problem.max_epochs,
            eta_knob=problem.eta_knob,
            default_batch_size=problem.default,
            curve=tuple(curve),
            power_profile=tuple(self._fresh.values()),
        )
