"""Draws the figures of a report: functions from facts to a figure of matplotlib."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, TypeVar

from zeusrun.analysis.estimates import MOST
from zeusrun.view.claims import is_good
from zeusrun.view.report import canvas
from zeusrun.view.units import duration, energy, gain, noise_text, power, short_count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from zeusrun.analysis.recurrences import RecurrenceFacts, SizeFacts
    from zeusrun.energy.power_trace import PowerSpan
    from zeusrun.view.report.canvas import Palette
    from zeusrun.view.report.facts import JobFacts, JobReport, PowerFacts

_T = TypeVar("_T")
DRAWN_TRACES = 6
DRAWN_RUNS = 500
"""Of a job's recurrences, and of each batch size's runs, so many are dots: the newest ones."""
_MANY = 250  # dots are smaller
_STEPS = 200  # of the sum saved
_LEGEND_LINE = 15.0
_CURVES, _TRACE = 232.0, 142.0  # height of panels with what stands below them
_RESIZES = 230.0  # of two panels
_UNITS = {
    "energy": ((3.6e9, "MWh"), (3.6e6, "kWh"), (3600.0, "Wh"), (1.0, "J")),
    "cost": ((1e9, "GJ"), (1e6, "MJ"), (1e3, "kJ"), (1.0, "J")),
    "time": ((3600.0, "h"), (60.0, "min"), (1.0, "s")),
}


def _find_height(name: str, report: JobReport) -> float | None:
    """Return the height of a figure in pixels; ``None`` if nothing is known to draw."""
    facts, traces = report.facts, len(_drawn_traces(report.power))
    top = _below_legend(_labels(facts))
    heights = {
        "cost": _known_costs(report.recent) and top + (286.0 if facts.savings.by_trial else 196.0),
        "curves": facts.curves and top + _CURVES,
        "noise": facts.noise and top + _CURVES,
        "ranks": facts.ranks and 4.0 + _RESIZES * ((len(facts.ranks) + 1) // 2),
        "arms": _arm_costs(facts.sizes) and 30.0 * len(facts.sizes) + 50,
        "power": traces and 4.0 + _TRACE * ((traces + 1) // 2),
    }
    return heights[name] or None


def draw(name: str, report: JobReport, palette: Palette) -> Figure | None:
    """Draw one of ``FIGURES``; ``None`` if nothing is known to draw."""
    height = _find_height(name, report)
    if height is None:
        return None
    figure = canvas.blank(height)
    _DRAWERS[name](figure, report, palette)
    return figure


def _labels(facts: JobFacts) -> list[str]:
    """Return the batch sizes as a legend names them."""
    return [size.label for size in facts.sizes]


def _colour(size: str, facts: JobFacts, palette: Palette) -> str:
    return palette.size(_labels(facts).index(size), len(facts.sizes))


def _show_samples(axis: Any) -> None:  # noqa: ANN401 - matplotlib has no types for it
    axis.set_major_formatter(lambda value, _place: short_count(value))


def scale(values: Iterable[float], kind: str) -> tuple[float, str]:
    """Return the factor and the unit in which the largest value is short."""
    largest = max((value for value in values if value < MOST), default=0.0)
    units = _UNITS[kind]
    return next((each for each in units if largest >= each[0]), units[-1])


def _known_costs(recurrences: Sequence[RecurrenceFacts]) -> list[tuple[RecurrenceFacts, float]]:
    return [
        (each, each.cost_j)
        for each in recurrences
        if each.cost_j is not None and each.cost_j < MOST
    ]


def _draw_costs(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw the cost of each recurrence, above what choosing has saved so far."""
    facts = report.facts
    known = _known_costs(report.recent)[-DRAWN_RUNS:]
    factor, unit = scale([cost_j for _, cost_j in known], "cost")
    names = _labels(facts)
    dots = [
        canvas.Dot(each.recurrence, cost_j / factor, names.index(each.size), each.reached)
        for each, cost_j in known
    ]
    first, last = known[0][0].recurrence, facts.recurrences[-1].recurrence
    compared = [each for each in facts.recurrences if each.saved is not None]
    drawn = [each for each in compared if each.recurrence >= first]
    canvas.add_legend(figure, names, palette, {dot.size for dot in dots})
    top, room = _below_legend(names), canvas.WIDTH - canvas.LEFT - canvas.RIGHT
    panel = canvas.add_panel(figure, palette, (canvas.LEFT, top, room, 156))
    canvas.set_title(panel, f"cost of a recurrence, {unit}", palette)
    levels = []
    if drawn and (default_j := facts.savings.default_j) is not None:
        ends = [drawn[0].recurrence - 0.5, drawn[-1].recurrence + 0.5]
        levels.append(default_j / factor)
        panel.plot(ends, levels * 2, **canvas.dashes(palette))
    canvas.scatter(panel, dots, len(names), palette, size=5.6 if len(dots) < _MANY else 3.8)
    canvas.limit(panel, "y", [dot.y for dot in dots] + levels)
    canvas.annotate(
        panel,
        (
            (dot.x, dot.y, f"recurrence {each.recurrence} · {_of(each)} · {energy(cost_j)} of cost")
            for dot, (each, cost_j) in zip(dots, known, strict=True)
        ),
    )
    _mark_unknown(panel, [each for each in facts.recurrences if each.recurrence >= first], palette)
    panels = [panel]
    if drawn:
        below = canvas.add_panel(figure, palette, (canvas.LEFT, top + 186, room, 66))
        canvas.set_title(below, f"net cost saved so far, {unit}", palette)
        sums = [joules / factor for joules in facts.savings.so_far]
        saved = zip((each.recurrence for each in compared), sums, strict=True)
        steps = list(saved)[-max(1, len(drawn)) :]
        points = [*steps[: -1 : max(1, len(steps) // _STEPS)], steps[-1]]
        xs, ys = zip(*points, strict=True)
        xs, ys = (*xs, xs[-1] + 0.5), (*ys, ys[-1])
        shown = is_good(facts.savings.net) is not None
        good, bad = (palette.good, palette.bad) if shown else (palette.muted, palette.muted)
        for colour, keep in ((good, max), (bad, min)):
            part = [keep(y, 0.0) for y in ys]
            if any(part):
                below.fill_between(xs, part, step="post", color=colour, alpha=0.3, lw=0)
        below.plot(xs, ys, drawstyle="steps-post", color=palette.ink, lw=1.1)
        below.axhline(0, color=palette.muted, lw=0.8)
        told = ((x, y, f"to recurrence {x}: {gain(y * factor)} of cost") for x, y in points)
        canvas.annotate(below, told)
        panels.append(below)
    for each in panels:
        each.set_xlim(first - 0.5, max(first + 1, last) + 0.5)
        each.locator_params(axis="x", integer=True)
    canvas.set_label(panels[-1], "recurrence", palette)
    panel.tick_params(labelbottom=not drawn)


def _of(each: RecurrenceFacts) -> str:
    return f"batch size {each.size}{'' if each.reached else f' · {each.status}'}"


def _mark_unknown(panel: Axes, shown: Sequence[RecurrenceFacts], palette: Palette) -> None:
    """Draw a cross at the bottom for each recurrence whose cost is unknown."""
    unknown = [each for each in shown if each.cost_j is None]
    if not unknown:
        return
    panel.set_ylim(panel.get_ylim())
    low = panel.get_ylim()[0]
    marks: dict[str, Any] = {"color": palette.muted, "ms": 5.6, "mew": 1.2, "clip_on": False}
    panel.plot([each.recurrence for each in unknown], [low] * len(unknown), "x", **marks)
    names = (f"recurrence {each.recurrence} · {_of(each)} · unknown cost" for each in unknown)
    canvas.annotate(
        panel, ((e.recurrence, low, name) for e, name in zip(unknown, names, strict=True))
    )


def _below_legend(names: Sequence[str]) -> float:
    """Return where the panels begin."""
    return 40 + _LEGEND_LINE * (canvas.legend_lines(names) - 1)


def _draw_curves(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw learning curves against epochs or samples, and energy or time, with the target."""
    facts = report.facts
    kind, target = "energy" if facts.by_energy else "time", facts.target
    factor, unit = scale([curve.taken[-1] for curve in facts.curves], kind)
    names = _labels(facts)
    canvas.add_legend(figure, names, palette, {names.index(curve.size) for curve in facts.curves})
    room = (canvas.WIDTH - 2 * canvas.LEFT - canvas.RIGHT - 10) / 2
    values = sorted(value for curve in facts.curves for value in curve.values)
    # A first value may be far away.
    low, high = (values[round(share * (len(values) - 1))] for share in (0.02, 0.98))
    low, high = min(low, target), max(high, target)
    margin = 0.06 * (high - low) or 0.5
    steps = "samples" if facts.unit == "samples" else "epoch"
    for at, label in enumerate((steps, f"{kind}, {unit}")):
        left = canvas.LEFT + at * (room + canvas.LEFT + 10)
        panel = canvas.add_panel(figure, palette, (left, _below_legend(names), room, 196))
        for curve in facts.curves:
            xs = [taken / factor for taken in curve.taken] if at else curve.epochs
            colour = _colour(curve.size, facts, palette)
            panel.plot(xs, curve.values, color=colour, lw=1.1, alpha=0.75)
            who = f"{curve.trial} · batch size {curve.size}"
            points = zip(xs, curve.epochs, curve.values, strict=True)
            name = f"{who} · {steps} {{:g}} · {{:.4g}}"
            canvas.annotate(panel, ((x, y, name.format(at, y)) for x, at, y in points))
        panel.axhline(target, **canvas.dashes(palette))
        panel.set_ylim(low - margin, high + margin)
        panel.set_xlim(left=0)
        canvas.set_label(panel, label, palette)
        if not at:
            panel.locator_params(axis="x", integer=True)
            if facts.unit == "samples":
                _show_samples(panel.xaxis)
            canvas.set_title(panel, facts.metric, palette)


def _draw_noise(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw noise scales with their ranges; a lower bound is a dotted line."""
    from matplotlib.ticker import LogLocator  # noqa: PLC0415 - optional, and slow to import

    facts = report.facts
    names = _labels(facts)
    canvas.add_legend(figure, names, palette, {names.index(each.size) for each in facts.noise})
    place = (canvas.LEFT, _below_legend(names), canvas.WIDTH - canvas.LEFT - canvas.RIGHT, 196)
    panel = canvas.add_panel(figure, palette, place)
    for each in facts.noise:
        colour = _colour(each.size, facts, palette)
        known = [point.value is not None for point in each.points]
        lows = [point.low for point in each.points]
        highs = [point.high or math.nan for point in each.points]
        values = [point.value or math.nan for point in each.points]
        panel.fill_between(each.at, lows, highs, where=known, color=colour, alpha=0.15, lw=0)
        style: dict[str, Any] = {"color": colour, "lw": 1.2, "marker": ".", "ms": 4}
        panel.plot(each.at, values, **style)
        bounds = [math.nan if sure else low for sure, low in zip(known, lows, strict=True)]
        panel.plot(each.at, bounds, ls=":", **style)
        points = zip(each.at, each.points, strict=True)
        name = f"{each.trial} · batch size {each.size} · "
        canvas.annotate(panel, ((x, y.known, name + noise_text(y)) for x, y in points))
    drawn = [y for each in facts.noise for point in each.points for y in (point.low, point.known)]
    panel.set_yscale("log", subs=[])
    steps = (1, 2, 5) if max(drawn) < 100 * min(drawn) else (1,)
    panel.yaxis.set_major_locator(LogLocator(subs=steps))
    _show_samples(panel.yaxis)
    panel.set_xlim(left=0)
    canvas.set_label(panel, "samples" if facts.unit == "samples" else "epoch", palette)
    if facts.unit == "samples":
        _show_samples(panel.xaxis)
    canvas.set_title(panel, "noise scale, samples", palette)


def _draw_ranks(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw the ranks of the newest runs that changed them, and below their throughput."""
    for each, left, top, room in _places(report.facts.ranks, _RESIZES):
        ranks = (f"{each.trial} · ranks", top, 44, [float(n.world_size) for n in each.changes])
        rates = [math.nan if rate is None else rate for rate in each.rates]
        for title, at, height, values in (ranks, ("samples a second", top + 70, 96, rates)):
            panel = canvas.add_panel(figure, palette, (left, at, room, height))
            canvas.set_title(panel, title, palette)
            colour = _colour(each.size, report.facts, palette)
            panel.stairs(values, each.steps, color=colour, lw=1.4, baseline=None)
            panel.stairs(values, each.steps, color=colour, alpha=0.2, fill=True)
            panel.set_xlim(0, max(1, *each.steps))
            panel.set_ylim(bottom=0)
            panel.locator_params(axis="y", integer=True, nbins=4)
            _show_samples(panel.yaxis)
            panel.tick_params(labelbottom=at > top)
        canvas.set_label(panel, "optimizer step", palette)


def _arm_costs(sizes: Sequence[SizeFacts]) -> list[float]:
    return [cost for size in sizes for cost in (*size.costs_j, *size.failed_j) if cost < MOST]


def _draw_arms(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw the costs of each batch size, with their median."""
    sizes = report.facts.sizes
    costs = _arm_costs(sizes)
    factor, unit = scale(costs, "cost")
    height = 30.0 * len(sizes)
    room = canvas.WIDTH - 110 - canvas.RIGHT
    panel = canvas.add_panel(figure, palette, (110, 28, room, height), grid="x")
    canvas.set_title(panel, f"cost of a run, {unit}", palette)
    for at, size in enumerate(sizes):
        drawn = [(cost, True) for cost in size.costs_j[-DRAWN_RUNS:]]
        drawn += [(cost, False) for cost in size.failed_j[-DRAWN_RUNS:]]
        known = [(cost / factor, reached) for cost, reached in drawn if cost < MOST]
        dots = [
            canvas.Dot(cost, at + canvas.shift(n, len(known)), at, reached)
            for n, (cost, reached) in enumerate(known)
        ]
        canvas.scatter(panel, dots, len(sizes), palette, size=4.8)
        told = (f"batch size {size.label} · {energy(dot.x * factor)} of cost" for dot in dots)
        canvas.annotate(panel, ((d.x, d.y, name) for d, name in zip(dots, told, strict=True)))
        if size.cost_j is not None and size.cost_j < MOST:
            median = size.cost_j / factor
            panel.plot([median] * 2, [at - 0.4, at + 0.4], color=palette.ink, lw=2)
    panel.set_ylim(len(sizes) - 0.4, -0.6)
    names = [f"{size.label} (default)" if size.default else size.label for size in sizes]
    panel.set_yticks(
        range(len(sizes)), [canvas.label_text(name, 19) for name in names], fontsize=canvas.TEXT
    )
    panel.tick_params(axis="y", colors=palette.ink)
    canvas.limit(panel, "x", [cost / factor for cost in costs])


def _drawn_traces(power: Sequence[PowerFacts]) -> Sequence[PowerFacts]:
    return [each for each in power if len(each.trace.spans) > 1][-DRAWN_TRACES:]


def _places(drawn: Sequence[_T], height: float) -> Iterator[tuple[_T, float, float, float]]:
    """Yield each run with its left, top and width: two in a line, or one alone."""
    columns = 2 if len(drawn) > 1 else 1
    room = (canvas.WIDTH - columns * canvas.LEFT - canvas.RIGHT - 4 * (columns - 1)) / columns
    for at, each in enumerate(drawn):
        left = canvas.LEFT + at % columns * (room + canvas.LEFT + 4)
        yield each, left, 26 + at // columns * height, room


def _draw_power(figure: Figure, report: JobReport, palette: Palette) -> None:
    """Draw the power of the newest runs, with limits and throttling."""
    for each, left, top, room in _places(_drawn_traces(report.power), _TRACE):
        panel = canvas.add_panel(figure, palette, (left, top, room, 86))
        canvas.set_title(panel, f"{each.trial} · batch size {each.size}", palette)
        colour = _colour(each.size, report.facts, palette)
        _draw_trace(panel, each.trial, each.trace.spans, colour, palette)


def _draw_trace(
    panel: Axes, trial: str, spans: Sequence[PowerSpan], colour: str, palette: Palette
) -> None:
    end_s = spans[-1].time_s
    unit_s, unit = (3600, "h") if end_s > 10_800 else (60, "min") if end_s > 180 else (1, "s")
    xs = [span.time_s / unit_s for span in spans]
    low_w, high_w = [span.low_w for span in spans], [span.high_w for span in spans]
    panel.fill_between(xs, low_w, high_w, color=colour, alpha=0.25, lw=0)
    panel.plot(xs, [span.mean_w for span in spans], color=colour, lw=1.2)
    known = [span.limit_w for span in spans if span.limit_w is not None]
    if known:
        limits = [float("nan") if span.limit_w is None else span.limit_w for span in spans]
        panel.plot(xs, limits, drawstyle="steps-mid", **canvas.dashes(palette))
    top_w = max([*high_w, *known]) * 1.12 or 1.0
    throttled = [span.throttled for span in spans]
    panel.fill_between(xs, 0, 0.04 * top_w, where=throttled, step="mid", color=palette.bad, lw=0)
    told = (f"{trial} · {duration(e.time_s)} · {power(e.mean_w)}" for e in spans)
    canvas.annotate(panel, zip(xs, (span.mean_w for span in spans), told, strict=True))
    panel.set_ylim(0, top_w)
    panel.set_xlim(0, max(xs[-1], 1e-9))
    canvas.set_label(panel, unit, palette, canvas.SMALL, 1)
    panel.yaxis.set_major_formatter(_watts)
    panel.tick_params(axis="x", pad=5)


def _watts(watts: float, _place: float) -> str:
    return f"{watts / 1000:g} kW" if watts >= 1000 else f"{watts:g} W"


_DRAWERS = {
    "cost": _draw_costs,
    "curves": _draw_curves,
    "noise": _draw_noise,
    "ranks": _draw_ranks,
    "arms": _draw_arms,
    "power": _draw_power,
}
FIGURES = tuple(_DRAWERS)
"""The names of the figures of a job."""
