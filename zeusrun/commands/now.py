"""What ``status`` shows: runs, waiting submits and schedules, as they are now."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from zeusrun.commands import options
from zeusrun.errors import HistoryError, ZeusrunError
from zeusrun.history.base import UnavailableError
from zeusrun.launcher.queue.tickets import read_waiting
from zeusrun.maintenance.running import read_running
from zeusrun.run_on.registry import describe_job, read_jobs

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.launcher.queue.tickets import Ticket
    from zeusrun.launcher.rundir.layout import Live
    from zeusrun.schedule.store import Schedule


class Now(NamedTuple):
    """What goes on, and why some of it cannot be read: a history, or ``faults`` of schedules."""

    found: list[Live]
    waiting: list[Ticket]
    schedules: list[Schedule]
    problem: HistoryError | None
    faults: list[str]

    @property
    def deferred(self) -> dict[str, str]:
        """The jobs whose start a schedule has deferred, each with its start."""
        starts = {each.job: each.describe_start() for each in self.schedules}
        return {job: start for job, start in starts.items() if start is not None}

    def describe_queue(self) -> dict[str, str]:
        """Ask the schedulers where the waiting submits are; see ``status_table``."""
        asked = [ticket.allocation for ticket in self.waiting if ticket.allocation]
        jobs = read_jobs(asked)
        return {name: describe_job(name, jobs.get(name)) for name in asked}


def read_now(home: Path, store: History, job: str | None) -> Now:
    """Read what goes on, of one job or of all."""
    job = None if job is None else options.known_job(store, options.job_name(job))
    names = store.jobs() if job is None else [job]
    by_job, damage = options.read_each(names, lambda name: read_running(store, home, [name]))
    found = [running for of_job in by_job.values() for running in of_job]
    waiting = read_waiting(home, job, (running.trial for running in found))
    if damage is not None and job is None:
        missing, advice = ", ".join(name for name in names if name not in by_job), ""
        if isinstance(damage, UnavailableError):
            advice = ". Start that server, or give the job another 'history' and submit it"
        damage = HistoryError(f"{damage}; what runs of {missing} is not shown{advice}")
    schedules, faults = _read_schedules(home, job)
    return Now(found, waiting, schedules, damage, faults)


def _read_schedules(home: Path, job: str | None) -> tuple[list[Schedule], list[str]]:
    """Return the schedules of one job or of all, and what is wrong with others."""
    found: list[Schedule] = []
    faults: list[str] = []
    if not (home / "schedules").is_dir():
        return found, faults
    from zeusrun.schedule.store import Schedules  # noqa: PLC0415 - few have a schedule

    schedules = Schedules(home)
    for name in schedules.jobs() if job is None else {job}.intersection(schedules.jobs()):
        try:
            found.append(schedules.read(name))
        except ZeusrunError as error:  # `schedule list` shows it, too
            faults.append(str(error))
    return found, faults
