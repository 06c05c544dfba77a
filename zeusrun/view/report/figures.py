"""Draws the figures of a report: functions from plain values to a figure of matplotlib."""

from __future__ import annotations

import contextlib
import statistics
import warnings
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from zeusrun.plain_text import plain_text, storable_text
from zeusrun.view.units import shortened

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zeusrun.view.report.palette import Palette

WIDTH = 680  # of every figure, in pixels; text has 10 of them
_LEFT, _RIGHT = 38, 10
_TEXT, _SMALL = 10.0, 9.0
_FAR = 30.0  # if the largest value is so many times the median, the axis is logarithmic
_MANY = 250  # dots are smaller
_GOLDEN = 0.618034  # spreads dots evenly, and the same way every time


class Dot(NamedTuple):
    """A run, or a recurrence: where it stands, and whether it reached the target."""

    x: float
    y: float
    size: int  # index of the batch size
    reached: bool = True


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


@contextlib.contextmanager
def drawing() -> Iterator[None]:
    """Draw and write within this: the user's own style of matplotlib has no effect."""
    import matplotlib as mpl  # noqa: PLC0415 - optional, and slow to import

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcdefaults()
        mpl.rc("svg", fonttype="none", hashsalt="zeusrun")
        mpl.rc("text", parse_math=False)  # a dollar in a name is a dollar
        mpl.rc("font", size=_TEXT)
        warnings.simplefilter("ignore")  # a font without a letter of a name
        yield


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
    figure = _blank(326 if net else 236)
    _legend(figure, names, palette)
    last = max([dot.x for dot in dots] + [level.last for level in levels], default=1.0)
    panel = _panel(figure, palette, (_LEFT, 40, WIDTH - _LEFT - _RIGHT, 156))
    _title(panel, f"cost of a recurrence, {unit}", palette)
    for level in levels:
        panel.plot([level.first - 0.5, level.last + 0.5], [level.y] * 2, **_dashes(palette))
    _scatter(panel, dots, len(names), palette, size=5.6 if len(dots) < _MANY else 3.8)
    _limit_y(panel, [dot.y for dot in dots] + [level.y for level in levels])
    panels = [panel]
    if net:
        below = _panel(figure, palette, (_LEFT, 226, WIDTH - _LEFT - _RIGHT, 66))
        _title(below, f"net saved so far, {unit}", palette)
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
    panels[-1].set_xlabel("recurrence", color=palette.muted, fontsize=_TEXT)
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
    figure = _blank(272)
    _legend(figure, names, palette)
    room = (WIDTH - 2 * _LEFT - _RIGHT - 10) / 2
    values = sorted(value for curve in curves for value in curve.values)
    for at, label in enumerate(("epoch", taken)):
        panel = _panel(figure, palette, (_LEFT + at * (room + _LEFT + 10), 40, room, 196))
        for curve in curves:
            xs = curve.taken if at else curve.epochs
            colour = palette.size(curve.size, len(names))
            panel.plot(xs, curve.values, color=colour, lw=1.1, alpha=0.75)
        panel.axhline(target, **_dashes(palette))
        if values:  # a first value may be far away
            low, high = (values[round(share * (len(values) - 1))] for share in (0.02, 0.98))
            low, high = min(low, target), max(high, target)
            margin = 0.06 * (high - low) or 0.5
            panel.set_ylim(low - margin, high + margin)
        panel.set_xlim(left=0)
        panel.set_xlabel(_label(label), color=palette.muted, fontsize=_TEXT)
        _title(panel, metric if not at else "", palette)
    return figure


def draw_arms(rows: Sequence[Row], unit: str, palette: Palette) -> Figure:
    """Draw the costs of each batch size, with their median, beside its share of the choices."""
    height = 30.0 * max(1, len(rows))
    figure = _blank(height + 50)
    room, left = 412, 110
    panel = _panel(figure, palette, (left, 28, room, height), grid="x")
    bars = _panel(figure, palette, (left + room + 26, 28, WIDTH - left - room - 66, height), "")
    _title(panel, f"cost of a run, {unit}", palette)
    _title(bars, "share of runs", palette)
    for at, row in enumerate(rows):
        colour = palette.size(row.size, len(rows))
        dots = [Dot(cost, at + _shift(n), row.size, True) for n, cost in enumerate(row.reached)]
        dots += [Dot(cost, at + _shift(n), row.size, False) for n, cost in enumerate(row.failed)]
        _scatter(panel, dots, len(rows), palette, size=4.8)
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
            size=_SMALL,
        )
    for each in (panel, bars):
        each.set_ylim(max(1, len(rows)) - 0.4, -0.6)
    panel.set_yticks(range(len(rows)), [_label(row.label, 19) for row in rows], fontsize=_TEXT)
    panel.tick_params(axis="y", colors=palette.ink)
    _limit_x(panel, [cost for row in rows for cost in (*row.reached, *row.failed)])
    bars.set_xlim(0, max([row.share for row in rows], default=1.0) * 1.05)
    bars.set_axis_off()
    bars.title.set_visible(True)
    return figure


def draw_power(traces: Sequence[Trace], sizes: int, palette: Palette) -> Figure:
    """Draw the power of runs, two in a line: the range, the mean, the limit, and throttling.

    ``sizes`` is the number of batch sizes of the job.
    """
    lines = (len(traces) + 1) // 2
    figure = _blank(4 + 142 * lines)
    room = (WIDTH - 2 * _LEFT - _RIGHT - 4) / 2
    for at, trace in enumerate(traces):
        left, top = _LEFT + at % 2 * (room + _LEFT + 4), 26 + at // 2 * 142
        panel = _panel(figure, palette, (left, top, room, 86))
        _title(panel, trace.title, palette)
        end_s = trace.time_s[-1]
        unit_s, unit = (3600, "h") if end_s > 10_800 else (60, "min") if end_s > 180 else (1, "s")
        xs = [time_s / unit_s for time_s in trace.time_s]
        colour = palette.size(trace.size, sizes)
        panel.fill_between(xs, trace.low_w, trace.high_w, color=colour, alpha=0.25, lw=0)
        panel.plot(xs, trace.mean_w, color=colour, lw=1.2)
        known = [watts for watts in trace.limit_w if watts is not None]
        if known:
            limits = [float("nan") if watts is None else watts for watts in trace.limit_w]
            panel.plot(xs, limits, drawstyle="steps-mid", **_dashes(palette))
        top_w = max([*trace.high_w, *known], default=1.0) * 1.12 or 1.0
        panel.fill_between(
            xs, 0, 0.04 * top_w, where=list(trace.throttled), step="mid", color=palette.bad, lw=0
        )
        panel.set_ylim(0, top_w)
        panel.set_xlim(0, max(xs[-1], 1e-9))
        panel.set_xlabel(unit, color=palette.muted, fontsize=_SMALL, labelpad=1)
        panel.yaxis.set_major_formatter(_watts)
    return figure


def _watts(watts: float, _place: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"


def draw_compare(measures: Sequence[Measure], names: tuple[str, str], palette: Palette) -> Figure:
    """Draw quantities of two groups of runs side by side: every run is a dot, a line the median."""
    figure = _blank(252)
    _legend(figure, names, palette, 44)
    room = (WIDTH - 8) / len(measures)
    for at, measure in enumerate(measures):
        panel = _panel(figure, palette, (8 + at * room + 44, 52, room - 60, 174))
        _title(panel, f"{measure.name}, {measure.unit}" if measure.unit else measure.name, palette)
        for side, values in enumerate((measure.left, measure.right)):
            dots = [Dot(side + 0.8 * _shift(n), y, side) for n, y in enumerate(values)]
            _scatter(panel, dots, 2, palette)
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
                    fontsize=_TEXT,
                )
        panel.set_xlim(-0.6, 1.6)
        panel.set_xticks([])
        _limit_y(panel, [*measure.left, *measure.right])
    return figure


def _blank(height: float) -> Figure:
    from matplotlib.figure import Figure  # noqa: PLC0415 - optional, and slow to import

    return Figure(figsize=(WIDTH / 72, height / 72))


def _panel(
    figure: Figure,
    palette: Palette,
    place: tuple[float, float, float, float],
    grid: Literal["x", "y", ""] = "y",
) -> Axes:
    """Add a panel; ``place``: left, top, width and height in pixels."""
    left, top, width, height = place
    whole = figure.get_figheight() * 72
    box = (left / WIDTH, 1 - (top + height) / whole, width / WIDTH, height / whole)
    panel = figure.add_axes(box)
    panel.patch.set_visible(False)
    panel.spines[:].set_visible(False)
    panel.tick_params(colors=palette.muted, length=0, labelsize=_SMALL)
    if grid:
        panel.grid(axis=grid, color=palette.grid, lw=0.8)
    panel.set_axisbelow(True)
    panel.locator_params(nbins=5)
    return panel


def _title(panel: Axes, text: str, palette: Palette) -> None:
    panel.set_title(_label(text), loc="left", fontsize=_TEXT, color=palette.muted, pad=6, x=0.0)


def _legend(
    figure: Figure, names: Sequence[str], palette: Palette, left: float = _LEFT - 8
) -> None:
    """Name the colours in one line at the top."""
    from matplotlib.lines import Line2D  # noqa: PLC0415 - optional, and slow to import

    if not names:
        return
    handles = [
        Line2D([], [], marker="o", ls="", ms=6.5, mew=0, color=palette.size(at, len(names)))
        for at in range(len(names))
    ]
    legend = figure.legend(
        handles,
        [_label(name, 22) for name in names],
        ncols=len(names),
        loc="upper left",
        frameon=False,
        fontsize=_TEXT,
        labelcolor=palette.ink,
        handletextpad=0.1,
        columnspacing=0.8,
        borderpad=0.0,
        borderaxespad=0.0,
        bbox_to_anchor=(left / WIDTH, 1.0 - 3 / (72 * figure.get_figheight())),
    )
    legend.set_in_layout(False)


def _scatter(
    panel: Axes, dots: Sequence[Dot], sizes: int, palette: Palette, size: float = 5.6
) -> None:
    """Draw dots in the colours of their batch sizes; crosses did not reach the target."""
    for index in sorted({dot.size for dot in dots}):
        for reached, style in ((True, "o"), (False, "x")):
            own = [dot for dot in dots if dot.size == index and dot.reached is reached]
            if own:
                panel.plot(
                    [dot.x for dot in own],
                    [dot.y for dot in own],
                    style,
                    color=palette.size(index, sizes),
                    ms=size,
                    mew=0.0 if reached else 1.2,
                    alpha=0.85,
                )


def _label(text: str, width: int = 48) -> str:
    """Return a name in one line that a figure can show."""
    return shortened(" ".join(plain_text(storable_text(text)).split()), width)


def _dashes(palette: Palette) -> dict[str, Any]:
    return {"color": palette.muted, "lw": 1.0, "ls": (0, (4, 3))}


def _shift(number: int) -> float:
    """Return where a dot stands beside its line, from -0.3 to 0.3."""
    return 0.6 * (number * _GOLDEN % 1.0 - 0.5)


def _limit_y(panel: Axes, values: Sequence[float]) -> None:
    if _is_far(values):
        panel.set_yscale("log")
    else:
        panel.set_ylim(0, 1.08 * max(values, default=1.0) or 1.0)


def _limit_x(panel: Axes, values: Sequence[float]) -> None:
    if _is_far(values):
        panel.set_xscale("log")
    else:
        panel.set_xlim(0, 1.05 * max(values, default=1.0) or 1.0)


def _is_far(values: Sequence[float]) -> bool:
    known = [value for value in values if value > 0]
    return bool(known) and max(known) > _FAR * statistics.median(known)
