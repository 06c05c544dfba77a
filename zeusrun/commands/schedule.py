"""The verbs of ``zeusrun schedule``."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.clock import read_clock
from zeusrun.commands.options import AsJson, JobFile, console, job_name
from zeusrun.errors import HistoryError, JobFileError, LaunchError, UsageError
from zeusrun.files.home import trusted_home
from zeusrun.jobfile.validators import CatchUp, Overlap, StartBy
from zeusrun.launcher.processes.programs import run_foreground
from zeusrun.schedule.build import build_schedule
from zeusrun.schedule.crontab import add_entry, build_command, remove_entry
from zeusrun.schedule.due import Cursor
from zeusrun.schedule.health import find_difference, find_neglect
from zeusrun.schedule.occurrence import environment_of, fire_command
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.systemd import systemd_units
from zeusrun.view.console import warning_lines
from zeusrun.view.export import print_json
from zeusrun.view.schedule import describe_rules, schedule_json, schedules_sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.schedule.store import Schedule

Job = Annotated[
    str,
    Argument(
        metavar="JOB", help="The name of a scheduled job, or its job file.", callback=job_name
    ),
]
OverlapRule = Annotated[
    Overlap | None,
    Option(
        "--overlap",
        help="If the job is already running: forbid (the default) skips this run, queue waits for "
        "its end, replace ends it first, allow starts a second run.",
    ),
]
CatchUpRule = Annotated[
    CatchUp | None,
    Option(
        "--catch-up", help="Runs missed while the machine was off: run none, or the newest once."
    ),
]
StartRule = Annotated[
    StartBy | None,
    Option("--by", help="Choose the start by the price of power, by its carbon, or start now."),
]
_CRONTAB_LOCK = (".crontab.lock", "the crontab")
Folder = Annotated[Path | None, Option(help="Write files to this folder instead of printing.")]

_FIRST = "%A %d %B %Y at %H:%M"
_MOMENT = "%a %Y-%m-%d %H:%M %z"


def add(
    job: JobFile,
    when: Annotated[
        list[str] | None,
        Argument(
            metavar="WHEN",
            help='A cron expression ("0 2 * * *"), a macro (@daily), or @every 6h; by default '
            "schedule.cron of the job file.",
        ),
    ] = None,
    *,
    tz: Annotated[
        str | None, Option(help="Time zone, such as Europe/Paris; 'local' means the machine's.")
    ] = None,
    overlap: OverlapRule = None,
    catch_up: CatchUpRule = None,
    jitter: Annotated[
        str | None, Option(help="Delay each start by up to this time, such as 5m; or none.")
    ] = None,
    deadline: Annotated[
        str | None, Option(help="Skip a run that cannot start within this time: 2h; or none.")
    ] = None,
    start_within: Annotated[
        str | None,
        Option(help="Start within this time, when power is cheapest or cleanest: 6h; or none."),
    ] = None,
    finish_by: Annotated[
        str | None, Option(help="With --start-within: end by this time of day, 07:30; or none.")
    ] = None,
    by: StartRule = None,
    keep_env: Annotated[
        list[str] | None, Option("--env", metavar="NAME", help="Also keep this variable for runs.")
    ] = None,
    cron: Annotated[
        bool, Option("--cron/--no-cron", help="Add an entry to the user's crontab.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Schedule a job, or change its schedule."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - pydantic, which `list` does not need
    from zeusrun.jobfile.tariffs import find_expired, load_tariffs  # noqa: PLC0415 - as above

    if when and len(when) > 1:  # a shell has put files in the place of each *
        raise UsageError('put WHEN in quotes, such as "0 2 * * *" or "@every 6h"')
    spec = load_spec(job)
    schedules = _schedules()
    home = schedules.directory.parent
    command = build_command(sys.executable, home, _needed()) if cron else None
    flags = {"cron": when[0] if when else None, "tz": tz, "overlap": overlap}
    flags |= {"catch_up": catch_up, "jitter": jitter, "deadline": deadline}
    flags |= {"start_within": start_within, "finish_by": finish_by, "by": by}
    given = {name: str(value) for name, value in flags.items() if value is not None}
    names, now = keep_env or [], read_clock()
    notes = find_expired(spec, load_tariffs(spec, home))
    with schedules.hold(spec.name) as known:
        schedule = build_schedule(spec, given, os.environ, names=names, known=known, now=now)
        if schedule.rules.may_defer:
            from zeusrun.schedule.deferral import check_outlook  # noqa: PLC0415 - imports numpy

            notes += check_outlook(spec, schedule.rules, home)
        schedules.write(schedule)
    if known is not None and known.job_file != schedule.job_file:
        notes.append(f"it was {known.job_file} before")
    if schedule.paused:
        notes.append(f"it is paused: `zeusrun schedule resume {schedule.job}`")
    if command is not None:
        notes += _install(schedules, command)
    elif _check_cron(schedules):
        notes.append(
            "nothing starts it: run `zeusrun schedule daemon`, or add it without --no-cron"
        )
    if as_json:
        print_json(schedule_json(schedule, read_clock()))
    else:
        timetable, rules = schedule.rules.timetable, describe_rules(schedule)
        first = timetable.local(next(timetable.following(read_clock())))
        said = f"{schedule.job} runs {timetable.describe()}; the next time is {first:{_FIRST}}"
        console().print(said + (f" ({rules})" if rules else ""))
    _warn(notes, stderr=as_json)


def list_(*, as_json: AsJson = False) -> None:
    """Show all schedules: the next times and the last outcome."""
    schedules = _schedules()
    found, damage = [], None
    for job in schedules.jobs():
        try:
            found.append(schedules.read(job))
        except HistoryError as error:  # still show the other schedules
            damage = damage or error
    if as_json:
        print_json([schedule_json(schedule, read_clock()) for schedule in found])
    elif found:
        console().print(schedules_sheet(found, read_clock()))
        warnings = [text for each in found for text in _check_file(each)] + _check_cron(schedules)
        typer.echo("\n" if warnings else "", nl=False)
        _warn(warnings)
    elif damage is None:
        typer.echo('nothing is scheduled; start with: zeusrun schedule add JOB.yaml "0 2 * * *"')
    if damage is not None:
        raise damage


def next_(
    job: Job,
    *,
    count: Annotated[
        int, Option("--count", "-n", metavar="N", min=1, max=1000, help="How many times.")
    ] = 10,
    as_json: AsJson = False,
) -> None:
    """Show when a job runs next."""
    schedule = _schedules().read(job)
    timetable = schedule.rules.timetable
    moments = list(itertools.islice(timetable.following(read_clock()), count))
    if as_json:
        print_json([timetable.local(moment).isoformat() for moment in moments])
        return
    for moment in moments:
        typer.echo(f"{timetable.local(moment):{_MOMENT}}")
    if schedule.paused:
        typer.echo(f"{job} is paused: `zeusrun schedule resume {job}`", err=True)


def pause(job: Job) -> None:
    """Pause a schedule; a run that has started continues."""
    why, now = "the schedule was paused", read_clock()
    _schedules().update(job, lambda found: replace(found.skip_pending(now, why), paused=True))
    typer.echo(f"{job} is paused")


def resume(job: Job) -> None:
    """Resume a paused schedule from its next time on."""

    def change(found: Schedule) -> Schedule:
        cursor = Cursor(read_clock()) if found.paused else found.cursor
        return replace(found, paused=False, cursor=cursor)

    timetable = _schedules().update(job, change).rules.timetable
    first = timetable.local(next(timetable.following(read_clock())))
    typer.echo(f"{job} is resumed; its next run is {first:{_MOMENT}}")


def remove(job: Job) -> None:
    """Remove a schedule; the history and the log stay."""
    schedules = _schedules()
    schedules.remove(job)
    typer.echo(f"{job} is no longer scheduled")
    with schedules.locked(*_CRONTAB_LOCK):
        if not schedules.jobs():
            remove_entry(schedules.directory.parent)


def run_now(job: Job) -> None:
    """Run a scheduled job now, in the foreground."""
    schedules = _schedules()
    schedule = schedules.read(job)
    argv = fire_command(schedule, read_clock(), "--by-hand")
    environment = environment_of(schedules, schedule)
    terminal = ("TERM", "COLUMNS", "COLORTERM", "NO_COLOR")  # the output goes to this terminal
    environment |= {name: os.environ[name] for name in terminal if name in os.environ}
    try:
        ended = run_foreground(argv, environment, nullcontext())
    except OSError as error:
        raise LaunchError(
            f"{argv[0]} cannot be started: {error.strerror}; `zeusrun schedule add "
            f"{shlex.quote(schedule.job_file)}` with a zeusrun that works sets it up again"
        ) from error
    raise typer.Exit(ended.code)


def export(
    *,
    systemd: Annotated[
        bool, Option("--systemd", help="Print user units that run all schedules.")
    ] = False,
    to: Folder = None,
) -> None:
    """Print the schedules as systemd units."""
    if not systemd:
        raise UsageError("say what to export: --systemd")
    files = systemd_units(sys.executable, _schedules().directory.parent, _needed())
    if to is None:
        for name, text in files.items():
            typer.echo(f"# {name}\n{text}")
        return
    try:
        to.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (to / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"--to {to}: cannot be written: {error.strerror}") from error
    enable = "systemctl --user enable --now zeusrun-schedule.timer && loginctl enable-linger"
    typer.echo(f"written to {to}; now: {enable}")


def _warn(texts: Sequence[str], *, stderr: bool = False) -> None:
    if texts:
        console(stderr=stderr).print(warning_lines(texts))


def _schedules() -> Schedules:
    return Schedules(trusted_home(os.environ))


def _needed() -> list[str]:
    """Return the environment variables without which zeusrun cannot be imported."""
    return [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []


def _install(schedules: Schedules, command: str) -> list[str]:
    """Add the crontab entry; return warnings for the user."""
    try:
        with schedules.locked(*_CRONTAB_LOCK):
            add_entry(schedules.directory.parent, command)
    except LaunchError as error:
        advice = "" if "; " in str(error) else "; repair that, or run `zeusrun schedule daemon`"
        return [f"{error}{advice}"]
    return _check_cron(schedules)


def _check_file(schedule: Schedule) -> list[str]:
    try:
        difference = find_difference(schedule)
    except JobFileError as error:
        return [f"{schedule.job} cannot run: {error}"]
    return [] if difference is None else [difference]


def _check_cron(schedules: Schedules) -> list[str]:
    neglect = find_neglect(schedules, read_clock())
    return [] if neglect is None else ["; ".join(neglect)]
