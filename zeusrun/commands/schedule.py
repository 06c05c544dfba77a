"""The verbs of ``zeusrun schedule``."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from zeusrun.clock import read_clock
from zeusrun.commands.options import AsJson, JobFile, console, job_name, read_each
from zeusrun.errors import JobFileError, LaunchError, UsageError
from zeusrun.files.home import trusted_home
from zeusrun.schedule.build import build_schedule, find_difference
from zeusrun.schedule.crontab import add_entry, build_command, find_neglect, remove_entry
from zeusrun.schedule.due import Cursor
from zeusrun.schedule.store import Schedules
from zeusrun.schedule.tick import environment_of
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
_CRONTAB_LOCK = (".crontab.lock", "the crontab")
_FIRST = "%A %d %B %Y at %H:%M"
_MOMENT = "%a %Y-%m-%d %H:%M %z"


def add(
    job: JobFile,
    when: Annotated[
        list[str] | None,
        Argument(
            metavar="WHEN",
            help='A cron expression ("0 2 * * *") or a macro (@daily); by default '
            "schedule.cron of the job file, whose schedule section has all other rules.",
        ),
    ] = None,
    *,
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
    from zeusrun.jobfile.tariffs import load_tariffs  # noqa: PLC0415 - as above

    if when and len(when) > 1:  # a shell has put files in the place of each *
        raise UsageError('put WHEN in quotes, such as "0 2 * * *"')
    spec = load_spec(job)
    expression, now = when[0] if when else None, read_clock()
    schedules = _schedules()
    home = schedules.directory.parent
    # Without it, zeusrun could not be imported.
    needed = [f"{name}={os.environ[name]}" for name in ("PYTHONPATH",) if name in os.environ]
    command = build_command(sys.executable, home, needed) if cron else None
    load_tariffs(spec)  # raises if a file of rates is wrong
    notes: list[str] = []
    with schedules.hold(spec.name) as known:
        schedule = build_schedule(
            spec, expression, os.environ, names=keep_env or [], known=known, now=now
        )
        if schedule.rules.may_defer:
            from zeusrun.schedule.deferral import check_outlook  # noqa: PLC0415 - imports numpy

            notes += check_outlook(spec, schedule.rules)
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
        rules = describe_rules(schedule)
        sentence = f"{schedule.job} runs {schedule.rules.timetable.describe()}; the next time is "
        console().print(sentence + _first(schedule, _FIRST) + (f" ({rules})" if rules else ""))
    _warn(notes, stderr=as_json)


def _first(schedule: Schedule, form: str) -> str:
    timetable = schedule.rules.timetable
    return format(timetable.local(next(timetable.following(read_clock()))), form)


def list_(*, as_json: AsJson = False) -> None:
    """Show all schedules: the next times and the last outcome."""
    schedules = _schedules()
    by_job, damage = read_each(schedules.jobs(), schedules.read)
    found = list(by_job.values())
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

    schedule = _schedules().update(job, change)
    typer.echo(f"{job} is resumed; its next run is {_first(schedule, _MOMENT)}")


def remove(job: Job) -> None:
    """Remove a schedule; the history and the log stay."""
    schedules = _schedules()
    schedules.remove(job)
    typer.echo(f"{job} is no longer scheduled")
    with schedules.locked(*_CRONTAB_LOCK):
        if not schedules.jobs():
            remove_entry(schedules.directory.parent)


def run_now(job: Job) -> None:
    """Submit a scheduled job now, as its schedule would."""
    schedules = _schedules()
    schedule = schedules.read(job)
    argv = [schedule.python, "-m", "zeusrun", "submit", schedule.job_file, "--wait"]
    argv += ["--overlap", schedule.overlap]
    environment = environment_of(schedules, schedule)
    terminal = ("TERM", "COLUMNS", "COLORTERM", "NO_COLOR")  # the output goes to this terminal
    environment |= {name: os.environ[name] for name in terminal if name in os.environ}
    try:
        os.execve(argv[0], argv, environment)  # noqa: S606 - an argument vector, never a shell
    except OSError as error:
        raise LaunchError(
            f"{argv[0]} cannot be started: {error.strerror}; `zeusrun schedule add "
            f"{shlex.quote(schedule.job_file)}` with a zeusrun that works sets it up again"
        ) from error


def _warn(texts: Sequence[str], *, stderr: bool = False) -> None:
    if texts:
        console(stderr=stderr).print(warning_lines(texts))


def _schedules() -> Schedules:
    return Schedules(trusted_home(os.environ))


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
        return list(filter(None, [find_difference(schedule)]))
    except JobFileError as error:
        return [f"{schedule.job} cannot run: {error}"]


def _check_cron(schedules: Schedules) -> list[str]:
    neglect = find_neglect(schedules, read_clock())
    return [] if neglect is None else ["; ".join(neglect)]
