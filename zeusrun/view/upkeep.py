"""The reports of ``repair``, ``gc``, ``doctor`` and ``token``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.console import Group
from rich.text import Text

from zeusrun.clock import timestamp
from zeusrun.view import units
from zeusrun.view.columns import Column, column_table
from zeusrun.view.console import Labelled, warning_lines

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from zeusrun.history.base import Restoration
    from zeusrun.history.sql.tokens import Token
    from zeusrun.maintenance.doctor import Check
    from zeusrun.maintenance.repair import Finding
    from zeusrun.maintenance.retention import OldRun
    from zeusrun.maintenance.uninstall import Found

_FINDING_MARKS = {"repaired": ("✓", "green"), "found": ("·", "yellow")}
_TOKEN_STYLES = {"valid": "green", "expired": "yellow", "revoked": "dim"}
_CHECK_MARKS = {True: ("✓", "green"), False: ("✗", "red"), None: ("·", "dim")}


def repair_sheet(found: Sequence[Finding], home: Path) -> RenderableType:
    """Return the findings and repairs; problems are left out, they are printed as an error."""
    marked = [finding for finding in found if finding.state in _FINDING_MARKS]
    held = [finding for finding in found if finding.state == "fine" and finding.kind == "limit"]
    lines = [(Text.assemble(_FINDING_MARKS[each.state]), Text(each.text)) for each in marked]
    lines += [(Text(), Text(finding.text, style="dim")) for finding in held]
    if not found:
        return Text(f"nothing to repair (ZEUSRUN_HOME is {home})")
    return Labelled(lines, gap=1)


def old_runs_sheet(found: Sequence[OldRun], *, dry_run: bool) -> RenderableType:
    """Return the run directories that were or would be removed, oldest first."""
    if not found:
        return Text("nothing to remove")
    width = max(len(run.trial) for run in found)
    lines = [Text(f"  {run.trial:{width}}  {units.size(run.size_bytes):>7}") for run in found]
    total = units.size(sum(run.size_bytes for run in found))
    files = f"the files of {units.plural(len(found), 'run')}, {total},"
    if dry_run:
        return Group(*lines, Text(f"{files} would go: this was a dry run", style="yellow"))
    return Group(*lines, Text.assemble(("✓", "green"), f" {files} are removed"))


def uninstall_sheet(found: Found, warnings: Sequence[str]) -> RenderableType:
    """Return what ``uninstall`` removes, and what stays."""
    lines: list[RenderableType] = []
    if found.entry:
        lines.append(Text("The crontab: these lines", style="bold"))
        lines.append(Labelled([(Text(" "), Text(line)) for line in found.entry], gap=1))
    if found.limits:
        lines.append(Text("Power limits: the original ones are restored", style="bold"))
        lines += [Text(f"  {uuid}") for uuid in found.limits]
    if found.parts:
        total = units.size(sum(part.size_bytes for part in found.parts))
        lines.append(Text(f"{found.home}: {total}", style="bold"))
    width = max((len(part.path.name) for part in found.parts), default=0)
    lines += [
        Text(f"  {part.path.name:{width}}  {units.size(part.size_bytes):>7}  {part.what}")
        for part in found.parts
    ]
    notes = {"server": " (the database of `zeusrun serve`)"}
    others = ", ".join(each + notes.get(each, "") for each in found.others)
    stays = ["job files, scripts, and other homes"]
    stays += [f"in {found.home}: {others}"] if others else []
    if found.server:
        stays.append(f"the records on {found.server}; there, `zeusrun token revoke` ends the token")
    stays.append("the package: pip uninstall zeusrun")
    rows = [(Text("  ·", style="dim"), Text(text)) for text in stays]
    head = Text("What stays", style="bold")
    return Group(*lines, head, Labelled(rows, gap=1), warning_lines(warnings))


def restore_sheet(job: str, done: Restoration) -> RenderableType:
    """Return what a restored history contains, and what is lost."""
    kept, written = done.trials - len(done.found), units.moment(done.written_at or "")
    starts = {"present": "from the history itself", "bak": f"from the copy of {written}"}
    sources = [f"{kept} {starts.get(done.copy or '', 'from volumes')}"] if kept else []
    sources += [f"{len(done.found)} from run directories"] if done.found else []
    text = ": ".join(filter(None, [units.plural(done.trials, "trial"), ", ".join(sources)]))
    text = f"{job} has {text}" + ("; there was no usable copy" if done.copy is None else "")
    rows = [(Text("✓", style="green"), Text(text))]
    problems = list(done.problems)
    if done.unfinished:
        those = f"{len(done.unfinished)} of them without its outcome: {', '.join(done.unfinished)}"
        problems.insert(0, f"{those}; `zeusrun repair` records each whose launcher is dead")
    if done.lost is None and problems:
        problems.append(
            "what cannot be read may have contained trials that are recorded nowhere else"
        )
    if done.aside is not None:
        rows.append((Text(), Text(f"the previous file is kept as {done.aside}", style="dim")))
    return Group(Labelled(rows, gap=1), warning_lines(problems))


def doctor_sheet(checks: Sequence[Check]) -> RenderableType:
    """Return the checks of ``doctor``, each with its advice."""
    rows = []
    for check in checks:
        body = Text(check.found)
        if check.advice:
            body.append(f"\n→ {check.advice}", style="yellow" if check.well is False else "dim")
        rows.append((Text.assemble(_CHECK_MARKS[check.well], (f" {check.name}", "bold")), body))
    return Labelled(rows)


def tokens_table(tokens: Sequence[Token], where: str, width: int) -> RenderableType:
    """Return what each token of a database permits, and when it was last used."""
    if not tokens:
        return Text(f"{where} has no tokens yet; make one: zeusrun token create --job '*' --write")
    return column_table(_TOKEN_COLUMNS, tokens, width)


def until(token: Token) -> str:
    """Return how long a token is valid."""
    return "for ever" if token.expires_at is None else f"until {_moment(token.expires_at)}"


def token_json(token: Token) -> dict[str, Any]:
    """Return a token as ``--json`` prints it; times are RFC 3339."""
    times = {
        name: None if (at := getattr(token, name)) is None else timestamp(at)
        for name in ("created_at", "expires_at", "revoked_at", "used_at")
    }
    facts = {"token": token.id, "jobs": token.jobs, "may": token.may, "state": token.state}
    return {**facts, **times, "note": token.note}


def _moment(at: float | None) -> str:
    return "never" if at is None else units.minute(timestamp(at))


_TOKEN_COLUMNS = (
    Column("token", lambda each: each.id, left=True, folds=99),
    Column("jobs", lambda each: each.jobs, left=True, folds=99),
    Column("may", lambda each: each.may, left=True, folds=99),
    Column("state", lambda each: Text(each.state, _TOKEN_STYLES[each.state]), left=True, folds=99),
    Column("expires", lambda each: _moment(each.expires_at), left=True, folds=99),
    Column("last used", lambda each: _moment(each.used_at), left=True, folds=99),
    Column("note", lambda each: each.note or "", left=True, folds=99),
)
