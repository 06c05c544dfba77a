"""Whether cron, systemd or the daemon runs the schedules, and whether the jobs can run."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from zeusrun.errors import LaunchError, ZeusrunError
from zeusrun.jobfile.spec import load_spec
from zeusrun.schedule.build import find_difference
from zeusrun.schedule.crontab import marker, read_crontab

if TYPE_CHECKING:
    from zeusrun.schedule.store import Schedules

_LATE_S = 180.0
_DAEMONS = {"cron", "crond", "fcron", "anacron", "busybox"}
_OTHERWISE = "or run `zeusrun schedule daemon`"


@dataclass(frozen=True)
class ScheduleProblem:
    """A problem with the job of a schedule.

    Attributes:
        text: A sentence for people.
        stops: Whether the job cannot run.
    """

    text: str
    stops: bool


def check_job(schedules: Schedules, job: str, now: float) -> ScheduleProblem | None:
    """Return what keeps a job from running, or how its file differs from the schedule.

    Args:
        schedules: Schedules of the user.
        job: Name of the job.
        now: Unix seconds.
    """
    schedule = None
    try:
        schedule = schedules.read(job)
        spec = load_spec(Path(schedule.job_file))
    except ZeusrunError as error:
        gone = schedule is not None and not Path(schedule.job_file).exists()
        moved = f"; if you moved it, `zeusrun schedule add` it again, or `remove {job}`" * gone
        return ScheduleProblem(f"{job} cannot run: {error}{moved}", stops=True)
    difference = find_difference(schedule, spec, now)
    return (
        None
        if difference is None
        else ScheduleProblem(f"{job}: {difference}", stops=spec.name != job)
    )


def has_mail_program() -> bool:
    """Whether cron can send mail: every mail program provides a ``sendmail``."""
    return shutil.which("sendmail", path=f"/usr/sbin:/usr/lib:{os.defpath}") is not None


def find_neglect(schedules: Schedules, now: float) -> tuple[str, str] | None:
    """Return why the schedules do not run, and what to do about it.

    ``None`` if there was a tick lately, or cron will run one.

    Args:
        schedules: Schedules of the user.
        now: Unix seconds.
    """
    try:
        ticked: float | None = schedules.heartbeat.stat().st_mtime
    except OSError:
        ticked = None
    if ticked is not None and abs(now - ticked) < _LATE_S:
        return None
    since = "" if ticked is None else f" since {datetime.fromtimestamp(ticked):%Y-%m-%d %H:%M}"  # noqa: DTZ006 - for people, here
    nothing = f"nothing starts these jobs{since}"
    try:
        has_entry = marker(schedules.directory.parent) in read_crontab()
    except LaunchError as error:
        what, _, advice = str(error).partition("; ")
        return f"{nothing}: {what}", advice or f"repair that, {_OTHERWISE}"
    if not has_entry:
        return (
            f"{nothing}: the crontab has no entry of zeusrun",
            f"`zeusrun schedule add` adds it, {_OTHERWISE}",
        )
    names = {process.info["name"] for process in psutil.process_iter(["name"])}
    if not names & _DAEMONS:
        return (
            f"{nothing}: the crontab has the entry, but no cron daemon runs here",
            f"start it (`service cron start`), {_OTHERWISE}",
        )
    if ticked is None:
        return None  # cron reads its tables once a minute
    return f"nothing has started these jobs{since}, though cron runs", "see the log of cron"
