"""Adds up the parts of a trial that was preempted and went on. Pure."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from zeusrun.cost import add, add_known, cost_j
from zeusrun.trial.values import (
    CurvePoint,
    EnergySource,
    Interruption,
    WorldChange,
    is_baseline,
    join_changes,
    join_curves,
    join_hosts,
    join_syncs,
    join_worlds,
    spread_samples,
    thin_curve,
    weaker_source,
)

if TYPE_CHECKING:
    from zeusrun.trial.record import Outcome, Trial


def join_parts(trial: Trial, outcome: Outcome) -> Outcome:
    """Return the outcome of the last part of a trial with the parts before its preemptions.

    If the last part reports an epoch again, the earlier report no longer counts, because the
    script continued from an older checkpoint. The time and energy of both count.
    """
    return _without_empty_estimates(trial, _join(trial, outcome))


def _join(trial: Trial, outcome: Outcome) -> Outcome:
    if not trial.preemptions or trial.time_s is None:
        return outcome
    if outcome.time_s is None:  # it was over before training began again
        source, energy_j, time_s = trial.energy_source, trial.energy_j, trial.time_s
        whole_s, whole_j = trial.whole_time_s, trial.whole_energy_j
        interruptions = trial.interruptions
    else:
        source = weaker_source(trial.energy_source, outcome.energy_source)
        energy_j = None if source is None else add(trial.energy_j, outcome.energy_j)
        time_s = trial.time_s + outcome.time_s
        whole_s = add(trial.whole_time_s, outcome.whole_time_s)
        whole_j = None if source is None else add(trial.whole_energy_j, outcome.whole_energy_j)
        done = trial.epochs or 0  # the last part may have been interrupted before its first
        later = [(trial.time_s + cut.time_s, cut.epochs or done) for cut in outcome.interruptions]
        now = (trial.time_s, done)
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
        later_on = outcome.by_samples or spread_samples(outcome.curve, outcome.whole_samples, done)
        by_samples = (
            *(trial.by_samples or spread_samples(trial.curve, trial.samples)),
            *(
                _after(trial.time_s, first_j, point)._replace(
                    epoch=(trial.samples or 0) + point.epoch
                )
                for point in later_on
            ),
        )
    again = () if outcome.time_s is None else (WorldChange(0.0, 0, trial.world_size),)
    worlds = (*again, *outcome.world_sizes)
    # The limit of the longer part.
    longer = outcome.time_s is not None and outcome.time_s > trial.time_s
    limit_w = outcome.power_limit_w if longer else trial.power_limit_w
    max_power_w = trial.max_power_w if outcome.max_power_w is None else outcome.max_power_w
    before_it = (trial.samples or 0, trial.progress if trial.samples else 0.0)
    bests = [best for best in (trial.best_metric, outcome.best_metric) if best is not None]
    choose = min if trial.mode == "min" else max
    shared = (trial.shared, outcome.shared)
    unclear = outcome.unclear or trial.unclear
    return replace(
        outcome,
        startup_s=add(trial.startup_s, outcome.startup_s),
        shutdown_s=add_known(trial.shutdown_s, outcome.shutdown_s),
        time_s=time_s,
        energy_j=energy_j,
        energy_source=None if energy_j is None else source,
        max_power_w=max_power_w,
        cost_j=cost_j(energy_j, max_power_w, time_s, trial.eta_knob),
        whole_time_s=whole_s,
        whole_energy_j=whole_j,
        epochs=None if unclear else outcome.epochs or trial.epochs,
        whole_epochs=None if unclear else outcome.whole_epochs or trial.whole_epochs,
        **_sum_counts(trial, outcome),
        best_metric=choose(bests, default=None),
        curve=thin_curve((*before, *since), trial.target, trial.mode),
        by_samples=thin_curve(by_samples, trial.target, trial.mode),
        by_reports=outcome.by_reports or trial.by_reports,
        continued=outcome.continued or trial.continued,
        unclear=unclear,
        power_limit_w=limit_w,
        power_profile=outcome.power_profile or trial.power_profile,
        energy_counter_j=add(trial.energy_counter_j, outcome.energy_counter_j),
        energy_integrated_j=add(trial.energy_integrated_j, outcome.energy_integrated_j),
        profiling_cost_j=add_known(trial.profiling_cost_j, outcome.profiling_cost_j),
        observed_batch_size=outcome.observed_batch_size or trial.observed_batch_size,
        unapplied=outcome.unapplied or trial.unapplied,
        noise_curve=join_curves(trial.noise_curve, outcome.noise_curve, *before_it),
        gradient_variance=trial.gradient_variance
        if outcome.gradient_variance is None
        else outcome.gradient_variance,
        gradients_of=outcome.gradients_of or trial.gradients_of,
        batch_sizes=join_changes(trial.batch_sizes, outcome.batch_sizes),
        world_sizes=join_worlds(trial.world_sizes, worlds, trial.time_s, trial.epochs or 0),
        syncs=join_syncs(trial.syncs, outcome.syncs, trial.epochs or 0),
        **_sum_prices(trial, outcome, energy_j),
        shared=True if True in shared else None if None in shared else False,
        warnings=(*trial.warnings, *outcome.warnings),
        stalls=(*trial.stalls, *outcome.stalls),
        interruptions=interruptions,
        hosts=join_hosts(trial.hosts, outcome.hosts),
    )


def _sum_counts(trial: Trial, outcome: Outcome) -> dict[str, Any]:
    """Return the steps and samples of both parts; unknown if only the later whole is known."""
    sums = {}
    for name in ("steps", "samples", "progress"):
        last, whole = getattr(outcome, name), getattr(outcome, f"whole_{name}")
        lost = last is None and whole is not None
        sums[name] = None if lost else add_known(getattr(trial, name), last)
        sums[f"whole_{name}"] = add_known(getattr(trial, f"whole_{name}"), whole)
    return sums


def _sum_prices(trial: Trial, outcome: Outcome, energy_j: float | None) -> dict[str, Any]:
    """Return what both parts cost; unknown if the energy of one is, or in two currencies."""
    if outcome.time_s is None:
        return {name: getattr(trial, name) for name in ("price", "currency", "carbon_g", "pue")}
    known, same = energy_j is not None, trial.currency == outcome.currency
    price = add(trial.price, outcome.price) if known and same else None
    return {
        "price": price,
        "currency": None if price is None else outcome.currency,
        "carbon_g": add(trial.carbon_g, outcome.carbon_g) if known else None,
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
    whole_j = outcome.whole_energy_j or None
    outcome = replace(outcome, curve=curve, by_samples=by_samples, whole_energy_j=whole_j)
    if outcome.energy_j != 0:
        return outcome
    spent_j = cost_j(None, outcome.max_power_w, outcome.time_s, trial.eta_knob)
    unknown: dict[str, Any] = dict.fromkeys(
        ("energy_j", "energy_source", "price", "currency", "carbon_g")
    )
    return replace(outcome, cost_j=spent_j, **unknown)


def _after(time_s: float, energy_j: float | None, point: CurvePoint) -> CurvePoint:
    return point._replace(time_s=time_s + point.time_s, energy_j=add(energy_j, point.energy_j))
