"""``uninstall``: removes everything that zeusrun has written, but not its package."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zeusrun.commands.options import DryRun, console
from zeusrun.errors import BusyError, DeviceError, LaunchError, UsageError
from zeusrun.files.home import limits_directory, trusted_home
from zeusrun.gpu.power_limits.original_limits import abandoned_gpus, recorded_gpus
from zeusrun.history.http.client import read_address
from zeusrun.history.registry import waiting_spools
from zeusrun.launcher.power.control import restore_limits
from zeusrun.launcher.queue.tickets import Tickets
from zeusrun.maintenance.recover import end_orphans
from zeusrun.maintenance.uninstall import Found, check_home, find_busy, find_parts, remove_parts
from zeusrun.schedule.crontab import find_entry, remove_entry
from zeusrun.schedule.store import Schedules
from zeusrun.view.upkeep import uninstall_sheet

if TYPE_CHECKING:
    from pathlib import Path

_SO_FAR = "only schedules are removed, run `zeusrun uninstall` again later"


def uninstall(
    *,
    dry_run: DryRun = False,
    yes: Annotated[bool, Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Remove everything of zeusrun but its package.

    These are its lines in the crontab, power limits that dead runs left, and ZEUSRUN_HOME.
    """
    home = trusted_home(os.environ)
    if not (dry_run or yes or (sys.stdin.isatty() and sys.stdout.isatty())):
        raise UsageError(
            "uninstall asks before it removes anything, but there is no terminal; see what "
            "`zeusrun uninstall --dry-run` lists, then give --yes"
        )
    entry, limits = find_entry(home), abandoned_gpus(limits_directory(home))
    if home.exists() or not entry:  # who deletes a home by hand may forget the entry
        check_home(home, known=bool(entry))
    found = Found(home, *find_parts(home), entry, limits, read_address(home))
    warnings = [f"results still wait for {url}, and would be lost" for url in waiting_spools(home)]
    busy = find_busy(home)
    if busy and not dry_run:
        raise BusyError("nothing is removed: " + "; ".join(busy))
    warnings += [f"nothing can be removed now: {each}" for each in busy]
    console().print(uninstall_sheet(found, warnings))
    if dry_run:
        typer.echo("\nThis was a dry run: nothing is removed.")
    elif yes or _agreed():
        _remove_all(home)
        typer.echo("\nAll of this is removed. The package is left: pip uninstall zeusrun")
    else:
        typer.echo("Nothing is removed.")


def _agreed() -> bool:
    try:
        return typer.confirm("\nRemove all of this?")
    except typer.Abort:  # Ctrl-C
        return False


def _remove_all(home: Path) -> None:
    """Remove everything, schedules first, so that none starts a run meanwhile."""
    remove_entry(home)
    _check_idle(home)
    schedules = Schedules(home)
    for job in schedules.jobs():
        schedules.remove(job)
    if not home.exists():
        return
    with Tickets(home):  # no other submit begins
        _check_idle(home)
        _, problems, _ = restore_limits(home)
        if changed := recorded_gpus(limits_directory(home)):
            why = "is held by a process, or is that of another machine: run this command there"
            problems = problems or [f"the power limit of {', '.join(changed)} {why}"]
            raise DeviceError(f"{_SO_FAR}: {'; '.join(problems)}")
        left = [each.problem for each in end_orphans(home) if each.problem is not None]
        if left:
            raise LaunchError(f"{_SO_FAR}: {'; '.join(left)}")
        remove_parts(home, find_parts(home)[0])


def _check_idle(home: Path) -> None:
    """Raise ``BusyError`` if something began meanwhile."""
    if busy := find_busy(home):
        raise BusyError(f"{_SO_FAR}: {'; '.join(busy)}")
