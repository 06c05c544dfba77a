"""Joins the parts of a trial that was preempted and went on. Pure."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from zeusrun.cost import cost_j
from zeusrun.trial.joiners import Parts
from zeusrun.trial.values import EnergySource, is_baseline

if TYPE_CHECKING:
    from zeusrun.trial.record import Outcome, Trial


def join_parts(trial: Trial, outcome: Outcome) -> Outcome:
    """Return the outcome of the last part of a trial with the parts before its preemptions.

    If the last part reports an epoch again, the earlier report no longer counts, because the
    script continued from an older checkpoint. The time and energy of both count.
    """
    if trial.preemptions and trial.time_s is not None:
        parts = Parts(trial, _without_restored(outcome))
        joined = {
            each.name: each.metadata["joiner"](parts, each.name)
            for each in fields(outcome)
            if "joiner" in each.metadata
        }
        outcome = replace(outcome, **joined)
    return _without_empty_estimates(trial, outcome)


def _without_restored(outcome: Outcome) -> Outcome:
    """Remove the restored model, evaluated again."""
    if not outcome.curve or not is_baseline(outcome.curve[0]):
        return outcome
    own = tuple(point for point in outcome.by_samples if not is_baseline(point))
    return replace(outcome, curve=outcome.curve[1:], by_samples=own)


def _without_empty_estimates(trial: Trial, outcome: Outcome) -> Outcome:
    """Replace estimates of 0 J by unknown: CPU time counts in ticks of 10 ms, and none was seen."""
    if outcome.energy_source is not EnergySource.ESTIMATED:
        return outcome
    curve, by_samples = (
        tuple(point._replace(energy_j=point.energy_j or None) for point in points)
        for points in (outcome.curve, outcome.by_samples)
    )
    whole_j = outcome.whole_energy_j or None
    outcome = replace(outcome, curve=curve, by_samples=by_samples, whole_energy_j=whole_j)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    unknown: dict[str, Any] = dict.fromkeys(
        ("energy_j", "energy_source", "price", "currency", "carbon_g")
    )
    return replace(outcome, cost_j=spent_j, **unknown)
