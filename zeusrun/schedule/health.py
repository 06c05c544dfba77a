"""Whether cron or the daemon runs the schedules, and whether the jobs can run."""

from __future__ import annotations

import shlex
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.errors import JobFileError, LaunchError
from zeusrun.jobfile.yaml_reader import read_job_file
from zeusrun.schedule.crontab import marker, read_crontab

if TYPE_CHECKING:
    from zeusrun.schedule.store import Schedule, Schedules

_LATE_S = 180.0
_DAEMONS = {"cron", "crond", "fcron", "anacron", "busybox"}
_OTHERWISE = "or run `zeusrun schedule daemon`"


def find_difference(schedule: Schedule) -> str | None:
    """Return how the job file, read as plain YAML, differs from the schedule; ``None`` if not.

    Raises:
        JobFileError: If the job cannot run: no such file, no YAML, or it describes another job.
    """
    job, path = schedule.job, Path(schedule.job_file)
    remove = f"`zeusrun schedule remove {job}`"
    if not path.exists():
        raise JobFileError(
            f"{path}: there is no such file; if you moved it, `zeusrun schedule add` it again, or "
            f"{remove}"
        )
    data = read_job_file(path, ()).data
    if data.get("name") != job:
        raise JobFileError(
            f"{path} describes {data.get('name')} now; run {remove} and add it again"
        )
    if (data.get("schedule") or {}) == schedule.section:
        return None  # any other difference comes from flags
    return (
        f"{job}: the schedule section of {path} has changed since; to apply that: "
        f"zeusrun schedule add {shlex.quote(str(path))}"
    )


def find_neglect(schedules: Schedules, now: float) -> tuple[str, str] | None:
    """Return why the schedules do not run, and what to do; ``None`` if they run or will run."""
    try:
        ticked: float | None = schedules.heartbeat.stat().st_mtime
    except OSError:
        ticked = None
    if ticked is not None and abs(now - ticked) < _LATE_S:
        return None
    since = "" if ticked is None else f" since {datetime.fromtimestamp(ticked):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - for people, here
    nothing = f"nothing starts scheduled jobs{since}"
    try:
        has_entry = marker(schedules.directory.parent) in read_crontab()
    except LaunchError as error:
        what, _, advice = str(error).partition("; ")
        return f"{nothing}: {what}", advice or f"repair that, {_OTHERWISE}"
    if not has_entry:
        what = "the crontab has no entry of zeusrun"
        return f"{nothing}: {what}", f"`zeusrun schedule add JOB.yaml` adds it, {_OTHERWISE}"
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    if not names & _DAEMONS:
        what = "the crontab has the entry, but no cron daemon runs here"
        return f"{nothing}: {what}", f"start it (`service cron start`), {_OTHERWISE}"
    if ticked is None:
        return None  # cron reads its tables once a minute
    return f"nothing has started scheduled jobs{since}, though cron runs", "see the log of cron"
