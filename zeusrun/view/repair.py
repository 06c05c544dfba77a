"""The reports of ``repair`` and ``gc``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Group
from rich.text import Text

from zeusrun.view import units

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.console import RenderableType

    from zeusrun.history.tinydb.restore import Restoration
    from zeusrun.maintenance.repair import Finding
    from zeusrun.maintenance.retention import OldRun

_MARKS = {"repaired": ("✓", "green"), "found": ("·", "yellow")}


def repair_sheet(found: Sequence[Finding], home: Path, *, dry_run: bool) -> RenderableType:
    """Return the findings and repairs."""
    lines = [
        Text.assemble(_MARKS[finding.state], f" {finding.text}")
        for finding in found
        if finding.state in _MARKS  # a problem is printed as an error afterwards
    ]
    held = [finding for finding in found if finding.state == "fine" and finding.kind == "limit"]
    lines += [Text(f"  {finding.text}", style="dim") for finding in held]
    if dry_run and lines:
        lines.append(Text("  nothing was changed: this was a dry run", style="dim"))
    if not lines:
        lines.append(Text(f"nothing to repair (ZEUSRUN_HOME is {home})"))
    return Group(*lines)


def old_runs_sheet(found: Sequence[OldRun], *, dry_run: bool) -> RenderableType:
    """Return the run directories that were or would be removed, oldest first."""
    if not found:
        return Text("nothing to remove")
    width = max(len(run.trial) for run in found)
    lines = [
        Text.assemble(f"  {run.trial:{width}}  {units.size(run.size_bytes):>7}  ", (run.why, "dim"))
        for run in found
    ]
    total = units.size(sum(run.size_bytes for run in found))
    count = f"{len(found)} run director{'y' if len(found) == 1 else 'ies'}, {total}"
    end = Text(f"{count} would go: this was a dry run", style="yellow") if dry_run else None
    return Group(*lines, end or Text.assemble(("✓", "green"), f" {count} removed"))


def restore_sheet(job: str, done: Restoration) -> RenderableType:
    """Return what a restored history contains, and what is lost."""
    start = "no copy" if done.copy is None else f"{done.copy} of {done.written_at}"
    taken = f", and {len(done.found)} of them from run directories" if done.found else ""
    trials = f"{done.trials} trial{'' if done.trials == 1 else 's'}"
    lines = [Text.assemble(("✓", "green"), f" {job} has {trials} again, from {start}{taken}")]
    lines += [Text(f"! {problem}", style="yellow") for problem in done.problems]
    if done.aside is not None:
        lines.append(Text(f"  the previous file is kept as {done.aside}", style="dim"))
    if done.lost is None and done.problems:
        unread = "the unreadable part may have contained trials that are recorded nowhere else"
        lines.append(Text(f"! {unread}", style="yellow"))
    return Group(*lines)
