"""The verbs that start what is due: ``schedule tick`` and ``schedule daemon``.

They are apart from ``schedule.py`` because cron runs ``tick`` every minute: it imports little.
"""

from __future__ import annotations

import os
import signal

import typer

from zeusrun.clock import read_clock
from zeusrun.errors import ExitCode
from zeusrun.files.home import trusted_home
from zeusrun.plain_text import plain_text
from zeusrun.schedule.daemon import run_daemon
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.tick import start_due


def daemon() -> None:
    """Run all schedules in the foreground, where there is no cron."""
    schedules = Schedules(trusted_home(os.environ))
    count = len(schedules.jobs())
    _tell(f"{count} job{'' if count == 1 else 's'} looked after, every minute")
    ended_by = run_daemon(schedules, _tell)
    raise typer.Exit(0 if ended_by == signal.SIGTERM else ExitCode.SIGNAL_BASE + ended_by)


def tick() -> None:
    """Start what is due; what cron runs every minute."""
    start_due(Schedules(trusted_home(os.environ)), read_clock(), _tell)


def _tell(text: str) -> None:
    typer.echo(plain_text(f"zeusrun: {text}"))
