"""What a report is written as: a page, or JSON.

A page is one file that loads nothing, in a light and a dark theme.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun import __version__
from zeusrun.plain_text import storable_text
from zeusrun.view import units
from zeusrun.view.export import json_line
from zeusrun.view.report import canvas, headline
from zeusrun.view.report.figures import draw
from zeusrun.view.report.markup import Html, join, tag
from zeusrun.view.report.sections import Frame, job_sections

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.view.report.canvas import Palette
    from zeusrun.view.report.facts import JobReport

_HERE = Path(__file__).parent
_WORDS = (
    "Cost is eta_knob · energy + (1 − eta_knob) · maximum power · time, in joules, "  # noqa: RUF001
    "from the first optimizer step until the target is reached. A recurrence is one submit with "
    "all its attempts. A cross marks one that did not reach the target: it cost at least this "
    "much. An unknown value is –, never 0."  # noqa: RUF001
)


def job_page(reports: Sequence[JobReport], made_at: str) -> str:
    """Return the page of one job or several."""
    alone = len(reports) == 1
    shown = headline.detailed(reports)
    parts = [_job_part(reports[n], f"j{n}", alone=alone) for n in shown]
    if alone:
        (content, links), title = parts[0], f"{reports[0].facts.job}: zeusrun report"
    else:
        title = f"zeusrun report: {units.plural(len(reports), 'job')}"
        content = join((headline.overview(reports), *(part for part, _ in parts)))
        links = [(f"j{n}-top", reports[n].facts.job) for n in shown]
    return build_page(title, links, content, made_at)


def _job_part(report: JobReport, prefix: str, *, alone: bool) -> tuple[Html, list[tuple[str, str]]]:
    """Return a job's part of the page, and the id and the name of each section."""
    parts = job_sections(report, Frame(lambda name: draw_picture(report, name, f"{prefix}-")))
    sections = [
        tag("section", tag("h2" if alone else "h3", title), content, id=f"{prefix}-{name}")
        for name, title, content in parts
    ]
    head = headline.job_head(report.facts, f"{prefix}-top", alone=alone)
    return join((head, *sections)), [(f"{prefix}-{name}", title) for name, title, _ in parts]


_LABELS = {
    "cost": "The cost of each recurrence by batch size, and what was saved so far",
    "curves": "Learning curves by batch size, with the target",
    "ranks": "Ranks and throughput over the optimizer steps of runs",
    "noise": "The gradient noise scale in the course of runs",
    "arms": "The costs of the runs of each batch size",
    "power": "The power of runs over time, with limits and throttling",
}
"""What figures show, for people who do not see them."""


def draw_picture(report: JobReport, name: str, prefix: str = "") -> Html | None:
    """Return a figure of a job for a page, if there is any; ``prefix`` makes its ids unique."""
    with canvas.drawing():
        drawn = draw(name, report, canvas.STAND_INS)
        if drawn is None:
            return None
        label = f"{_LABELS[name]}: {report.facts.job}. The table below has the numbers."
        return canvas.inline_svg(drawn, f"{prefix}{name}", label)


def build_page(title: str, links: Sequence[tuple[str, str]], content: Html, made_at: str) -> str:
    """Return the whole document.

    Args:
        title: Of the browser's tab.
        links: The id and the name of each section.
        content: The sections.
        made_at: When, for people.
    """
    script = figure_script()
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = (
        Html(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        Html(f"<style>{style_sheet()}</style>"),
        Html(f"<script>{script}</script>"),
    )
    header = tag("header", tag("span", "zeusrun report"), class_="top")
    made = f"Made by zeusrun {__version__} on {made_at}. This page loads nothing."
    return build_shell(title, head, header, links, content, note=made)


def build_shell(
    title: str,
    head: Iterable[str],
    header: Html,
    links: Iterable[tuple[str, str]],
    content: Html,
    *,
    note: str,
    **attributes: str | None,
) -> str:
    """Return the whole document of a page, of a report or of a server.

    Args:
        title: Of the browser's tab.
        head: What else its head contains.
        header: What stands above the content.
        links: The id and the name of each section.
        content: The sections.
        note: The last line.
        attributes: Of its body.
    """
    whole = join(
        (
            Html('<meta charset="utf-8">'),
            Html('<meta name="viewport" content="width=device-width, initial-scale=1">'),
            Html('<meta name="color-scheme" content="light dark">'),
            tag("title", title),
            Html('<link rel="icon" href="data:,">'),
            *head,
        )
    )
    items = [tag("li", tag("a", name, href=f"#{place}")) for place, name in links]
    nav = tag("nav", tag("ol", *items), aria_label="Sections", class_="sections")
    body = tag(
        "body",
        tag("a", "Skip to the content", class_="skip", href="#content"),
        header,
        nav if len(items) > 1 else "",
        tag("main", content, id="content", tabindex=-1),
        tag("footer", tag("p", _WORDS), tag("p", note)),
        **attributes,
    )
    return f'<!doctype html>\n<html lang="en"><head>{whole}</head>\n{body}</html>\n'


def style_sheet() -> str:
    """Return the style sheet of a page, with the colours of both themes."""
    sheet = (_HERE / "page.css").read_text(encoding="utf-8")
    light, dark = _variables(canvas.LIGHT), _variables(canvas.DARK)
    return (
        f":root{{{light}}}\n@media (prefers-color-scheme: dark) {{ :root{{{dark}}} }}\n"
        f"@media print {{ :root:root{{color-scheme:light;{light}}} }}\n{sheet}"
    )


def figure_script() -> str:
    """Return the script that shows the values of figures."""
    return (_HERE / "figure.js").read_text(encoding="utf-8")


def _variables(palette: Palette) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in canvas.named_colours(palette).items())


def reports_json(reports: Sequence[JobReport]) -> str:
    """Return everything of the page, and all rows, as one JSON object in a line."""
    jobs = []
    for report in reports:
        text, good = headline.headline(report.facts)
        first = {"headline": text, "basis": headline.basis(report.facts), "saves": good}
        more = dataclasses.asdict(report)
        del more["days"]  # of a page
        jobs.append({**first, **more.pop("facts"), **more})
    return storable_text(json_line({"zeusrun": __version__, "jobs": jobs}))
