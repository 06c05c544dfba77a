"""Snippets for a model card, in Markdown, and for programs, in JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from zeusrun import __version__
from zeusrun.analysis.amounts import name_ends
from zeusrun.plain_text import plain_json, plain_text, storable_text
from zeusrun.view import units
from zeusrun.view.report.compare import comparison_rows
from zeusrun.view.report.headline import (
    all_runs,
    basis,
    capitalized,
    estimated_part,
    headline,
    target,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.recurrences import SizeFacts
    from zeusrun.view.report.compare import GroupComparison
    from zeusrun.view.report.facts import JobFacts, JobReport

_MARKDOWN = "\\`*_{}[]<>#|"


def job_snippet(facts: JobFacts) -> str:
    """Return a table in Markdown: what a job's trainings took, and what was saved."""
    text, _ = headline(facts)
    usual = max(facts.sizes, key=lambda size: size.reached)
    days = {units.moment(at, "%Y-%m-%d"): None for at in (facts.first_at, facts.last_at)}
    rows = [
        ("Hardware", facts.hardware),
        ("Target", target(facts)),
        ("Runs", f"{facts.total.runs} ({facts.reached} reached the target), {' to '.join(days)}"),
        ("Usual batch size", usual.label),
        ("Energy of a run (median)", _energy(usual)),
        ("Time of a run (median)", units.duration(usual.time_s)),
        *((name.capitalize(), amount) for name, amount in all_runs(facts.total)),
        ("Batch sizes chosen by zeusrun", f"{capitalized(text)}. {basis(facts)}"),
    ]
    return _table(facts.job, ("", ""), rows, ["", _made(estimated_part(facts.total))])


def _energy(size: SizeFacts) -> str:
    how = ", estimated" if size.estimated else ""
    return units.electricity(size.energy_j) + how


def comparison_snippet(comparison: GroupComparison) -> str:
    """Return a table in Markdown of two groups of runs."""
    rows = comparison_rows(comparison)
    heads, body = ["", *list(rows[0])[1:]], [list(row.values()) for row in rows]
    notes = [comparison.differ or "", *comparison.notes, _made(*comparison.estimated)]
    return _table(comparison.headline, heads, body, notes)


def reports_json(reports: Sequence[JobReport]) -> str:
    """Return everything of the page, and all rows, as one JSON object in a line."""
    jobs = []
    for report in reports:
        text, good = headline(report.facts)
        first = {"headline": text, "basis": basis(report.facts), "saves": good}
        more = dataclasses.asdict(report)
        jobs.append({**first, **more.pop("facts"), **more})
    return _document({"zeusrun": __version__, "jobs": jobs})


def comparison_json(comparison: GroupComparison) -> str:
    """Return a comparison as one JSON object in a line."""
    values = dataclasses.asdict(comparison)
    values["measures"] = [
        {**measure._asdict(), **name_ends("saved", measure.saved)}
        for measure in comparison.measures
    ]
    return _document({"zeusrun": __version__, "comparison": values})


def _document(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    return plain_json(storable_text(text)) + "\n"


def _made(*parts: str) -> str:
    """Return the last line; ``parts`` say how far the energy is an estimate."""
    part = max(parts, key=["", "partly estimated", "estimated"].index)
    if len(set(parts)) > 1:
        part = "partly estimated"
    how = f"Energy is {part} from CPU time. " if part else ""
    return f"{how}Recorded by zeusrun {__version__}."


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """Return a table; the first note stands below its title, the others below the table."""
    first, *others = map(_escaped, notes)
    top = [f"### {_escaped(title)}", "", *([first, ""] if first else [])]
    body = [_row(heads), f"|{'---|' * len(heads)}", *map(_row, rows)]
    return "\n".join([*top, *body, *(f"\n{note}" for note in others)]) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(map(_escaped, cells))} |"


def _escaped(text: str) -> str:
    line = " ".join(plain_text(storable_text(text)).split())
    return "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in line)
