"""Adds up the parts of a trial that was preempted. Pure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, TypeVar

from zeusrun.bandit.samples import spread_samples
from zeusrun.cost import cost_j
from zeusrun.noise_curve import join_curves
from zeusrun.trial import (
    CurvePoint,
    EnergySource,
    Interruption,
    Outcome,
    Trial,
    is_baseline,
    join_changes,
    thin_curve,
)

_Amount = TypeVar("_Amount", int, float)


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
        interruptions = trial.interruptions
    else:
        source = _same_source(trial.energy_source, outcome.energy_source)
        energy_j = None if source is None else _sum(trial.energy_j, outcome.energy_j)
        time_s = trial.time_s + outcome.time_s
        reported = trial.epochs or 0  # the last part may have been interrupted before its first
        later = [
            (trial.time_s + each.time_s, each.epochs or reported) for each in outcome.interruptions
        ]
        now = (trial.time_s, reported)
        interruptions = (*trial.interruptions, *itertools.starmap(Interruption, (now, *later)))
    if outcome.curve and is_baseline(outcome.curve[0]):  # the restored model, evaluated again
        own = [point for point in outcome.by_samples if not is_baseline(point)]
        outcome = replace(outcome, curve=outcome.curve[1:], by_samples=tuple(own))
    first = outcome.curve[0].epoch if outcome.curve else None
    before = [point for point in trial.curve if first is None or point.epoch < first]
    first_j = None if energy_j is None else trial.energy_j
    since = [_after(trial.time_s, first_j, point) for point in outcome.curve]
    by_samples: tuple[CurvePoint, ...] = ()
    if trial.by_samples or outcome.by_samples:
        done = before[-1].epoch if before else 0
        later_on = outcome.by_samples or spread_samples(outcome.curve, outcome.samples, done)
        by_samples = (
            *(trial.by_samples or spread_samples(trial.curve, trial.samples)),
            *(
                _after(trial.time_s, first_j, point)._replace(
                    epoch=(trial.samples or 0) + point.epoch
                )
                for point in later_on
            ),
        )
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
        curve=thin_curve((*before, *since), trial.target, trial.mode),
        samples=_known_sum(trial.samples, outcome.samples),
        progress=_known_sum(trial.progress, outcome.progress),
        by_samples=thin_curve(by_samples, trial.target, trial.mode),
        by_reports=outcome.by_reports or trial.by_reports,
        power_limit_w=limit_w,
        power_profile=outcome.power_profile or trial.power_profile,
        energy_counter_j=_sum(trial.energy_counter_j, outcome.energy_counter_j),
        energy_integrated_j=_sum(trial.energy_integrated_j, outcome.energy_integrated_j),
        profiling_cost_j=_known_sum(trial.profiling_cost_j, outcome.profiling_cost_j),
        observed_batch_size=outcome.observed_batch_size or trial.observed_batch_size,
        noise_curve=join_curves(
            trial.noise_curve,
            outcome.noise_curve,
            trial.samples or 0,
            trial.progress if trial.samples else 0.0,
        ),
        gradients_of=outcome.gradients_of or trial.gradients_of,
        batch_sizes=join_changes(trial.batch_sizes, outcome.batch_sizes),
        **_sum_prices(trial, outcome, energy_j),
        shared=True if True in shared else None if None in shared else False,
        warnings=(*trial.warnings, *outcome.warnings),
        interruptions=interruptions,
    )
    return _without_empty_estimates(trial, joined)


def _sum_prices(trial: Trial, outcome: Outcome, energy_j: float | None) -> dict[str, Any]:
    """Return what both parts cost; unknown if the energy of one is, or in two currencies."""
    if outcome.time_s is None:
        return {name: getattr(trial, name) for name in ("price", "currency", "carbon_g", "pue")}
    known, same = energy_j is not None, trial.currency == outcome.currency
    price = _sum(trial.price, outcome.price) if known and same else None
    return {
        "price": price,
        "currency": None if price is None else outcome.currency,
        "carbon_g": _sum(trial.carbon_g, outcome.carbon_g) if known else None,
        "pue": outcome.pue if trial.pue == outcome.pue else None,
    }


def _without_empty_estimates(trial: Trial, outcome: Outcome) -> Outcome:
    """Replace estimates of 0 J by unknown: CPU time counts in ticks of 10 ms, and none was seen."""
    if outcome.energy_source is not EnergySource.ESTIMATED:
        return outcome
    curve, by_samples = (
        tuple(point._replace(energy_j=point.energy_j or None) for point in points)
        for points in (outcome.curve, outcome.by_samples)
    )
    outcome = replace(outcome, curve=curve, by_samples=by_samples)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    return replace(
        outcome,
        energy_j=None,
        energy_source=None,
        cost_j=spent_j,
        price=None,
        currency=None,
        carbon_g=None,
    )


def _same_source(first: EnergySource | None, second: EnergySource | None) -> EnergySource | None:
    """Return the weaker of two sources; ``None`` if one is unknown, or a model beside a meter."""
    if first is None or second is None or first.measured != second.measured:
        return None
    return first if first is second else max(first, second)  # "integrated" after "counter"


def _after(time_s: float, energy_j: float | None, point: CurvePoint) -> CurvePoint:
    return point._replace(time_s=time_s + point.time_s, energy_j=_sum(energy_j, point.energy_j))


def _sum(first: float | None, second: float | None) -> float | None:
    return None if first is None or second is None else first + second


def _known_sum(first: _Amount | None, second: _Amount | None) -> _Amount | None:
    """Add two amounts; an unknown one counts as zero."""
    if first is None or second is None:
        return second if first is None else first
    return first + second
