"""A job of which everything is known, and one simulated trial of it: all that it takes is charged.

Training continues while power limits are probed: a probe costs what its limit costs more than the
best one. As in the launcher, a trial stops within an epoch if its cost exceeds the bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

from zeusrun.bandit.auto.policy import SPEED_CHECK_S, Auto
from zeusrun.bandit.problem import Running, merged_profile
from zeusrun.bandit.registry import choose_control
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.bandit.stopping import bounded_choice
from zeusrun.cost import cost_j
from zeusrun.lever import POWER, Lever
from zeusrun.trial import CurvePoint, EnergySource, PowerPoint, Stage, Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.random import Generator

    from zeusrun.bandit.problem import Pace, Problem, Runs
    from zeusrun.bandit.registry import Policy
    from zeusrun.trial import Decision

PROBE_S = 12.0  # a power limit settles for 2 s and is measured for 10 s
SAMPLES_PER_EPOCH = 1_000_000.0  # any number will do: only speeds are compared


class LearningCurve(NamedTuple):
    """How one run learns if it is not stopped."""

    epochs: int | None  # to the target; ``None``: it is never reached
    pace: Pace


class Rate(NamedTuple):
    """Speed and power under a power limit: seconds per epoch, watts over all GPUs."""

    epoch_s: float
    power_w: float


class Expected(NamedTuple):
    """Mean cost, energy and time until a batch size reaches the target; infinite if it never does.

    A failed run takes ``max_epochs`` and is repeated.
    """

    cost_j: float
    energy_j: float
    time_s: float


@dataclass(frozen=True, kw_only=True)
class SimulatedJob:
    """A recurring job of which everything is known.

    A run follows one of the learning curves of its batch size at random. A job that does not change
    has one era, from recurrence 1.
    """

    name: str
    default: int  # the user's own batch size
    mode: Literal["max", "min"]
    target: float
    max_epochs: int
    max_power_w: float  # of the GPU
    rates: Mapping[int, Mapping[float, Rate]]  # by batch size, then by power limit; never empty
    eras: Sequence[tuple[int, Mapping[int, Sequence[LearningCurve]]]]  # by first recurrence
    slowness: Mapping[int, float] = field(default_factory=dict)  # by recurrence, of its epochs; 1

    @cached_property
    def arms(self) -> tuple[int, ...]:
        """Batch sizes, ascending."""
        return tuple(sorted(self.rates))

    @cached_property
    def power_limits_w(self) -> tuple[float, ...]:
        """Power limits of all batch sizes, ascending."""
        return tuple(sorted(set().union(*self.rates.values())))

    def rates_at(self, arm: int, recurrence: int) -> Mapping[float, Rate]:
        """Return speed and power of a batch size at a recurrence, by power limit."""
        slower = self.slowness.get(recurrence, 1.0)
        if slower == 1.0:
            return self.rates[arm]
        return {w: Rate(rate.epoch_s * slower, rate.power_w) for w, rate in self.rates[arm].items()}

    def curves(self, arm: int, recurrence: int) -> Sequence[LearningCurve]:
        """Return the learning curves that a run of a batch size may follow."""
        return [curves for first, curves in self.eras if first <= recurrence][-1][arm]


def watts(job: SimulatedJob, rate: Rate, eta_knob: float) -> float:
    """Return cost per second under a rate; You et al. (NSDI 2023), the cost metric."""
    return eta_knob * rate.power_w + (1 - eta_knob) * job.max_power_w


def best_limit_w(job: SimulatedJob, arm: int, eta_knob: float) -> float:
    """Return the limit under which an epoch costs least."""
    rates = job.rates[arm]
    return min(rates, key=lambda w: rates[w].epoch_s * watts(job, rates[w], eta_knob))


def expected(
    job: SimulatedJob, arm: int, eta_knob: float, recurrence: int, limit_w: float | None = None
) -> Expected:
    """Return what a batch size takes at a recurrence; ``limit_w=None`` is its best power limit."""
    rate = job.rates[arm][best_limit_w(job, arm, eta_knob) if limit_w is None else limit_w]
    curves = job.curves(arm, recurrence)
    reached = sum(curve.epochs is not None for curve in curves)
    epochs = sum(curve.epochs or job.max_epochs for curve in curves)
    time_s = (epochs / reached if reached else math.inf) * rate.epoch_s
    return Expected(time_s * watts(job, rate, eta_knob), time_s * rate.power_w, time_s)


def best_arm(job: SimulatedJob, eta_knob: float, recurrence: int) -> int:
    """Return the batch size of least expected cost."""
    return min(job.arms, key=lambda arm: expected(job, arm, eta_knob, recurrence).cost_j)


def never_optimising(job: SimulatedJob, eta_knob: float, recurrence: int) -> Expected:
    """Return what the default batch size takes at its highest power limit."""
    return expected(job, job.default, eta_knob, recurrence, max(job.rates[job.default]))


@dataclass(frozen=True)
class Setting:
    """What a trial is run with."""

    job: SimulatedJob
    policy: Policy
    problem: Problem
    runs: Runs  # before it, oldest first
    rng: Generator  # for the draws of the policy
    made: Sequence[Trial] = ()  # earlier attempts of the recurrence

    def choose(self, runs: Runs) -> Decision:
        """Return the choice after these runs. Policy ``zeus`` is simulated as it was published."""
        control = choose_control(self.policy, self.problem, runs, self.made)
        if control is not None:
            return control
        if self.policy.name == "zeus":
            return self.policy.choose(self.problem, runs, self.rng)
        return bounded_choice(
            lambda problem, runs: self.policy.choose(problem, runs, self.rng),
            self.problem,
            runs,
            self.made,
            moves_on=self.policy.name == Auto.name,
        )


def run_trial(
    setting: Setting, decision: Decision, curve: LearningCurve, *, attempt: int, name: str
) -> Trial:
    """Run a trial as decided, along a learning curve; ``CANCELLED`` if only its speed was checked.

    ``time_s`` is all of its time.
    """
    simulation = _Simulation(setting, decision, curve)
    while simulation.status is None:
        simulation.train_epoch()
    return simulation.build_trial(attempt, name)


def _restrict_limits(setting: Setting, decision: Decision) -> tuple[Setting, Decision]:
    """Let a batch size use only the power limits under which it was measured."""
    arm = decision.global_batch_size
    levers = tuple(Lever(POWER, limit_w) for limit_w in sorted(setting.job.rates[arm]))
    if decision.lever is None or levers == setting.problem.levers:
        return setting, decision
    problem = replace(setting.problem, levers=levers)
    known = merged_profile([run for run in setting.runs if run.arm == arm])
    lever = setting.policy.next_lever(problem, decision, known)
    return replace(setting, problem=problem), replace(decision, lever=lever)


class _Simulation:
    """A trial that is running."""

    def __init__(self, setting: Setting, decision: Decision, curve: LearningCurve) -> None:
        self._arm = decision.global_batch_size
        self._rates = setting.job.rates_at(self._arm, setting.problem.recurrence)
        setting, decision = _restrict_limits(setting, decision)
        self._setting, self._decision, self._learning = setting, decision, curve
        self._time_s = self._energy_j = 0.0
        self._epochs = 0
        self._epoch_share = 0.0  # share of the current epoch that is done
        self._probed_s = 0.0  # seconds of the current probe
        self._curve: list[CurvePoint] = []
        self._rises = 0  # of the metric so far
        self._epoch_end: CurvePoint | None = None  # of the last whole epoch
        self._best: float | None = None
        self.status: TrialStatus | None = None
        self._reason = ""
        self._measured: dict[float, PowerPoint] = {}  # in this trial
        self._known: dict[float | None, PowerPoint] = {}  # in all trials of the batch size
        if decision.lever is not None:
            of_arm = [run for run in setting.runs if run.arm == self._arm]
            self._known = {point.power_limit_w: point for point in merged_profile(of_arm)}
        self._hold(decision.lever)
        self._in_speed_check = self._probing and decision.stage is Stage.SPEED_CHECK

    def _hold(self, lever: Lever | None) -> None:
        """Hold a power limit; ``None`` is the highest."""
        self._limit_w = max(self._rates) if lever is None else lever.value
        self._probing = lever is not None and self._limit_w not in self._known
        self._rate = self._rates[self._limit_w]

    def _train(self, share: float) -> None:
        """Train a share of an epoch, or until the cost exceeds the bound."""
        seconds, bound = share * self._rate.epoch_s, self._decision.bound
        if bound is not None and bound.epochs is None:
            job, eta_knob = self._setting.job, self._setting.problem.eta_knob
            left_s = (bound.cost_j - self._spent_j()) / watts(job, self._rate, eta_knob)
            if seconds > max(0.0, left_s):
                seconds = max(0.0, left_s)
                self.status, self._reason = TrialStatus.STOPPED, "its cost passed the bound"
        self._time_s += seconds
        self._energy_j += seconds * self._rate.power_w

    def _spent_j(self) -> float:
        job, eta_knob = self._setting.job, self._setting.problem.eta_knob
        return cost_j(self._energy_j, job.max_power_w, self._time_s, eta_knob) or 0.0

    def train_epoch(self) -> None:
        while self._probing:
            probe_s = SPEED_CHECK_S if self._in_speed_check else PROBE_S
            share = (probe_s - self._probed_s) / self._rate.epoch_s
            if share > 1 - self._epoch_share:
                self._probed_s += (1 - self._epoch_share) * self._rate.epoch_s
                break
            self._train(share)
            self._epoch_share += share
            if self.status is None:
                self._end_probe()
            if self.status is not None:
                return
        self._train(1 - self._epoch_share)
        if self.status is not None:
            return
        self._epoch_share = 0.0
        self._epochs += 1
        self._report_metric()
        if self.status is None:
            running = Running(self._epochs, self._spent_j(), self._best)
            why = self._setting.policy.review(self._setting.problem, self._decision, running)
            if why is not None:
                self.status, self._reason = TrialStatus.STOPPED, why

    def _report_metric(self) -> None:
        """Take the metric from the learning curve, at the end of an epoch."""
        pace, epochs, before = self._learning.pace, self._epochs, self._epoch_end
        rises = self._rises < len(pace) and pace[self._rises][0] <= epochs
        if rises:
            self._best = pace[self._rises][1]
            self._rises += 1
        self._epoch_end = CurvePoint(epochs, self._time_s, self._energy_j, self._best)
        reached = epochs == self._learning.epochs
        if reached and before is not None and self._curve[-1:] != [before]:
            self._curve.append(before)  # it shows where in the last epoch the target was passed
        if rises:
            self._curve.append(self._epoch_end)
        if reached:
            self.status, self._reason = TrialStatus.REACHED, "target reached"
        elif epochs >= self._setting.job.max_epochs:
            self.status, self._reason = TrialStatus.MISSED, "target missed"

    def _end_probe(self) -> None:
        """Record a measurement and ask for the next limit.

        After a speed check the policy decides again; the trial ends if it chooses another arm.
        """
        limit_w, rate, setting = self._limit_w, self._rate, self._setting
        samples = setting.problem.samples_per_epoch or SAMPLES_PER_EPOCH
        steps_per_s = samples / self._arm / rate.epoch_s
        point = PowerPoint(limit_w, steps_per_s, rate.power_w)
        self._measured[limit_w] = self._known[limit_w] = point
        self._probed_s = 0.0
        if self._in_speed_check:
            self._in_speed_check = False
            self.status, self._reason = TrialStatus.CANCELLED, "only its speed was measured"
            checked = read_trial(setting.problem, self.build_trial(1, "speed-check"))
            runs = setting.runs if checked is None else [*setting.runs, checked]
            decision = setting.choose(runs)
            if decision.global_batch_size != self._arm:
                return
            self.status, self._decision = None, decision
        profile = tuple(self._known.values())
        self._hold(setting.policy.next_lever(setting.problem, self._decision, profile))

    def build_trial(self, attempt: int, name: str) -> Trial:
        problem, decision, curve = self._setting.problem, self._decision, self._curve
        if self._epoch_end and curve[-1:] != [self._epoch_end]:
            curve = [*curve, self._epoch_end]  # the metric did not rise in the last epoch
        return Trial(
            trial=name,
            job=self._setting.job.name,
            **problem.recorded,
            attempt=attempt,
            status=self.status or TrialStatus.DISPATCHED,
            reason=self._reason,
            global_batch_size=self._arm,
            power_limit_w=self._limit_w,
            **problem.hardware._asdict(),
            started_at="",
            time_s=self._time_s,
            energy_j=self._energy_j,
            energy_source=EnergySource.COUNTER,
            max_power_w=problem.max_power_w,
            cost_j=cost_j(self._energy_j, problem.max_power_w, self._time_s, problem.eta_knob),
            epochs=self._epochs,
            run_dir="",
            stage=decision.stage,
            why=decision.why,
            curve=tuple(curve),
            power_profile=tuple(self._measured.values()),
            uuid="",
        )
