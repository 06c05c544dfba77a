"""The points of the plots in the terminal. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.cost_baseline import has_cost, setting
from zeusrun.analysis.savings import find_savings
from zeusrun.bandit.observation import OUTDONE
from zeusrun.cost import energy_text
from zeusrun.trial import EnergySource, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import Trial

MOST_CURVES = 6
_MOST = 1e30  # a larger value has diverged, or comes from a damaged record
_OPEN = {TrialStatus.DISPATCHED, TrialStatus.PREEMPTED}
_ESTIMATED = "energy is estimated from CPU time"


class Series(NamedTuple):
    """Points with one mark. The kind is ``runs``, or ``median`` or ``limit``: no runs."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "runs"


class Plot(NamedTuple):
    """What a plot shows. A unit is ``J``, ``W``, ``s``, or empty for a plain number.

    Attributes:
        title: What the plot is about.
        x: What its horizontal axis shows, and the unit.
        y_unit: Of its vertical axis.
        series: In the order of their marks.
        level: A horizontal line and its label.
        rows: What the heights 1, 2, and so on stand for, in place of numbers.
        notes: Sentences on what is left out, and on what is estimated.
    """

    title: str
    x: tuple[str, str]
    y_unit: str
    series: Sequence[Series]
    level: tuple[str, float] | None = None
    rows: Sequence[str] = ()
    notes: Sequence[str] = ()


def cost_plot(job: str, trials: Sequence[Trial]) -> Plot:
    """Plot what each recurrence has cost, all its attempts together."""
    names = ("reached with the default", "reached with another batch size", "target missed")
    points: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    unknown = 0
    shown: list[Trial] = []
    by_recurrence = itertools.groupby(
        sorted(trials, key=lambda each: each.recurrence), lambda each: each.recurrence
    )
    for recurrence, attempts in by_recurrence:
        own = list(attempts)
        if any(each.status in _OPEN for each in own):
            continue
        cost_j = _total_j(own)
        if cost_j is None:
            unknown += 1
            continue
        last = own[-1]
        reached = last.status is TrialStatus.REACHED
        other = last.default_batch_size not in {None, last.global_batch_size}
        name = names[1 if other else 0] if reached else names[2]
        points[name].append((recurrence, cost_j))
        shown += own
    savings = find_savings(trials)
    newest = list(savings.by_trial.values())[-1:]
    text = "mean of batch size {}, the default: {}"
    levels = [(text.format(e.default, energy_text(e.default_j)), e.default_j) for e in newest]
    return Plot(
        f"{job}: cost of each recurrence",
        ("recurrence", ""),
        "J",
        [Series(name, _kept(points[name])) for name in names],
        levels[0] if levels else None,
        notes=_left_out(unknown, "recurrence", "without a known cost") + _estimated(shown),
    )


def arms_plot(job: str, trials: Sequence[Trial]) -> Plot:
    """Plot what the runs with each batch size have cost, under the conditions of the newest run."""
    ended = [each for each in trials if each.cost_j is not None and each.status not in _OPEN]
    alike = [each for each in ended if each.teaches and setting(each) == setting(ended[-1])]
    reached: defaultdict[int, list[float]] = defaultdict(list)
    bounds: defaultdict[int, list[float]] = defaultdict(list)
    for each in alike:
        if has_cost(each):
            reached[each.global_batch_size].append(each.cost_j or 0.0)
        elif each.status in OUTDONE:
            bounds[each.global_batch_size].append(each.cost_j or 0.0)
    sizes = sorted({*reached, *bounds})
    places = {size: place for place, size in enumerate(sizes, 1)}
    several = [size for size in sizes if len(reached[size]) > 1]  # it would hide a single run
    medians = [(statistics.median(reached[size]), places[size]) for size in several]
    return Plot(
        f"{job}: cost of the runs with each batch size",
        ("cost", "J"),
        "",
        [
            Series("target reached", _at(places, reached)),
            Series("not reached: cost so far", _at(places, bounds)),
            Series("median", _kept(medians), "median"),
        ],
        rows=[f"{size} ×{len(reached[size]) + len(bounds[size])}" for size in sizes],  # noqa: RUF001 - times
        notes=_left_out(len(ended) - len(alike), "run", "forgotten or under other conditions")
        + _estimated(alike),
    )


def curves_plot(job: str, trials: Sequence[Trial]) -> Plot:
    """Plot the learning curve of the newest run with each batch size that was used last."""
    newest: dict[int, Trial] = {}
    for each in reversed(trials):
        if each.curve and len(newest) < MOST_CURVES:
            newest.setdefault(each.global_batch_size, each)
    last = trials[-1]
    same = [each for each in newest.values() if each.metric == last.metric]
    same.sort(key=lambda each: each.global_batch_size)
    return Plot(
        f"{job}: {last.metric} of the newest run with each batch size",
        ("epoch", ""),
        "",
        [
            Series(
                f"{each.global_batch_size} ({each.recurrence}-{each.attempt})",
                _kept((p.epoch, p.value) for p in each.curve if p.value is not None),
            )
            for each in same
        ],
        (f"target {last.target:g}", last.target),
    )


def power_plot(
    trial: str,
    times_s: Sequence[float],
    powers_w: Sequence[float],
    limits_w: Sequence[float | None],
    source: EnergySource | None = None,
) -> Plot:
    """Plot the power of a run, summed over its devices, with the limits that were in force.

    ``source`` is that of its energy.
    """
    limits = [(t, w) for t, w in zip(times_s, limits_w, strict=True) if w is not None]
    power = Series("power, all devices", list(zip(times_s, powers_w, strict=True)))
    return Plot(
        f"{trial}: power",
        ("time", "s"),
        "W",
        [power, Series("power limit", limits, "limit")],
        notes=["power is estimated from CPU time"] if source is EnergySource.ESTIMATED else [],
    )


def _kept(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    return [point for point in points if max(map(abs, point)) < _MOST]


def _total_j(attempts: Iterable[Trial]) -> float | None:
    """Return the cost of all attempts; ``None`` if that of one that has trained is unknown."""
    costs_j = [
        each.cost_j for each in attempts if each.cost_j is not None or each.time_s or each.steps
    ]
    known = [cost_j for cost_j in costs_j if cost_j is not None]
    return sum(known) if known and len(known) == len(costs_j) else None


def _at(places: dict[int, int], costs_j: dict[int, list[float]]) -> list[tuple[float, float]]:
    return _kept(
        (cost_j, place) for size, place in places.items() for cost_j in costs_j.get(size, [])
    )


def _estimated(trials: Iterable[Trial]) -> list[str]:
    """Return a note if an estimated energy is part of a cost."""
    found = any(
        each.energy_source is EnergySource.ESTIMATED and each.eta_knob > 0 for each in trials
    )
    return [_ESTIMATED] if found else []


def _left_out(count: int, noun: str, why: str) -> list[str]:
    return [f"left out: {count} {noun}{'' if count == 1 else 's'} {why}"] if count else []
