"""The figures of a job: turns facts into the values that are drawn, in a readable unit."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from zeusrun.view.report import figures
from zeusrun.view.report.canvas import Dot
from zeusrun.view.report.figures import Curve, Level, Row, Trace
from zeusrun.view.report.palette import STAND_INS
from zeusrun.view.report.svg import inline_svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from matplotlib.figure import Figure

    from zeusrun.view.report.compare import Comparison
    from zeusrun.view.report.facts import JobFacts
    from zeusrun.view.report.palette import Palette
    from zeusrun.view.report.power import PowerFacts

FIGURES = ("cost", "curves", "arms", "power")
DRAWN_TRACES = 6
_JOULES = ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J"))
_SECONDS = ((3600.0, "h"), (60.0, "min"), (1.0, "s"))
_STEPS = 200  # of the sum saved
_MOST = 1e30  # beyond it, a number comes from a damaged record


def draw(
    name: str, facts: JobFacts, power: Sequence[PowerFacts], palette: Palette
) -> Figure | None:
    """Draw one of ``FIGURES``; ``None`` if nothing is known to draw."""
    if name == "cost":
        return _draw_cost(facts, palette)
    if name == "curves":
        return _draw_curves(facts, palette)
    if name == "arms":
        return _draw_arms(facts, palette)
    return _draw_power(facts, power, palette)


def inline(
    name: str, facts: JobFacts, power: Sequence[PowerFacts], prefix: str, label: str
) -> str | None:
    """Draw one of ``FIGURES`` as SVG for a page; ``prefix`` begins its ids."""
    drawn = draw(name, facts, power, STAND_INS)
    return None if drawn is None else inline_svg(drawn, f"{prefix}-{name}", label)


def draw_comparison(comparison: Comparison, palette: Palette) -> Figure | None:
    """Draw two groups of runs side by side; ``None`` if no run can be drawn."""
    measures = []
    for measure in comparison.measures:
        values = [*measure.left, *measure.right]
        factor, unit = _scale(values, measure.kind)
        if values:
            left, right = ([v / factor for v in side] for side in (measure.left, measure.right))
            measures.append(figures.Measure(measure.name, unit, left, right))
    return figures.draw_compare(measures, comparison.names, palette) if measures else None


def _draw_cost(facts: JobFacts, palette: Palette) -> Figure | None:
    known = [
        (each.recurrence, each.cost_j, each.size, each.status == "REACHED")
        for each in facts.recurrences
        if each.cost_j is not None and each.cost_j < _MOST
    ]
    if not known:
        return None
    factor, unit = _scale([cost_j for _, cost_j, _, _ in known], "energy")
    dots = [Dot(number, cost_j / factor, size, done) for number, cost_j, size, done in known]
    compared = [each for each in facts.recurrences if each.default_j is not None]
    levels = [
        Level(own[0].recurrence, own[-1].recurrence, default_j / factor)
        for default_j, group in itertools.groupby(compared, key=lambda each: each.default_j)
        if default_j is not None and (own := list(group))
    ]
    saved = itertools.accumulate(each.saved_j or 0.0 for each in compared)
    steps = [(each.recurrence, sum_j / factor) for each, sum_j in zip(compared, saved, strict=True)]
    names = [size.label for size in facts.sizes]
    thin = steps[: -1 : max(1, len(steps) // _STEPS)] + steps[-1:]
    net = thin if facts.explored else []
    return figures.draw_costs(dots, levels, net, palette, names=names, unit=unit)


def _draw_curves(facts: JobFacts, palette: Palette) -> Figure | None:
    if not facts.curves:
        return None
    kind = "energy" if facts.by_energy else "time"
    factor, unit = _scale([curve.taken[-1] for curve in facts.curves], kind)
    curves = [
        Curve(each.size, each.epochs, [taken / factor for taken in each.taken], each.values)
        for each in facts.curves
    ]
    names = [size.label for size in facts.sizes]
    taken = f"{kind}, {unit}"
    return figures.draw_curves(
        curves, facts.target, palette, names=names, metric=facts.metric, taken=taken
    )


def _draw_arms(facts: JobFacts, palette: Palette) -> Figure | None:
    if not any(size.costs_j or size.failed_j for size in facts.sizes):
        return None
    costs = [cost for size in facts.sizes for cost in (*size.costs_j, *size.failed_j)]
    factor, unit = _scale(costs, "energy")
    rows = [
        Row(
            f"{size.label} (default)" if size.default else size.label,
            at,
            [cost / factor for cost in size.costs_j if cost < _MOST],
            [cost / factor for cost in size.failed_j if cost < _MOST],
            size.share,
        )
        for at, size in enumerate(facts.sizes)
    ]
    return figures.draw_arms(rows, unit, palette)


def _draw_power(facts: JobFacts, power: Sequence[PowerFacts], palette: Palette) -> Figure | None:
    traces = [
        Trace(
            f"{each.trial} · batch size {each.label}",
            each.size,
            [span.time_s for span in each.trace.spans],
            [span.low_w for span in each.trace.spans],
            [span.mean_w for span in each.trace.spans],
            [span.high_w for span in each.trace.spans],
            [span.limit_w for span in each.trace.spans],
            [span.throttled for span in each.trace.spans],
        )
        for each in power
        if len(each.trace.spans) > 1
    ][-DRAWN_TRACES:]
    return figures.draw_power(traces, len(facts.sizes), palette) if traces else None


def _scale(values: Iterable[float], kind: str) -> tuple[float, str]:
    """Return the factor and the unit in which the largest value is short."""
    units = {"energy": _JOULES, "time": _SECONDS}.get(kind, ((1.0, ""),))
    largest = max((value for value in values if value < _MOST), default=0.0)
    return next((each for each in units if largest >= each[0]), units[-1])
