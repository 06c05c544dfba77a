"""``zeusrun schedule``: jobs that run at set times."""

from __future__ import annotations

import itertools
import os
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zeusrun.clock import read_clock
from zeusrun.commands.options import AsJson, JobFile, console, job_name
from zeusrun.errors import HistoryError, JobFileError, LaunchError, UsageError
from zeusrun.files.home import trusted_home
from zeusrun.jobfile.validators import CatchUp, Overlap
from zeusrun.launcher.processes.foreground import run_foreground
from zeusrun.plain_text import plain_text
from zeusrun.schedule.build import build_schedule
from zeusrun.schedule.crontab import add_entry, build_command, remove_entry
from zeusrun.schedule.due import Cursor
from zeusrun.schedule.health import find_difference, find_neglect
from zeusrun.schedule.occurrence import environment_of, fire_command
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.systemd import systemd_units
from zeusrun.view.export import print_json
from zeusrun.view.schedule import describe_rules, schedule_json, schedules_sheet
from zeusrun.view.tables import notes_sheet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.schedule.store import Schedule

Job = Annotated[
    str,
    typer.Argument(
        metavar="JOB", help="The name of a scheduled job, or its job file.", callback=job_name
    ),
]
OverlapRule = Annotated[
    Overlap | None,
    typer.Option(
        "--overlap",
        help="If the job is already running: forbid (the default) skips this run, queue waits for "
        "its end, replace ends it first, allow starts a second run.",
    ),
]
CatchUpRule = Annotated[
    CatchUp | None,
    typer.Option(
        "--catch-up", help="Runs missed while the machine was off: run none, or the newest once."
    ),
]
_CRONTAB_LOCK = (".crontab.lock", "the crontab")
Folder = Annotated[
    Path | None, typer.Option("--to", help="Write files to this folder instead of printing.")
]


def add(
    job: JobFile,
    when: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="WHEN",
            help='A cron expression ("0 2 * * *"), a macro (@daily), or @every 6h; by default '
            "schedule.cron of the job file.",
        ),
    ] = None,
    *,
    tz: Annotated[
        str | None,
        typer.Option("--tz", help="Time zone, such as Europe/Paris; 'local' means the machine's."),
    ] = None,
    overlap: OverlapRule = None,
    catch_up: CatchUpRule = None,
    jitter: Annotated[
        str | None,
        typer.Option(
            "--jitter", help="Start at random up to this much later, such as 5m; or none."
        ),
    ] = None,
    deadline: Annotated[
        str | None,
        typer.Option(
            "--deadline", help="Skip a run that cannot start within this time, such as 2h; or none."
        ),
    ] = None,
    keep_env: Annotated[
        list[str] | None,
        typer.Option(
            "--env", metavar="NAME", help="Also keep this environment variable for the runs."
        ),
    ] = None,
    cron: Annotated[
        bool, typer.Option("--cron/--no-cron", help="Add an entry to the user's crontab.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Schedule a job, or change its schedule."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - pydantic, which `list` does not need

    if when and len(when) > 1:  # a shell has put files in the place of each *
        raise UsageError('put WHEN in quotes, such as "0 2 * * *" or "@every 6h"')
    spec = load_spec(job)
    schedules = _schedules()
    command = _cron_command(schedules) if cron else None
    flags = {
        "cron": when[0] if when else None,
        "tz": tz,
        "overlap": overlap,
        "catch_up": catch_up,
        "jitter": jitter,
        "deadline": deadline,
    }
    given = {name: str(value) for name, value in flags.items() if value is not None}
    names, now = keep_env or [], read_clock()
    with schedules.hold(spec.name) as known:
        schedule = schedules.write(
            build_schedule(spec, given, os.environ, names=names, known=known, now=now)
        )
    notes = [] if command is None else _install(schedules, command)
    if as_json:
        print_json(schedule_json(schedule, read_clock()))
        for note in notes:
            typer.echo(plain_text(f"! {note}"), err=True)
        return
    first = schedule.rules.timetable.local(next(schedule.rules.timetable.following(read_clock())))
    rules = describe_rules(schedule)
    console().print(
        f"{schedule.job} runs {schedule.rules.timetable.describe()}; the next time is "
        f"{first:%A %d %B %Y at %H:%M}" + (f" ({rules})" if rules else ""),
        highlight=False,
    )
    changes = []
    if known is not None and known.job_file != schedule.job_file:
        changes.append(f"it was {known.job_file} before")
    if schedule.paused:
        changes.append(f"it is paused: `zeusrun schedule resume {schedule.job}`")
    _note([*changes, *notes])


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
        console().print(schedules_sheet(found, read_clock()), highlight=False)
    elif damage is None:
        typer.echo('nothing is scheduled; start with: zeusrun schedule add JOB.yaml "0 2 * * *"')
    if found and not as_json:
        _note([text for each in found for text in _check_file(each)] + _check_cron(schedules))
    if damage is not None:
        raise damage


def next_(
    job: Job,
    *,
    count: Annotated[int, typer.Option("--count", "-n", min=1, max=1000)] = 10,
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
        typer.echo(f"{timetable.local(moment):%a %Y-%m-%d %H:%M %z}")
    if schedule.paused:
        typer.echo(f"{job} is paused: `zeusrun schedule resume {job}`", err=True)


def pause(job: Job) -> None:
    """Pause a schedule; a run that has started continues."""
    now = read_clock()
    _schedules().update(job, lambda found: replace(found, paused=True, cursor=Cursor(now)))
    typer.echo(f"{job} is paused")


def resume(job: Job) -> None:
    """Resume a paused schedule from its next time on."""

    def change(found: Schedule) -> Schedule:
        cursor = Cursor(read_clock()) if found.paused else found.cursor
        return replace(found, paused=False, cursor=cursor)

    timetable = _schedules().update(job, change).rules.timetable
    first = timetable.local(next(timetable.following(read_clock())))
    typer.echo(f"{job} is resumed; its next run is {first:%a %Y-%m-%d %H:%M %z}")


def remove(job: Job) -> None:
    """Remove a schedule; the history and the log of the job stay."""
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
    environment = {**environment_of(schedules, schedule), **_terminal()}
    try:
        ended = run_foreground(argv, environment, nullcontext())
    except OSError as error:
        raise LaunchError(
            f"{argv[0]} cannot be started: {error.strerror}; `zeusrun schedule add "
            f"{schedule.job_file}` with a zeusrun that works sets it up again"
        ) from error
    raise typer.Exit(ended.code)


def export(
    _job: Annotated[str | None, typer.Argument(hidden=True)] = None,
    *,
    systemd: Annotated[
        bool, typer.Option("--systemd", help="Print user units that run all schedules.")
    ] = False,
    kubernetes: Annotated[bool, typer.Option("--kubernetes-cronjob", hidden=True)] = False,
    _image: Annotated[str | None, typer.Option("--image", hidden=True)] = None,
    _claim: Annotated[str | None, typer.Option("--claim", hidden=True)] = None,
    to: Folder = None,
) -> None:
    """Print the schedules as systemd units."""
    if kubernetes:
        raise UsageError(
            "--kubernetes-cronjob was removed and returns with the Kubernetes back end; until "
            "then, write a CronJob that runs `zeusrun submit`, or run `zeusrun schedule daemon`"
        )
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


def _note(texts: Sequence[str]) -> None:
    """Print warnings, one per line."""
    if texts:
        console().print(notes_sheet(texts), highlight=False)


def _schedules() -> Schedules:
    return Schedules(trusted_home(os.environ))


def _terminal() -> dict[str, str]:
    """Return the variables of this terminal: a run by hand prints to it."""
    names = ("TERM", "COLUMNS", "COLORTERM", "NO_COLOR")
    return {name: os.environ[name] for name in names if name in os.environ}


def _cron_command(schedules: Schedules) -> str:
    return build_command(sys.executable, schedules.directory.parent, _needed())


def _install(schedules: Schedules, command: str) -> list[str]:
    """Add the crontab entry; return warnings for the user."""
    try:
        with schedules.locked(*_CRONTAB_LOCK):
            add_entry(schedules.directory.parent, command)
    except LaunchError as error:
        advice = "" if "; " in str(error) else "; mend that, or run `zeusrun schedule daemon`"
        return [f"{error}{advice}"]
    return _check_cron(schedules)


def _needed() -> list[str]:
    """Return the environment variables without which zeusrun cannot be imported."""
    return [f"PYTHONPATH={os.environ['PYTHONPATH']}"] if "PYTHONPATH" in os.environ else []


def _check_file(schedule: Schedule) -> list[str]:
    try:
        difference = find_difference(schedule)
    except JobFileError as error:
        return [f"{schedule.job} cannot run: {error}"]
    return [] if difference is None else [difference]


def _check_cron(schedules: Schedules) -> list[str]:
    neglect = find_neglect(schedules, read_clock())
    return [] if neglect is None else ["; ".join(neglect)]
