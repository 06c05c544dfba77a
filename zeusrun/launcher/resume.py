"""Continues a preempted trial: whether it can be, and the sum over its parts. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from zeusrun.cost import cost_j
from zeusrun.launcher.rundir.cancel import CANCELLED_LATER
from zeusrun.trial import EnergySource, TrialStatus, is_baseline

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.launcher.context import Submission
    from zeusrun.trial import Outcome, Trial

_Amount = TypeVar("_Amount", int, float)


def find_preempted(trials: Sequence[Trial]) -> Trial | None:
    """Return the oldest trial that the next submit will continue; ``None`` if there is none."""
    return next(iter(list_preempted(trials)), None)


def list_preempted(trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials that later submits will continue, oldest first; no forgotten ones."""
    found: list[Trial] = []
    for trial in sorted(trials, key=lambda trial: (-trial.recurrence, -trial.attempt)):
        if trial.status is TrialStatus.PREEMPTED:
            found += [] if trial.forgotten else [trial]
        elif trial.status is not TrialStatus.DISPATCHED and trial.reason != CANCELLED_LATER:
            break
    return found[::-1]


def why_not_continued(submission: Submission, trial: Trial, *, has_files: bool) -> str | None:
    """Return why a preempted trial cannot be continued as it began; ``None`` if it can."""
    spec, gpus = submission.spec, submission.gpus
    objective, arm = spec.objective, trial.global_batch_size
    names = ("metric", "target", "mode", "eta_knob", "max_epochs")
    then, now = ([getattr(each, name) for name in names] for each in (trial, objective))
    devices = (submission.world_size, gpus[0].model if gpus else None, len(gpus))
    refusals = {
        "its run directory is gone": not has_files,
        "--batch-size starts a new run": submission.forced_batch_size is not None,
        f"{arm} is no longer a candidate": arm not in spec.batch_size.candidates,
        "the objective has changed": then != now,
        "the learning rate has changed": trial.learning_rate != spec.learning_rate_for(arm),
        "it ran on other devices": (trial.world_size, trial.gpu_model, trial.gpu_count) != devices,
    }
    return next((reason for reason, holds in refusals.items() if holds), None)


def cost_with_earlier(trial: Trial, spent_j: float | None) -> float | None:
    """Return a cost plus the cost of a trial before it was preempted, in joules."""
    if trial.time_s is None or spent_j is None:
        return spent_j
    return None if trial.cost_j is None else trial.cost_j + spent_j


def join(trial: Trial, outcome: Outcome) -> Outcome:
    """Add the outcome of the last part of a trial to the parts before its preemptions.

    If the last part reports an epoch again, the earlier report no longer counts, because the script
    continued from an older checkpoint. The time and energy of both count.
    """
    if not trial.preemptions or trial.time_s is None:
        return _without_empty_estimates(trial, outcome)
    if outcome.time_s is None:  # it was over before training began again
        source, energy_j, time_s = trial.energy_source, trial.energy_j, trial.time_s
    else:
        source = _same_source(trial.energy_source, outcome.energy_source)
        energy_j = None if source is None else _sum(trial.energy_j, outcome.energy_j)
        time_s = trial.time_s + outcome.time_s
    if outcome.curve and is_baseline(outcome.curve[0]):  # the restored model, evaluated again
        outcome = replace(outcome, curve=outcome.curve[1:])
    first = outcome.curve[0].epoch if outcome.curve else None
    before = [point for point in trial.curve if first is None or point.epoch < first]
    since = [
        point._replace(
            time_s=trial.time_s + point.time_s,
            energy_j=None if energy_j is None else _sum(trial.energy_j, point.energy_j),
        )
        for point in outcome.curve
    ]
    # The limit of the longer part.
    longer = outcome.time_s is not None and outcome.time_s > trial.time_s
    limit_w = outcome.power_limit_w if longer else trial.power_limit_w
    max_power_w = trial.max_power_w if outcome.max_power_w is None else outcome.max_power_w
    bests = [best for best in (trial.best_metric, outcome.best_metric) if best is not None]
    choose = min if trial.mode == "min" else max
    shared = (trial.shared, outcome.shared)
    joined = replace(
        outcome,
        startup_s=_sum(trial.startup_s, outcome.startup_s),
        shutdown_s=_known_sum(trial.shutdown_s, outcome.shutdown_s),
        time_s=time_s,
        energy_j=energy_j,
        energy_source=None if energy_j is None else source,
        max_power_w=max_power_w,
        cost_j=cost_j(energy_j, max_power_w, time_s, trial.eta_knob),
        epochs=outcome.epochs or trial.epochs,
        steps=_known_sum(trial.steps, outcome.steps),
        best_metric=choose(bests, default=None),
        curve=(*before, *since),
        power_limit_w=limit_w,
        power_profile=outcome.power_profile or trial.power_profile,
        energy_counter_j=_sum(trial.energy_counter_j, outcome.energy_counter_j),
        energy_integrated_j=_sum(trial.energy_integrated_j, outcome.energy_integrated_j),
        profiling_cost_j=_known_sum(trial.profiling_cost_j, outcome.profiling_cost_j),
        shared=True if True in shared else None if None in shared else False,
        warnings=(*trial.warnings, *outcome.warnings),
    )
    return _without_empty_estimates(trial, joined)


def _without_empty_estimates(trial: Trial, outcome: Outcome) -> Outcome:
    """Replace estimates of 0 J by unknown: no CPU time was seen.

    CPU time counts in ticks of 10 ms, and new processes are found once a second.
    """
    if outcome.energy_source is not EnergySource.ESTIMATED:
        return outcome
    curve = tuple(point._replace(energy_j=point.energy_j or None) for point in outcome.curve)
    outcome = replace(outcome, curve=curve)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    return replace(outcome, energy_j=None, energy_source=None, cost_j=spent_j)


def _same_source(first: EnergySource | None, second: EnergySource | None) -> EnergySource | None:
    """Return the weaker of two sources; ``None`` if one is unknown, or a model beside a meter."""
    if first is None or second is None or first.measured != second.measured:
        return None
    return first if first is second else max(first, second)  # "integrated" after "counter"


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _known_sum(first: _Amount | None, second: _Amount | None) -> _Amount | None:
    """Add two amounts; an unknown one counts as zero."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
