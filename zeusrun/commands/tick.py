"""The verbs that start due runs: ``schedule tick`` and ``schedule daemon``.

Cron runs ``tick`` every minute, so this module imports less than ``schedule.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from typing import TYPE_CHECKING

import typer

from zeusrun.clock import read_clock
from zeusrun.errors import ExitCode, ZeusrunError
from zeusrun.files.home import shared_directory, trusted_home
from zeusrun.plain_text import plain_text
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.tick import run_daemon, start_due

if TYPE_CHECKING:
    from pathlib import Path


def daemon() -> None:
    """Run all schedules in the foreground, without cron."""
    home = trusted_home(os.environ)
    schedules = Schedules(home)
    count = len(schedules.jobs())
    jobs = "1 job" if count == 1 else f"{count} jobs"
    _print_line(f"{jobs} scheduled; due runs are started every minute")
    ended_by = run_daemon(schedules, _print_line, partial(_deliver_waiting, home))
    raise typer.Exit(0 if ended_by == signal.SIGTERM else ExitCode.SIGNAL_BASE + ended_by)


def tick() -> None:
    """Start the runs that are due. Cron calls this every minute."""
    home = trusted_home(os.environ)
    start_due(Schedules(home), read_clock(), _print_line)
    _deliver_waiting(home)


def _deliver_waiting(home: Path) -> None:
    """Deliver what waits for shared histories; what fails is tried again by the next call."""
    if not shared_directory(home).is_dir():
        return
    from zeusrun.history.registry import known_servers, open_named  # noqa: PLC0415 - few need them
    from zeusrun.history.shared.spool import Spool  # noqa: PLC0415 - see above

    for url, folder in known_servers(home).items():
        if Spool(folder / "spool"):
            with contextlib.suppress(ZeusrunError, ValueError):
                open_named(home, os.environ, url, show=_print_line).deliver()


def _print_line(text: str) -> None:
    typer.echo(plain_text(f"zeusrun: {text}"))
