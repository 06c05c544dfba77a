"""The speed check: a trial runs until its speed is known, then the policy decides again. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from zeusrun.bandit.auto.policy import SPEED_CHECK_S
from zeusrun.bandit.reinterpret import read_trial
from zeusrun.cost import cost_j
from zeusrun.trial import Outcome, PowerPoint, Stage, TrialStatus

if TYPE_CHECKING:
    from zeusrun.bandit.observation import Run
    from zeusrun.bandit.problem import Problem
    from zeusrun.energy.meter import Meter
    from zeusrun.launcher.choose import Choice
    from zeusrun.metrics.progress import EnergyBetween, Progress
    from zeusrun.trial import Trial

LOOK_STEPS = 10  # the first steps allocate and compile, so fewer say little
WHOLE_SHARE = 0.75  # of an epoch's steps: a last, smaller step of it may have been dropped


def begins_with_look(choice: Choice) -> bool:
    """Whether a trial begins with a speed check: once for a batch size in a recurrence."""
    decision, problem = choice.decision, choice.problem
    return decision.stage is Stage.LOOK and not any(
        (run.arm, run.recurrence, run.stage)
        == (decision.global_batch_size, problem.recurrence, Stage.LOOK)
        for run in choice.runs
    )


def has_seen_enough(progress: Progress, problem: Problem, arm: int) -> bool:
    """Whether the speed of ``arm`` is known: after an epoch, or earlier where steps are counted."""
    counted = progress.steps is not None or problem.samples_per_epoch is not None
    if counted and (progress.steps or 0) < LOOK_STEPS:
        return False
    if progress.epochs >= 1 and _trained_epochs(progress, problem, arm):
        return True
    long = progress.time_s is not None and progress.time_s >= SPEED_CHECK_S
    return long and problem.samples_per_epoch is not None


def _trained_epochs(progress: Progress, problem: Problem, arm: int) -> bool:
    """Whether the reported epochs were trained, and not only evaluated.

    Assume so if steps are not counted, or nobody knows how many make an epoch.
    """
    if progress.steps is None or problem.samples_per_epoch is None:
        return True
    samples = progress.epochs * problem.samples_per_epoch
    return progress.steps * arm >= WHOLE_SHARE * samples


def measure_speed(
    progress: Progress, power_limit_w: float | None, energy_between: EnergyBetween
) -> PowerPoint | None:
    """Return speed and power from the first step to the last; ``None`` if either is unknown.

    Args:
        progress: Now.
        power_limit_w: Watts per GPU in force; ``None`` without a limit.
        energy_between: Joules between two monotonic seconds, ``None`` if unknown.
    """
    if progress.stepping_s is None or progress.steps is None or progress.steps < 2:
        return None
    first_t, last_t = progress.stepping_s
    if last_t <= first_t:
        return None
    energy_j = energy_between(first_t, last_t)
    if energy_j is None:
        return None
    span_s = last_t - first_t
    return PowerPoint(power_limit_w, (progress.steps - 1) / span_s, energy_j / span_s)


def read_look(
    problem: Problem, trial: Trial, progress: Progress, point: PowerPoint | None, meter: Meter
) -> Run | None:
    """Return the trial as the policy would read it if it ended now; ``None`` without a speed."""
    if not _trained_epochs(progress, problem, trial.global_batch_size):
        progress = replace(progress, epochs=0, curve=())  # only its steps show its speed
    outcome = Outcome(
        TrialStatus.CANCELLED,
        "looked at",
        trial.started_at,
        time_s=progress.time_s,
        energy_j=progress.energy_j,
        energy_source=meter.energy_source,
        max_power_w=meter.max_power_w,
        cost_j=cost_j(progress.energy_j, meter.max_power_w, progress.time_s, trial.eta_knob),
        epochs=progress.epochs if progress.curve else None,
        steps=progress.steps,
        best_metric=progress.best_value,
        curve=progress.curve,
        power_profile=() if point is None else (point,),
    )
    run = read_trial(problem, trial.finish(outcome))
    return None if run is None or run.epoch_cost_j is None else run
