"""What ``repair`` and ``gc`` show."""

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
    """Return what was found and done."""
    lines = [
        Text.assemble(_MARKS[finding.state], f" {finding.text}")
        for finding in found
        if finding.state in _MARKS  # a problem is the error that follows
    ]
    held = [finding for finding in found if finding.state == "fine" and finding.kind == "limit"]
    lines += [Text(f"  {finding.text}", style="dim") for finding in held]
    if dry_run and lines:
        lines.append(Text("  nothing was changed: this was a dry run", style="dim"))
    if not lines:
        lines.append(Text(f"nothing is to be repaired (ZEUSRUN_HOME is {home})"))
    return Group(*lines)


def old_runs_sheet(found: Sequence[OldRun], *, dry_run: bool) -> RenderableType:
    """Return the run directories that are gone, or would be, oldest first."""
    if not found:
        return Text("nothing is to be removed")
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
    """Return what a restored history holds now, and what it could not get back."""
    start = "no copy" if done.copy is None else f"{done.copy} of {done.written_at}"
    taken = f", and {len(done.found)} of them from run directories" if done.found else ""
    trials = f"{done.trials} trial{'' if done.trials == 1 else 's'}"
    lines = [Text.assemble(("✓", "green"), f" {job} has {trials} again, from {start}{taken}")]
    lines += [Text(f"! {problem}", style="yellow") for problem in done.problems]
    if done.aside is not None:
        lines.append(Text(f"  what was there before is kept as {done.aside}", style="dim"))
    if done.lost is None and done.problems:
        unread = "what does not read may have held trials that nothing else knows"
        lines.append(Text(f"! {unread}", style="yellow"))
    return Group(*lines)
