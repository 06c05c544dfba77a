"""The verbs that start due runs: ``schedule tick`` and ``daemon``, and ``fire`` for each run.

Cron runs ``tick`` every minute, so this module imports less than ``schedule.py``.
"""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zeusrun.clock import read_clock
from zeusrun.errors import ExitCode, UsageError, ZeusrunError
from zeusrun.files.home import shared_directory, trusted_home
from zeusrun.plain_text import plain_text
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.tick import fire as run_occurrence
from zeusrun.schedule.tick import run_daemon, start_due, taken

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.schedule.store import Schedule


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


def fire(job: str, occurrence: float, lock: int) -> None:
    """Run an occurrence that a tick found due; ``lock`` is the descriptor of its lock."""
    from zeusrun.commands.submit import run_job  # noqa: PLC0415 - no tick needs these
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415
    from zeusrun.launcher.queue.admission import Request  # noqa: PLC0415

    def run(schedule: Schedule, begun: Callable[[], None]) -> int:
        spec = load_spec(Path(schedule.job_file))
        if spec.name != schedule.job:
            raise UsageError(
                f"{schedule.job_file}: now describes {spec.name}, but {schedule.job} is scheduled; "
                f"run `zeusrun schedule remove {schedule.job}`, then add it again"
            )
        deadline_s = schedule.rules.deadline_s
        until = None if deadline_s is None else occurrence + deadline_s

        def begins() -> None:
            begun()
            # A heading in the log; a skipped run gets none.
            when = schedule.rules.timetable.local(occurrence)
            start = next(e.start for e in schedule.firings if e.occurrence == occurrence)
            started = "" if start is None else f", started {start}"
            typer.echo(f"── {schedule.job}, run of {when:%Y-%m-%d %H:%M %z}{started} ──")

        request = Request(overlap=schedule.overlap, until=until, wait=True)
        return run_job(spec, request, begun=begins)

    schedules = Schedules(trusted_home(os.environ))
    held = taken(schedules, job, occurrence, lock)
    raise typer.Exit(run_occurrence(schedules, job, occurrence, held, run))
