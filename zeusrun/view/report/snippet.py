"""Snippets for a model card or a paper: Markdown, LaTeX and JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING

from zeusrun import __version__
from zeusrun.analysis.amounts import name_ends
from zeusrun.plain_text import plain_json, plain_text, storable_text
from zeusrun.view import units
from zeusrun.view.report.compare import comparison_rows
from zeusrun.view.report.headline import basis, capitalized, headline, target
from zeusrun.view.report.sections import all_runs, estimated_part

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.analysis.recurrences import SizeFacts
    from zeusrun.view.report.compare import Comparison
    from zeusrun.view.report.facts import JobFacts, JobReport

_LATEX = {
    "\\": r"\textbackslash{}",
    **{sign: f"\\{sign}" for sign in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "≥": r"$\geq$",
    "≤": r"$\leq$",
    "–": "--",  # noqa: RUF001
    "−": "$-$",  # noqa: RUF001
    "∞": r"$\infty$",
    "→": r"$\rightarrow$",
    "·": r"$\cdot$",
}
_MARKDOWN = "\\`*_{}[]<>#|"


def job_snippet(facts: JobFacts, form: str) -> str:
    """Return a table, ``md`` or ``latex``: what a job's trainings took, and what was saved."""
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
    return _table(facts.job, ("", ""), rows, form, ["", _made(estimated_part(facts.total))])


def _energy(size: SizeFacts) -> str:
    how = ", estimated" if size.estimated else ""
    return units.electricity(size.energy_j) + how


def comparison_snippet(comparison: Comparison, form: str) -> str:
    """Return a table of two groups of runs."""
    rows = comparison_rows(comparison)
    heads, body = ["", *list(rows[0])[1:]], [list(row.values()) for row in rows]
    notes = [comparison.differ or "", *comparison.notes, _made(*comparison.estimated)]
    return _table(comparison.headline, heads, body, form, notes)


def reports_json(reports: Sequence[JobReport]) -> str:
    """Return everything of the page, and all rows, as one JSON object in a line."""
    jobs = []
    for report in reports:
        text, good = headline(report.facts)
        said = {"headline": text, "basis": basis(report.facts), "saves": good}
        more = dataclasses.asdict(report)
        jobs.append({**said, **more.pop("facts"), **more})
    return _document({"zeusrun": __version__, "jobs": jobs})


def comparison_json(comparison: Comparison) -> str:
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
    title: str,
    heads: Sequence[str],
    rows: Sequence[Sequence[str]],
    form: str,
    notes: Sequence[str],
) -> str:
    """Return a table; the first note stands below its title, the others below the table."""
    body = [_row(row, form) for row in rows]
    first, *others = [_markdown(note) if form == "md" else _latex(note) for note in notes]
    if form == "md":
        rule = f"|{'---|' * len(heads)}"
        top = [f"### {_markdown(title)}", "", *([first, ""] if first else [])]
        lines = [*top, _row(heads, form), rule, *body, *(f"\n{note}" for note in others)]
        return "\n".join(lines) + "\n"
    columns = r"lp{0.6\linewidth}" if len(heads) == 2 else f"l{'r' * (len(heads) - 1)}"
    lines = [
        r"\begin{table}",
        rf"\caption{{{' '.join(filter(None, (f'{_latex(title)}.', first, *others)))}}}",
        rf"\begin{{tabular}}{{{columns}}}",
        r"\hline",
        *([_row(heads, form), r"\hline"] if any(heads) else []),
        *body,
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str], form: str) -> str:
    if form == "md":
        return f"| {' | '.join(map(_markdown, cells))} |"
    return " & ".join(map(_latex, cells)) + r" \\"


def _markdown(text: str) -> str:
    return "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in _line(text))


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in _line(text))


def _line(text: str) -> str:
    return " ".join(plain_text(storable_text(text)).split())
