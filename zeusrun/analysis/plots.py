"""The points of the plots in the terminal. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.analysis.amounts import MOST, size_label
from zeusrun.analysis.curves import curve_in, curve_unit, left_out_text, newest_curves
from zeusrun.analysis.recurrences import build_recurrences, build_sizes
from zeusrun.analysis.savings import find_savings
from zeusrun.cost import energy_text
from zeusrun.trial import EnergySource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.trial import Trial

MOST_CURVES = 6
_ESTIMATED = "energy is estimated from CPU time"


class Series(NamedTuple):
    """Points with one mark. The kind is ``runs``, or ``median`` or ``limit``: no runs."""

    label: str
    points: Sequence[tuple[float, float]]
    kind: str = "runs"


class Plot(NamedTuple):
    """What a plot shows. A unit is ``J``, ``W``, ``s``, ``samples``, or empty for a plain number.

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
    savings = find_savings(trials)
    for each in build_recurrences(trials, savings):
        if each.cost_j is None:
            unknown += 1
            continue
        name = names[0 if each.is_default else 1] if each.reached else names[2]
        points[name].append((each.recurrence, each.cost_j))
    level = None
    if savings.default_j is not None:
        expected = f"expected of batch size {savings.default}, the default"
        level = f"{expected}: {energy_text(savings.default_j)}", savings.default_j
    return Plot(
        f"{job}: cost of each recurrence",
        ("recurrence", ""),
        "J",
        [Series(name, _kept(points[name])) for name in names],
        level,
        notes=_left_out(unknown, "recurrence", "without a known cost") + _estimated(trials),
    )


def arms_plot(job: str, trials: Sequence[Trial]) -> Plot:
    """Plot what the runs with each batch size have cost, under the conditions of the newest run."""
    sizes, left_out = build_sizes(trials)
    rows = list(enumerate((size for size in sizes if size.costs_j or size.failed_j), 1))
    several = [
        (at, size) for at, size in rows if len(size.costs_j) > 1
    ]  # it would hide a single run
    medians = [(c, at) for at, size in several if (c := size.cost_j) is not None]
    return Plot(
        f"{job}: cost of the runs with each batch size",
        ("cost", "J"),
        "",
        [
            Series("target reached", _kept((c, at) for at, size in rows for c in size.costs_j)),
            Series(
                "not reached: cost so far",
                _kept((c, at) for at, size in rows for c in size.failed_j),
            ),
            Series("median", _kept(medians), "median"),
        ],
        rows=[f"{size.label} ×{len(size.costs_j) + len(size.failed_j)}" for _, size in rows],  # noqa: RUF001 - times
        notes=_left_out(left_out, "run", "forgotten or under other conditions")
        + _estimated(trials),
    )


def curves_plot(job: str, trials: Sequence[Trial]) -> Plot:
    """Plot the learning curve of the newest run with each batch size that was used last."""
    last, unit = trials[-1], curve_unit(trials)
    newest = newest_curves(trials, 1)[-MOST_CURVES:]
    newest.sort(key=lambda each: (each.global_batch_size, each.variant or ""))
    return Plot(
        f"{job}: {last.metric} of the newest run with each batch size",
        ("samples", "samples") if unit == "samples" else ("epoch", ""),
        "",
        [
            Series(
                f"{size_label(each)} ({each.recurrence}-{each.attempt})",
                _kept((p.epoch, p.value) for p in curve_in(each, unit) if p.value is not None),
            )
            for each in newest
        ],
        (f"target {last.target:g}", last.target),
        notes=[text for text in [left_out_text(newest, unit)] if text],
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
    return [point for point in points if max(map(abs, point)) < MOST]


def _estimated(trials: Iterable[Trial]) -> list[str]:
    """Return a note if an estimated energy is part of a cost."""
    found = any(
        each.energy_source is EnergySource.ESTIMATED and each.eta_knob > 0 for each in trials
    )
    return [_ESTIMATED] if found else []


def _left_out(count: int, noun: str, why: str) -> list[str]:
    return [f"left out: {count} {noun}{'' if count == 1 else 's'} {why}"] if count else []
