"""The ``zeusrun`` command: parse, call, show, exit code. The only exit."""

from __future__ import annotations

import contextlib
import gc
import io
import itertools
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn, Optional

import typer

from zeusrun.clock import read_clock
from zeusrun.commands.gpu import MEASURE_SETTINGS, gpu_app, measure
from zeusrun.commands.runs import (
    AsJson,
    TrialName,
    cancel,
    console,
    find_trial,
    logs,
    open_history,
    prune,
    repair,
    status,
    unknown_job,
)
from zeusrun.commands.schedule import schedule_app
from zeusrun.commands.simulate import simulate
from zeusrun.commands.submit import JobFile, Overrides, compose, job_file, job_name, rerun, submit
from zeusrun.errors import (
    ExitCode,
    HistoryError,
    JobFileError,
    UsageError,
    ZeusrunError,
    describe_shortage,
)
from zeusrun.history.base import NEWEST
from zeusrun.plain_text import plain_text
from zeusrun.view.export import print_csv, print_json, trial_records

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.history.base import History
    from zeusrun.maintenance.doctor import Check
    from zeusrun.maintenance.running import RunningTrial
    from zeusrun.trial import Trial

# What a command imports and reads stays; Python's own 700 would look through it all for a tenth
# of the start.
_OBJECTS = 200_000

app = typer.Typer(
    name="zeusrun",
    help="A torchrun that learns: every run of a recurring training job picks the batch size "
    "that reaches the target for the least energy and time.",
    no_args_is_help=True,
    context_settings={"max_content_width": 100},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

app.command()(submit)
app.command()(rerun)


@app.command()
def history(
    job: Annotated[str | None, typer.Argument(help="A job's name; all jobs if left out.")] = None,
    *,
    last: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--last", min=1, help="Only the last so many trials of each job."),
    ] = None,
    as_json: AsJson = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print CSV.")] = False,
    forget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--forget", metavar="TRIAL", help="Keep a bad run; learn nothing from it."),
    ] = None,
    unforget: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--unforget", metavar="TRIAL", help="Learn from a forgotten run again."),
    ] = None,
) -> None:
    """Show what was run, what it cost, and what it saved."""
    from zeusrun.maintenance.running import read_running  # noqa: PLC0415

    store = open_history()
    if forget is not None or unforget is not None:
        if job:
            option = "--forget" if forget else "--unforget"
            raise UsageError(f"{option} takes one trial: name {job!r} in a command of its own")
        if (forget and unforget) or last or as_csv:
            raise UsageError("--forget and --unforget go alone, or with --json")
        _mark(store, forget or unforget or "", forgotten=forget is not None, as_json=as_json)
        return
    names = [job_name(job)] if job else store.jobs()
    if as_json and as_csv:
        raise UsageError("--json and --csv exclude each other; choose one")
    by_job: dict[str, list[Trial]] = {}
    counts: dict[str, int] = {}
    running: list[RunningTrial] = []
    programs = as_json or as_csv
    # All that is asked for, and what it is compared with.
    read = None if programs and last is None else max(last or 0, NEWEST)
    damage: HistoryError | None = None
    for name in names if not job or names[0] in store.jobs() else []:
        try:
            # Before the history: what ends meanwhile is there with its outcome.
            running += [] if programs else read_running(store, [name])
            by_job[name] = store.trials(name, read)
            counts[name] = store.count(name)
        except HistoryError as error:  # the healthy ones are shown all the same
            damage = damage or error
    if job and damage is None and not by_job.get(names[0]):
        raise unknown_job(store, names[0])
    if programs:
        from zeusrun.analysis.savings import find_savings  # noqa: PLC0415

        found = (
            trial_records(trials[-last:] if last else trials, find_savings(trials))
            for trials in by_job.values()
        )
        records = sorted(itertools.chain(*found), key=lambda record: str(record["started_at"]))
        (print_json if as_json else print_csv)(records)
    else:
        _show_history(by_job, counts, running, last, empty=not names)
    if damage is not None:
        raise damage


def _mark(store: History, name: str, *, forgotten: bool, as_json: bool) -> None:
    """Have nothing learned from a trial from now on, or something again.

    Raises:
        UsageError: If there is no such trial, it has not ended, or it is not forgotten.
    """
    if name in store.jobs():
        raise UsageError(f"{name} is a job; name one of its trials, such as {name}-7-1")
    found = find_trial(name)
    if not forgotten and not found.forgotten:
        raise UsageError(f"{found.trial} is not forgotten: it is learned from")
    try:
        marked = store.forget(found.trial, forgotten=forgotten)
    except ValueError:  # a submit may have gone on with it just now
        raise UsageError(
            f"{found.trial} has not ended, and only then can it be forgotten; "
            f"'zeusrun cancel {found.trial}' ends it, or records it if its launcher is dead"
        ) from None
    if as_json:
        print_json(marked.to_json())
    elif forgotten:
        typer.echo(f"{found.trial} is forgotten: it is kept, and nothing is learned from it")
        typer.echo(f"to learn from it again: zeusrun history --unforget {found.trial}")
    else:
        typer.echo(f"{found.trial} is learned from again")


def _show_history(
    by_job: dict[str, list[Trial]],
    counts: dict[str, int],
    running: Sequence[RunningTrial],
    last: int | None,
    *,
    empty: bool,
) -> None:
    from zeusrun.view.tables import history_table  # noqa: PLC0415

    if empty:
        console().print("No runs yet. Start one with: zeusrun submit JOB.yaml", highlight=False)
    for number, (name, trials) in enumerate(by_job.items()):
        if number:
            typer.echo()
        rows, going = last or _DEFAULT_ROWS, {each.trial.trial: each for each in running}
        console().print(history_table(name, trials, rows, counts[name], going))


_DEFAULT_ROWS = 30


@app.command()
def show(trial: TrialName, *, as_json: AsJson = False) -> None:
    """Show everything about one trial."""
    from zeusrun.launcher.rundir.failure import read_traceback  # noqa: PLC0415
    from zeusrun.launcher.rundir.layout import RunPaths  # noqa: PLC0415
    from zeusrun.launcher.rundir.live import read_live  # noqa: PLC0415
    from zeusrun.launcher.rundir.lock import launcher_lives  # noqa: PLC0415
    from zeusrun.trial import TrialStatus  # noqa: PLC0415
    from zeusrun.view.tables import trial_sheet  # noqa: PLC0415

    found, alive = find_trial(trial), False
    if not found.status.finished:
        paths = RunPaths(Path(found.run_dir))
        live, alive = read_live(paths), launcher_lives(paths)
        found = find_trial(found.trial)  # it may have ended since, and then its launcher, too
        if found.status.finished:
            alive = False
        elif live is not None and live.trial.trial == found.trial:
            found = live.trial
    if as_json:
        print_json(found.to_json())
    else:
        failed = found.status in {TrialStatus.FAILED, TrialStatus.OOM}
        failure = read_traceback(RunPaths(Path(found.run_dir))) if failed else None
        there = RunPaths(Path(found.run_dir)).logs.is_dir()
        console().print(trial_sheet(found, failure, run_dir_exists=there, alive=alive))


@app.command()
def explain(
    job: Annotated[str, typer.Argument(metavar="JOB", help="A job file, or a job's name.")],
    *,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Show what the policy believes, and what it would choose next."""
    import numpy as np  # noqa: PLC0415

    from zeusrun.bandit.auto.evidence import tell_window  # noqa: PLC0415
    from zeusrun.bandit.power import best_limits  # noqa: PLC0415
    from zeusrun.bandit.reinterpret import read_history  # noqa: PLC0415
    from zeusrun.bandit.set_aside import kept  # noqa: PLC0415
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415
    from zeusrun.launcher.choose import build_problem  # noqa: PLC0415
    from zeusrun.view.tables import explain_table  # noqa: PLC0415

    submission = compose(load_spec(job_file(job), overrides or []), None)
    trials = submission.history.trials(submission.spec.name, NEWEST)
    problem = build_problem(submission, trials)
    told = kept(problem, trials)
    problem, runs = read_history(problem, trials)
    window = tell_window(problem, runs)
    told += [] if window is None else [window]
    rng = np.random.default_rng(submission.spec.policy.seed)
    beliefs = submission.policy.explain(problem, runs, rng)
    if as_json:
        print_json([vars(belief) for belief in beliefs])
    else:
        spec, objective = submission.spec, submission.spec.objective
        goal = f"{objective.metric} {objective.target:g}, eta_knob {objective.eta_knob:g}"
        title = f"{spec.name}: what {submission.policy.name} believes of {goal}"
        limits = best_limits(problem, runs)
        console().print(explain_table(title, beliefs, told, limits))


@app.command()
def validate(job: JobFile, *, overrides: Overrides = None) -> None:
    """Check a job file."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415
    from zeusrun.launcher.unused_choices import find_unused_choices  # noqa: PLC0415
    from zeusrun.schedule.build import build_schedule  # noqa: PLC0415

    spec = load_spec(job, overrides or [])
    if spec.schedule is not None:
        try:
            build_schedule(spec, {}, os.environ, names=(), known=None, now=read_clock())
        except UsageError as error:
            raise JobFileError(f"{job}: in 'schedule': {error}") from None
    arms = ", ".join(map(str, spec.batch_size.candidates))
    typer.echo(f"{job}: job '{spec.name}' is well-formed; batch sizes {arms}")
    for text in find_unused_choices(spec):
        typer.echo(plain_text(f"zeusrun: warning: {job}: {text}"), err=True)


@app.command()
def schema() -> None:
    """Print the JSON Schema of job files, for editors."""
    from zeusrun.jobfile.spec import spec_json_schema  # noqa: PLC0415

    print_json(spec_json_schema())


@app.command()
def doctor(*, as_json: AsJson = False) -> None:
    """Check Python, torch, devices and home; say what to do."""
    from zeusrun.maintenance.doctor import check_machine  # noqa: PLC0415
    from zeusrun.view.tables import doctor_sheet  # noqa: PLC0415

    checks = [*check_machine(os.environ), *_check_schedules()]
    if as_json:
        print_json([vars(check) for check in checks])
    else:
        console().print(doctor_sheet(checks))
    if any(check.well is False for check in checks):
        raise typer.Exit(ExitCode.LAUNCH)


def _check_schedules() -> list[Check]:
    """Look whether anybody starts what is scheduled, and whether it could run."""
    from zeusrun.files.home import trusted_home  # noqa: PLC0415
    from zeusrun.maintenance.doctor import Check  # noqa: PLC0415
    from zeusrun.schedule.health import check_job, find_neglect, has_mail_program  # noqa: PLC0415
    from zeusrun.schedule.store import Schedules  # noqa: PLC0415

    try:
        schedules, now = Schedules(trusted_home(os.environ)), read_clock()
    except HistoryError:
        return []  # the check of the home has said why
    jobs = schedules.jobs()
    if not jobs:
        return []
    found = [check_job(schedules, job, now) for job in jobs]
    checks = [Check("schedule", False if each.stops else None, each.text) for each in found if each]
    if not has_mail_program():
        advice = "add `notify` to the job file, or install a mail program such as msmtp-mta"
        what = "no mail program (sendmail): what cron would mail is lost"
        checks.append(Check("mail", well=None, found=what, advice=advice))
    count = "1 job runs by itself" if len(jobs) == 1 else f"{len(jobs)} jobs run by themselves"
    neglect = find_neglect(schedules, now)
    if neglect is None:
        return [Check("schedules", well=True, found=f"{count}, looked after every minute"), *checks]
    what, advice = neglect
    return [Check("schedules", well=False, found=f"{count}; {what}", advice=advice), *checks]


app.command()(simulate)
app.add_typer(gpu_app, name="gpu")
app.add_typer(schedule_app, name="schedule")
app.command(context_settings=MEASURE_SETTINGS)(measure)
app.command()(repair)
app.command("gc")(prune)
app.command()(status)
app.command()(cancel)
app.command()(logs)


def _version(wanted: bool) -> None:
    if wanted:
        from zeusrun import __version__  # noqa: PLC0415

        typer.echo(f"zeusrun {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


def main() -> NoReturn:
    """Run the command and exit; the one place where an error becomes words and a code."""
    gc.set_threshold(_OBJECTS)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that has no "✓" gets a "?"
    try:
        app()
    except ZeusrunError as error:
        _say(str(error))
        sys.exit(error.exit_code)
    except SystemExit as end:
        if not isinstance(end.__context__, BrokenPipeError):
            raise
        # 'zeusrun history | head': typer makes an exit with 1 of it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(ExitCode.REACHED)
    except Exception as error:  # noqa: BLE001 - a traceback is for us, not for a user
        shortage = describe_shortage(error)
        _say(shortage or _report_bug(error))
        sys.exit(ExitCode.LAUNCH if shortage else ExitCode.BUG)
    sys.exit(ExitCode.REACHED)


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # nobody reads it, or it goes to a disk that is full
        print(plain_text(f"zeusrun: {text}"), file=sys.stderr, flush=True)  # noqa: T201


def _report_bug(error: Exception) -> str:
    """Keep the traceback of a bug in a file; return what to say."""
    import tempfile  # noqa: PLC0415
    import traceback  # noqa: PLC0415

    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="zeusrun-bug-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(text)
        where = f"The traceback is in {file.name}; please report it."
    except OSError as problem:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = (
            f"Its traceback could not be written ({problem.strerror}); it ends in "
            f"{last.filename}:{last.lineno}. Please report it."
        )
    return (
        f"this is a bug in zeusrun: {type(error).__name__}: {error}. What had been recorded is "
        f"kept. {where}"
    )
