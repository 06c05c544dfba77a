"""Plots of characters for the terminal, also without colour and in ASCII."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from rich.text import Text

from zeusrun.plugins import check_extra
from zeusrun.view.console import break_lines
from zeusrun.view.units import short_count

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.plots import Plot

LEAST_WIDTH = 24  # less leaves no room between the labels
_HEIGHT = 16
_COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
# From which value on a unit is used, and its size.
_UNITS = {
    "J": ((1e9, 1e9, "GJ"), (1e6, 1e6, "MJ"), (1e3, 1e3, "kJ"), (-math.inf, 1.0, "J")),
    "W": ((1e4, 1e3, "kW"), (-math.inf, 1.0, "W")),
    "s": ((7200.0, 3600.0, "h"), (120.0, 60.0, "min"), (-math.inf, 1.0, "s")),
    "samples": ((1e6, 1e6, ""), (1e3, 1e3, ""), (-math.inf, 1.0, "")),  # see ``short_count``
    "": ((-math.inf, 1.0, ""),),
}


_MARKS = "●▲✕◆■○"
_LINES = {"median": "┃", "limit": "━"}  # marks of series that are no runs, by kind
_LEVEL = "┈"
_RULERS = "┤│└"  # what plotext draws left of the marks
_TO_ASCII = str.maketrans("●▲✕◆■○┃━┈×┤│└┬─├┼", "o^x#*+|=-x||++-|+")  # noqa: RUF001 - times


def draw_plot(plot: Plot, width: int, encoding: str | None = "utf-8") -> Text:
    """Draw a plot that has at least one point, in characters that a stream can encode.

    Raises:
        UsageError: If plotext is not installed.
    """
    check_extra("zeusrun plot", "plot", "plotext")
    free = iter(_MARKS)
    marks = [_LINES.get(each.kind) or next(free) for each in plot.series]
    canvas = _draw_canvas(plot, marks, width).split("\n")
    name = Text(plot.x[0], style="dim")
    name.align("right", width)
    notes = [Text(note, style="dim") for note in plot.notes]
    lines = _broken([Text(plot.title, style="bold"), *_legend(plot, marks, width)], width)
    lines += [_coloured(line.rstrip(), marks) for line in canvas]
    drawn = Text("\n").join([*lines, name, *_broken(notes, width)])
    if not (encoding or "").lower().startswith("utf"):
        drawn.plain = drawn.plain.translate(_TO_ASCII)
    return drawn


def _broken(texts: Sequence[Text], width: int) -> list[Text]:
    return [line for text in texts for line in break_lines(text, width)]


def _draw_canvas(plot: Plot, marks: Sequence[str], width: int) -> str:
    """Return the axes and the marks, without colour."""
    import plotext  # noqa: PLC0415 - optional, and slow to import

    points = [point for series in plot.series for point in series.points]
    levels = [] if plot.level is None else [plot.level[1]]
    x = build_axis([at for at, _ in points], plot.x[1], 7)
    y = build_axis([*(at for _, at in points), *levels], plot.y_unit, 5)
    height = _HEIGHT
    if plot.rows:
        numbers = [float(number) for number in range(1, len(plot.rows) + 1)]
        ends = (1.0, numbers[-1]) if len(numbers) > 1 else (0.0, 2.0)
        y = Axis(*ends, numbers, plot.rows)
        height = 2 * max(2, len(numbers)) + 1
    figure = plotext.figure
    figure.clear()
    figure.theme("colorless")
    figure.plot_size(width, height)
    figure.axes(False, axis="x", side="upper")
    figure.axes(False, axis="y", side="right")
    for ruler, axis in ((figure.ruler("x", "lower"), x), (figure.ruler("y", "left"), y)):
        ruler.lim(axis.low, axis.high)
        ruler.ticks(list(axis.ticks), list(axis.labels))
    if plot.level is not None:
        figure.line(plot.level[1], style="dotted")
    for series, mark in zip(plot.series, marks, strict=True):
        if series.points:
            across, up = zip(*series.points, strict=True)
            figure.draw(figure.signal(list(across), list(up), marker=mark))
    return Text.from_ansi(figure.build().string()).plain.rstrip()


class Axis(NamedTuple):
    """An axis: its ends as they are drawn, and its ticks in the unit of the values."""

    low: float
    high: float
    ticks: Sequence[float]
    labels: Sequence[str]


def build_axis(values: Sequence[float], unit: str, count: int) -> Axis:
    """Return an axis for values of a unit, with about ``count`` ticks at round numbers.

    With a unit, the axis starts at 0.
    """
    low, high = min(values), max(values)
    low = min(low, 0.0) if unit else low
    _, size, name = next(each for each in _UNITS[unit] if high >= each[0])
    whole = not unit and all(value == round(value) for value in values)
    step = _round_step((high - low) / size / count or 1.0, whole=whole) * size
    ticks = [n * step for n in range(math.ceil(low / step), math.floor(high / step) + 1)] or [low]
    margin = max((high - low) / 40 or step / 2, 1e-6 * max(-low, high))  # more than rounding
    labels = [f"{tick / size:.6g} {name}".rstrip() for tick in ticks]
    labels = [short_count(tick) for tick in ticks] if unit == "samples" else labels
    return Axis(low if unit else low - margin, high + margin, ticks, labels)


def _round_step(least: float, *, whole: bool) -> float:
    """Return the smallest 1, 2 or 5 times a power of ten that is not below ``least``."""
    power = 10.0 ** math.floor(math.log10(least))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    return max(1.0, step) if whole else step


def _legend(plot: Plot, marks: Sequence[str], width: int) -> list[Text]:
    """Return the lines of the legend; an entry is in one of them."""
    parts = [
        Text.assemble((mark, _style(mark)), f" {series.label}")
        for series, mark in zip(plot.series, marks, strict=True)
        if series.points
    ]
    if plot.level is not None:
        parts.append(Text.assemble((_LEVEL * 2, "dim"), f" {plot.level[0]}"))
    lines: list[Text] = []
    for part in parts:
        if lines and lines[-1].cell_len + 3 + part.cell_len <= width:
            lines[-1] = Text("   ").join([lines[-1], part])
        else:
            lines.append(part)
    return lines


def _style(mark: str) -> str:
    at = _MARKS.find(mark)
    return "bold" if at < 0 else _COLOURS[at]


def _coloured(line: str, marks: Sequence[str]) -> Text:
    """Colour the marks right of the vertical axis."""
    text = Text(line)
    start = next((at for at, char in enumerate(line) if char in _RULERS), 0) + 1
    for at in range(start, len(line)):
        if line[at] in marks:
            text.stylize(_style(line[at]), at, at + 1)
        elif line[at] == _LEVEL:
            text.stylize("dim", at, at + 1)
    return text
