"""Snippets for a model card or a paper: Markdown, LaTeX and JSON."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any, Literal

from zeusrun import __version__
from zeusrun.plain_text import plain_json, plain_text
from zeusrun.view import units
from zeusrun.view.report.words import basis, carbon, day, headline, kwh, money, target

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.view.report.compare import Comparison
    from zeusrun.view.report.facts import JobFacts
    from zeusrun.view.report.job_report import JobReport

Format = Literal["md", "latex", "json"]
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


def job_snippet(facts: JobFacts, form: Literal["md", "latex"]) -> str:
    """Return a table about a job's trainings: what they took, and what was saved."""
    text, _ = headline(facts)
    usual = max(facts.sizes, key=lambda size: size.reached)
    kind = "estimated" if "estimated" in facts.energy_sources else "measured"
    least = "at least " if facts.unmeasured else ""
    energy = units.UNKNOWN if facts.energy_j is None else f"{least}{kwh(facts.energy_j)}, {kind}"
    reached = f"{facts.runs} ({facts.reached} reached the target)"
    rows = [
        ("Hardware", facts.hardware),
        ("Target", target(facts)),
        ("Runs", f"{reached}, {day(facts.first_at)} to {day(facts.last_at)}"),
        ("Usual batch size", usual.label),
        ("Energy of a run (median)", kwh(usual.energy_j)),
        ("Time of a run (median)", units.duration(usual.time_s)),
        ("Energy of all runs", energy),
    ]
    if facts.carbon_g is not None:
        rows.append(("Carbon of all runs", carbon(facts.carbon_g)))
    rows += [("Price of all runs", money(amount, name)) for name, amount in facts.money.items()]
    rows.append(("Batch sizes chosen by zeusrun", f"{text[:1].upper()}{text[1:]}. {basis(facts)}"))
    return _table(facts.job, ("", ""), rows, form)


def comparison_snippet(
    comparison: Comparison, rows: Sequence[Sequence[str]], form: Literal["md", "latex"]
) -> str:
    """Return a table of two groups of runs."""
    first, second = comparison.names
    return _table(comparison.headline, ("", first, second, "difference"), rows, form)


def reports_json(reports: Sequence[JobReport]) -> str:
    """Return everything of the page, and all rows, as one JSON object in a line."""
    jobs = []
    for report in reports:
        text, good = headline(report.facts)
        jobs.append(
            {
                "headline": text,
                "basis": basis(report.facts),
                "saves": good,
                **_plain(report.facts),
                "belief": _plain(report.belief),
                "power": [_plain(each) for each in report.power],
                "stalls": report.stalls,
            }
        )
    return _document({"zeusrun": __version__, "jobs": jobs})


def comparison_json(comparison: Comparison) -> str:
    """Return a comparison as one JSON object in a line."""
    measures = [measure._asdict() for measure in comparison.measures]
    return _document(
        {"zeusrun": __version__, "comparison": {**_plain(comparison), "measures": measures}}
    )


def _plain(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any dataclass
    """Return a dataclass as JSON values; a span of power becomes a list."""
    return dataclasses.asdict(value)


def _document(value: object) -> str:
    return plain_json(json.dumps(value, ensure_ascii=False, allow_nan=False)) + "\n"


def _table(
    title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], form: Literal["md", "latex"]
) -> str:
    made = f"Measured with zeusrun {__version__}."
    if form == "md":
        lines = [
            f"### {_markdown(title)}",
            "",
            _row(heads, form),
            f"|{'---|' * len(heads)}",
            *(_row(row, form) for row in rows),
            "",
            made,
        ]
        return "\n".join(lines) + "\n"
    first = "l" + "p{0.6\\linewidth}" if len(heads) == 2 else "l" + "r" * (len(heads) - 1)
    lines = [
        r"\begin{table}",
        rf"\caption{{{_latex(title)}. {_latex(made)}}}",
        rf"\begin{{tabular}}{{{first}}}",
        r"\hline",
        *([_row(heads, form), r"\hline"] if any(heads) else []),
        *(_row(row, form) for row in rows),
        r"\hline",
        r"\end{tabular}",
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str], form: Literal["md", "latex"]) -> str:
    if form == "md":
        return f"| {' | '.join(map(_markdown, cells))} |"
    return " & ".join(map(_latex, cells)) + r" \\"


def _markdown(text: str) -> str:
    line = " ".join(plain_text(text).split())
    return "".join(f"\\{sign}" if sign in _MARKDOWN else sign for sign in line)


def _latex(text: str) -> str:
    return "".join(_LATEX.get(sign, sign) for sign in " ".join(plain_text(text).split()))
