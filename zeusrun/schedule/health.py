"""Whether anybody looks after the schedules: cron, systemd, or the daemon."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.errors import LaunchError, ZeusrunError
from zeusrun.launcher.doctor import Check
from zeusrun.schedule.build import find_difference
from zeusrun.schedule.crontab import marker, read_crontab
from zeusrun.spec import load_spec

if TYPE_CHECKING:
    from zeusrun.schedule.store import Schedule, Schedules

_LATE_S = 180.0
_DAEMONS = {"cron", "crond", "fcron", "anacron", "busybox"}
_OTHERWISE = "or run `zeusrun schedule daemon`"


def check_schedules(schedules: Schedules, now: float) -> list[Check]:
    """Return what ``doctor`` says of them; nothing where no job is scheduled.

    Args:
        schedules: Of the user.
        now: Unix seconds.
    """
    jobs = schedules.jobs()
    if not jobs:
        return []
    count = "1 job runs by itself" if len(jobs) == 1 else f"{len(jobs)} jobs run by themselves"
    neglect = find_neglect(schedules, now)
    if neglect is None:
        return [Check("schedules", well=True, found=f"{count}, looked after every minute")]
    what, _, advice = neglect.rpartition("; ")
    return [Check("schedules", well=False, found=f"{count}; {what}", advice=advice)]


def check_job_file(schedule: Schedule, now: float) -> str | None:
    """Return what is wrong with the job file of a schedule, or says otherwise; ``None`` if nothing.

    Args:
        schedule: Of the user.
        now: Unix seconds.
    """
    try:
        spec = load_spec(Path(schedule.job_file))
    except ZeusrunError as error:
        return f"{schedule.job} cannot run: {error}"
    difference = find_difference(schedule, spec, now)
    return None if difference is None else f"{schedule.job}: {difference}"


def find_neglect(schedules: Schedules, now: float) -> str | None:
    """Return why nothing may be started; ``None`` if a tick came lately, or cron will see to it.

    Args:
        schedules: Of the user.
        now: Unix seconds.
    """
    try:
        ticked: float | None = schedules.heartbeat.stat().st_mtime
    except OSError:
        ticked = None
    if ticked is not None and now - ticked < _LATE_S:
        return None
    since = "" if ticked is None else f" since {datetime.fromtimestamp(ticked):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - for people, here
    try:
        has_entry = marker(schedules.directory.parent) in read_crontab()
    except LaunchError as error:
        return f"nothing starts these jobs{since}: {error}"
    if not has_entry:
        return (
            f"nothing starts these jobs{since}: the crontab has no entry of zeusrun's; `zeusrun "
            f"schedule add` puts it there, {_OTHERWISE}"
        )
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    if not names & _DAEMONS:
        return (
            f"nothing starts these jobs{since}: the crontab has the entry, but no cron daemon runs "
            f"here; start it (`service cron start`), {_OTHERWISE}"
        )
    if ticked is None:
        return None  # cron looks at its tables once a minute
    return f"nothing has started these jobs{since}, though cron runs: see its log"
