"""Asks the policy about a running trial: once its speed is known, and after every epoch."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from zeusrun.bandit.auto.policy import SPEED_CHECK_S, Auto
from zeusrun.bandit.problem import Running
from zeusrun.bandit.proof import as_undisturbed
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.bandit.stopping import bounded_choice
from zeusrun.cost import cost_j, energy_text
from zeusrun.launcher.processes.torchrun import TICK_S
from zeusrun.launcher.supervision.outcome import outcome_now
from zeusrun.launcher.supervision.stopping import StopOrder
from zeusrun.lever import Lever, limit_of
from zeusrun.reasons import ReasonCode
from zeusrun.trial import PowerPoint, Stage, TrialStatus, adapts, join_parts

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from zeusrun.bandit.problem import Observation, Problem
    from zeusrun.choice.choose import Choice
    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.context import Submission
    from zeusrun.metrics.progress import EnergyBetween, Progress
    from zeusrun.trial import Decision, Trial

SPEED_CHECK_STEPS = 10  # the first steps allocate and compile, so fewer say little
RESOLVED_S = 10 * TICK_S  # a shorter cost is not measured: reports may be a tick late
WHOLE_SHARE = 0.75  # of an epoch's steps: a last, smaller step of it may have been dropped


class PolicyControl:
    """Asks the policy about one running trial."""

    def __init__(self, submission: Submission, choice: Choice, meter: Meter) -> None:
        self._submission, self._choice, self._meter = submission, choice, meter
        self._decision = choice.decision
        self.checking = begins_with_speed_check(choice)
        self.speed: PowerPoint | None = None  # what the speed check measured

    def check_speed(
        self, progress: Progress, levers: Collection[Lever | None]
    ) -> Decision | StopOrder | None:
        """End the speed check if enough was seen, and ask the policy again.

        Return the decision from now on, why the trial is ended, or ``None`` if there is nothing to
        decide. ``levers`` are the power limits under which steps were taken.
        """
        choice, trial = self._choice, self._choice.trial
        if not self.checking or progress.reached is not None:
            return None
        if not has_seen_enough(progress, choice.problem, trial.global_batch_size):
            return None
        self.checking = False
        if len(levers) == 1:  # a mean over several limits says nothing about any of them
            (lever,) = levers
            self.speed = measure_speed(progress, lever, self._meter.energy_between)
        measured = read_speed_check(choice.problem, trial, progress, self.speed, self._meter)
        if measured is None:  # then it is an exploration like any other
            return None
        policy, problem, arm = self._submission.policy, choice.problem, trial.global_batch_size
        seed = [self._submission.spec.policy.seed, problem.recurrence, trial.attempt, 1]
        runs = [*choice.runs, measured]
        decision = bounded_choice(
            lambda problem, runs: policy.choose(problem, runs, np.random.default_rng(seed)),
            problem,
            runs,
            [each for each in choice.earlier if each.recurrence == problem.recurrence],
            moves_on=policy.name == Auto.name,
        )
        if decision.global_batch_size == arm:
            self._decision = decision
            return decision
        beliefs = policy.explain(problem, runs, np.random.default_rng(seed))
        belief = next(each for each in beliefs if each.global_batch_size == arm)
        epoch_j = belief.epoch_cost_j
        seen = "" if epoch_j is None else f"{energy_text(epoch_j)} an epoch; "
        why = f"{seen}{belief.verdict}; {decision.global_batch_size} follows"
        return StopOrder(ReasonCode.SPEED_CHECKED, f"only its speed was checked: {why}")

    def review(self, progress: Progress) -> StopOrder | None:
        """Ask the policy, at the end of an epoch, whether another one is worth it.

        What a restart or a preemption lost is no cost of the batch size.
        """
        trial = self._choice.trial
        last = progress.epochs == trial.max_epochs
        if progress.reached is not None or progress.may_have_reached:
            return None
        if last or progress.may_be_baseline:
            return None
        _, time_s, energy_j, _ = progress.curve[-1]
        if time_s < RESOLVED_S:
            return None
        outcome = outcome_now(trial, progress, self._meter, TrialStatus.LOST)
        spent_j = cost_j(energy_j, outcome.max_power_w, time_s, trial.eta_knob)
        outcome = replace(outcome, time_s=time_s, energy_j=energy_j, cost_j=spent_j)
        joined = join_parts(trial, outcome)
        spent_j = as_undisturbed(trial.finish(joined)).cost_j
        unit, epochs = self._choice.problem.unit, progress.epochs
        if unit is None and progress.by_samples:
            return None  # epochs do not show how far it is
        if unit is not None:
            if joined.samples is None:
                return None
            epochs = max(1, round(joined.samples / unit))
        running = Running(epochs, spent_j, progress.best_value, unit)
        reason = self._submission.policy.review(self._choice.problem, self._decision, running)
        return None if reason is None else StopOrder(ReasonCode.HOPELESS, reason)

    def next_lever(self, profile: Sequence[PowerPoint]) -> Lever | None:
        """Return the power limit to hold next; ``None`` for the original one."""
        policy, problem = self._submission.policy, self._choice.problem
        return policy.next_lever(problem, self._decision, profile)


def begins_with_speed_check(choice: Choice) -> bool:
    """Whether a trial begins with a speed check: once for a batch size in a recurrence."""
    decision, problem = choice.decision, choice.problem
    if adapts(choice.trial.variant):  # the speed at the first batch size says little
        return False
    return decision.stage is Stage.SPEED_CHECK and not any(
        (run.arm, run.recurrence, run.stage)
        == (decision.global_batch_size, problem.recurrence, Stage.SPEED_CHECK)
        for run in choice.runs
    )


def has_seen_enough(progress: Progress, problem: Problem, arm: int) -> bool:
    """Whether the speed of ``arm`` is known: after an epoch, or earlier where steps are counted."""
    counted = progress.steps is not None or problem.samples_per_epoch is not None
    if counted and (progress.steps or 0) < SPEED_CHECK_STEPS:
        return False
    if progress.epochs >= 1 and _trained_epochs(progress, problem, arm):
        return True
    long = progress.time_s is not None and progress.time_s >= SPEED_CHECK_S
    return long and problem.samples_per_epoch is not None


def _trained_epochs(progress: Progress, problem: Problem, arm: int) -> bool:
    """Whether the reported epochs were trained, and not only evaluated; if unknown, yes."""
    if progress.steps is None or problem.samples_per_epoch is None:
        return True
    samples = progress.epochs * problem.samples_per_epoch
    return progress.steps * arm >= WHOLE_SHARE * samples


def measure_speed(
    progress: Progress, lever: Lever | None, energy_between: EnergyBetween
) -> PowerPoint | None:
    """Return speed and power from the first step to the last; ``None`` if either is unknown."""
    if progress.stepping_s is None or progress.steps is None or progress.steps < 2:
        return None
    first_t, last_t = progress.stepping_s
    if last_t <= first_t:
        return None
    energy_j = energy_between(first_t, last_t)
    if energy_j is None:
        return None
    span_s = last_t - first_t
    return PowerPoint(limit_of(lever), (progress.steps - 1) / span_s, energy_j / span_s)


def read_speed_check(
    problem: Problem, trial: Trial, progress: Progress, point: PowerPoint | None, meter: Meter
) -> Observation | None:
    """Return the trial as the policy would read it if it ended now; ``None`` without a speed."""
    if not _trained_epochs(progress, problem, trial.global_batch_size):
        progress = replace(progress, epochs=0, curve=())  # only its steps show its speed
    outcome = outcome_now(trial, progress, meter, TrialStatus.CANCELLED)
    outcome = replace(outcome, power_profile=() if point is None else (point,))
    run = read_trial(problem, trial.finish(outcome))
    return None if run is None or run.epoch_cost_j is None else run
