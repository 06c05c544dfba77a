"""The page of ``report --compare``: two groups of runs side by side."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from zeusrun.view import units
from zeusrun.view.report import charts
from zeusrun.view.report.markup import Html, figure, join, table, tag
from zeusrun.view.report.palette import STAND_INS
from zeusrun.view.report.svg import inline_svg
from zeusrun.view.report.words import percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.view.report.compare import Comparison


def comparison_section(comparison: Comparison, subject: str) -> Html:
    """Return the content of the page; ``subject`` names the job or jobs."""
    first, second = comparison.names
    mood = {True: "good", False: "bad", None: None}[comparison.better]
    runs = " and ".join(
        f"{n} of {name}" for n, name in zip(comparison.reached, (first, second), strict=True)
    )
    lead = f"Medians of the runs that reached the target: {runs}. Every run is a dot."
    drawn = charts.draw_comparison(comparison, STAND_INS)
    label = f"Cost, energy, time and epochs of {first} and {second}: every run, and the medians."
    svg = None if drawn is None else inline_svg(drawn, "compare", label)
    heads = ["of a run", first, second, "difference"]
    listed = table("Medians, from lowest to highest", heads, comparison_rows(comparison))
    caption = "Every run that reached the target is a dot; the line and the number are the median."
    return join(
        (
            tag("p", subject, class_="job"),
            tag("h1", tag("span", comparison.headline, class_=mood)),
            tag("p", lead, class_="lead"),
            figure("comparison", svg, caption, listed),
            *(tag("p", note, class_="note") for note in comparison.notes),
        )
    )


def comparison_rows(comparison: Comparison) -> list[list[str]]:
    """Return the rows of a table: what, both sides, and the difference."""
    rows = [
        ["runs", *map(str, comparison.runs), ""],
        ["reached the target", *map(str, comparison.reached), ""],
    ]
    for measure in comparison.measures:
        difference = units.UNKNOWN
        if measure.left and measure.right and statistics.median(measure.left) > 0:
            share = statistics.median(measure.right) / statistics.median(measure.left) - 1
            difference = ("+" if round(share, 2) > 0 else "") + percent(share)
        texts = [_text(values, measure.kind) for values in (measure.left, measure.right)]
        rows.append([measure.name, *texts, difference])
    return rows


def _text(values: Sequence[float], kind: str) -> str:
    """Return a median and a range: ``1.24 kJ (1.02 kJ to 1.40 kJ)``."""
    if not values:
        return units.UNKNOWN
    middle, low, high = statistics.median(values), min(values), max(values)
    texts = [_amount(value, kind) for value in (middle, low, high)]
    return texts[0] if len(values) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def _amount(value: float, kind: str) -> str:
    if kind == "energy":
        return units.energy(value)
    return units.duration(value) if kind == "time" else f"{value:g}"
