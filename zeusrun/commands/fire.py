"""The verb ``schedule fire``, with which a tick starts a run that is due."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from zeusrun.commands.submit import run_job
from zeusrun.errors import UsageError
from zeusrun.files.home import trusted_home
from zeusrun.jobfile.spec import load_spec
from zeusrun.launcher.queue.admission import Request
from zeusrun.schedule.deferral import decide_start
from zeusrun.schedule.occurrence import fire as run_occurrence
from zeusrun.schedule.occurrence import taken
from zeusrun.schedule.store import Schedules

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.schedule.due import PlannedStart
    from zeusrun.schedule.store import Schedule


def fire(job: str, occurrence: float, lock: int) -> None:
    """Run an occurrence that a tick found due; ``lock`` is the descriptor of its lock."""

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

    home = trusted_home(os.environ)

    def plan(schedule: Schedule, now: float) -> PlannedStart:
        return decide_start(schedule, occurrence, now, home, os.environ)

    schedules = Schedules(home)
    held = taken(schedules, job, occurrence, lock)
    raise typer.Exit(run_occurrence(schedules, job, occurrence, held, run, plan=plan))
