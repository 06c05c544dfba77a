"""Draws the figures of a report: functions from plain values to a figure of matplotlib."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.view.report.canvas import (
    LEFT,
    RIGHT,
    SMALL,
    TEXT,
    WIDTH,
    Dot,
    add_legend,
    add_panel,
    blank,
    dashes,
    label_text,
    limit_x,
    limit_y,
    scatter,
    set_title,
    shift,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

    from zeusrun.view.report.palette import Palette

_MANY = 250  # dots are smaller


class Level(NamedTuple):
    """What the default costs, from one recurrence to another."""

    first: float
    last: float
    y: float


class Curve(NamedTuple):
    """A learning curve: the metric against epochs, and against energy or time."""

    size: int  # index of the batch size
    epochs: Sequence[float]
    taken: Sequence[float]
    values: Sequence[float]


class Row(NamedTuple):
    """The runs of a batch size."""

    label: str
    size: int  # index of the colour
    reached: Sequence[float]  # costs of the runs that reached the target
    failed: Sequence[float]  # of the others: lower bounds
    share: float  # of all choices


class Trace(NamedTuple):
    """The power of a run; all of one length. ``None`` is unknown."""

    title: str
    size: int  # index of the colour
    time_s: Sequence[float]
    low_w: Sequence[float]
    mean_w: Sequence[float]
    high_w: Sequence[float]
    limit_w: Sequence[float | None]
    throttled: Sequence[bool]


class Measure(NamedTuple):
    """One quantity of two groups of runs."""

    name: str
    unit: str
    left: Sequence[float]
    right: Sequence[float]


def draw_costs(
    dots: Sequence[Dot],
    levels: Sequence[Level],
    net: Sequence[tuple[float, float]],
    palette: Palette,
    *,
    names: Sequence[str],
    unit: str,
) -> Figure:
    """Draw the cost of each recurrence, above what choosing has saved so far.

    Args:
        dots: A recurrence and its cost.
        levels: What the default costs.
        net: A recurrence and the sum saved until then; empty if nothing can be compared.
        palette: The colours.
        names: Of the batch sizes.
        unit: Of all costs.
    """
    figure = blank(326 if net else 236)
    add_legend(figure, names, palette)
    last = max([dot.x for dot in dots] + [level.last for level in levels], default=1.0)
    panel = add_panel(figure, palette, (LEFT, 40, WIDTH - LEFT - RIGHT, 156))
    set_title(panel, f"cost of a recurrence, {unit}", palette)
    for level in levels:
        panel.plot([level.first - 0.5, level.last + 0.5], [level.y] * 2, **dashes(palette))
    scatter(panel, dots, len(names), palette, size=5.6 if len(dots) < _MANY else 3.8)
    limit_y(panel, [dot.y for dot in dots] + [level.y for level in levels])
    panels = [panel]
    if net:
        below = add_panel(figure, palette, (LEFT, 226, WIDTH - LEFT - RIGHT, 66))
        set_title(below, f"net saved so far, {unit}", palette)
        xs, ys = [x for x, _ in net], [y for _, y in net]
        for colour, keep in ((palette.good, max), (palette.bad, min)):
            part = [keep(y, 0.0) for y in ys]
            if any(part):
                below.fill_between(xs, part, step="post", color=colour, alpha=0.3, lw=0)
        below.plot(xs, ys, drawstyle="steps-post", color=palette.ink, lw=1.1)
        below.axhline(0, color=palette.muted, lw=0.8)
        panels.append(below)
    for each in panels:
        each.set_xlim(0.5, max(2.0, last) + 0.5)
        each.locator_params(axis="x", integer=True)
    panels[-1].set_xlabel("recurrence", color=palette.muted, fontsize=TEXT)
    panel.tick_params(labelbottom=not net)
    return figure


def draw_curves(
    curves: Sequence[Curve],
    target: float,
    palette: Palette,
    *,
    names: Sequence[str],
    metric: str,
    taken: str,
) -> Figure:
    """Draw learning curves against epochs, and against what they took, with the target."""
    figure = blank(272)
    add_legend(figure, names, palette)
    room = (WIDTH - 2 * LEFT - RIGHT - 10) / 2
    values = sorted(value for curve in curves for value in curve.values)
    for at, label in enumerate(("epoch", taken)):
        panel = add_panel(figure, palette, (LEFT + at * (room + LEFT + 10), 40, room, 196))
        for curve in curves:
            xs = curve.taken if at else curve.epochs
            colour = palette.size(curve.size, len(names))
            panel.plot(xs, curve.values, color=colour, lw=1.1, alpha=0.75)
        panel.axhline(target, **dashes(palette))
        if values:  # a first value may be far away
            low, high = (values[round(share * (len(values) - 1))] for share in (0.02, 0.98))
            low, high = min(low, target), max(high, target)
            margin = 0.06 * (high - low) or 0.5
            panel.set_ylim(low - margin, high + margin)
        panel.set_xlim(left=0)
        if not at:
            panel.locator_params(axis="x", integer=True)
        panel.set_xlabel(label_text(label), color=palette.muted, fontsize=TEXT)
        set_title(panel, metric if not at else "", palette)
    return figure


def draw_arms(rows: Sequence[Row], unit: str, palette: Palette) -> Figure:
    """Draw the costs of each batch size, with their median, beside its share of the choices."""
    height = 30.0 * max(1, len(rows))
    figure = blank(height + 50)
    room, left = 412, 110
    panel = add_panel(figure, palette, (left, 28, room, height), grid="x")
    bars = add_panel(figure, palette, (left + room + 26, 28, WIDTH - left - room - 66, height), "")
    set_title(panel, f"cost of a run, {unit}", palette)
    set_title(bars, "share of runs", palette)
    for at, row in enumerate(rows):
        colour = palette.size(row.size, len(rows))
        dots = [Dot(cost, at + shift(n), row.size, True) for n, cost in enumerate(row.reached)]
        dots += [Dot(cost, at + shift(n), row.size, False) for n, cost in enumerate(row.failed)]
        scatter(panel, dots, len(rows), palette, size=4.8)
        if row.reached:
            median = statistics.median(row.reached)
            panel.plot([median] * 2, [at - 0.4, at + 0.4], color=palette.ink, lw=2)
        bars.barh(at, row.share, height=0.5, color=colour, lw=0)
        bars.text(
            row.share + 0.03,
            at,
            f"{100 * row.share:.0f} %",
            va="center",
            color=palette.muted,
            size=SMALL,
        )
    for each in (panel, bars):
        each.set_ylim(max(1, len(rows)) - 0.4, -0.6)
    panel.set_yticks(range(len(rows)), [label_text(row.label, 19) for row in rows], fontsize=TEXT)
    panel.tick_params(axis="y", colors=palette.ink)
    limit_x(panel, [cost for row in rows for cost in (*row.reached, *row.failed)])
    bars.set_xlim(0, max([row.share for row in rows], default=1.0) * 1.05)
    bars.set_axis_off()
    bars.title.set_visible(True)
    return figure


def draw_power(traces: Sequence[Trace], sizes: int, palette: Palette) -> Figure:
    """Draw the power of runs, two in a line: the range, the mean, the limit, and throttling.

    ``sizes`` is the number of batch sizes of the job.
    """
    lines = (len(traces) + 1) // 2
    figure = blank(4 + 142 * lines)
    room = (WIDTH - 2 * LEFT - RIGHT - 4) / 2
    for at, trace in enumerate(traces):
        left, top = LEFT + at % 2 * (room + LEFT + 4), 26 + at // 2 * 142
        panel = add_panel(figure, palette, (left, top, room, 86))
        set_title(panel, trace.title, palette)
        end_s = trace.time_s[-1]
        unit_s, unit = (3600, "h") if end_s > 10_800 else (60, "min") if end_s > 180 else (1, "s")
        xs = [time_s / unit_s for time_s in trace.time_s]
        colour = palette.size(trace.size, sizes)
        panel.fill_between(xs, trace.low_w, trace.high_w, color=colour, alpha=0.25, lw=0)
        panel.plot(xs, trace.mean_w, color=colour, lw=1.2)
        known = [watts for watts in trace.limit_w if watts is not None]
        if known:
            limits = [float("nan") if watts is None else watts for watts in trace.limit_w]
            panel.plot(xs, limits, drawstyle="steps-mid", **dashes(palette))
        top_w = max([*trace.high_w, *known], default=1.0) * 1.12 or 1.0
        panel.fill_between(
            xs, 0, 0.04 * top_w, where=list(trace.throttled), step="mid", color=palette.bad, lw=0
        )
        panel.set_ylim(0, top_w)
        panel.set_xlim(0, max(xs[-1], 1e-9))
        panel.set_xlabel(unit, color=palette.muted, fontsize=SMALL, labelpad=1)
        panel.yaxis.set_major_formatter(_watts)
        panel.tick_params(axis="x", pad=5)
    return figure


def _watts(watts: float, _place: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"


def draw_compare(measures: Sequence[Measure], names: tuple[str, str], palette: Palette) -> Figure:
    """Draw quantities of two groups of runs side by side: every run is a dot, a line the median."""
    figure = blank(252)
    add_legend(figure, names, palette, 44)
    room = (WIDTH - 8) / len(measures)
    for at, measure in enumerate(measures):
        panel = add_panel(figure, palette, (8 + at * room + 44, 52, room - 60, 174))
        set_title(
            panel, f"{measure.name}, {measure.unit}" if measure.unit else measure.name, palette
        )
        for side, values in enumerate((measure.left, measure.right)):
            dots = [Dot(side + 0.8 * shift(n), y, side) for n, y in enumerate(values)]
            scatter(panel, dots, 2, palette)
            if values:
                median = statistics.median(values)
                panel.plot([side - 0.32, side + 0.32], [median] * 2, color=palette.ink, lw=2)
                panel.text(
                    side,
                    -0.03,
                    f"{median:.3g}" if median < 1000 else f"{median:,.0f}",
                    ha="center",
                    va="top",
                    color=palette.ink,
                    transform=panel.get_xaxis_transform(),
                    fontsize=TEXT,
                )
        panel.set_xlim(-0.6, 1.6)
        panel.set_xticks([])
        limit_y(panel, [*measure.left, *measure.right])
    return figure
