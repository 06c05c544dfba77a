"""Flags, console, output files and history access that several verbs share."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer
from typer import Argument, Option

from zeusrun.errors import SHORTAGES, ExportError, HistoryError, UsageError, list_known
from zeusrun.files.home import trusted_home
from zeusrun.files.private import replace_file
from zeusrun.history import rules
from zeusrun.history.base import NEWEST
from zeusrun.history.registry import find_default, open_history, open_named, remember_choice
from zeusrun.launcher.rundir.ownership import files_of, newest_here
from zeusrun.plain_text import plain_text
from zeusrun.run_on.registry import GONE, check_exists, describe_job, is_job, read_jobs
from zeusrun.view.export import print_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rich.console import Console, RenderableType

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial

_Read = TypeVar("_Read")
AsJson = Annotated[bool, Option("--json", help="Print JSON, for programs.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print only problems; for cron.")]
DryRun = Annotated[bool, Option("--dry-run", help="Show what would be done; change nothing.")]
AnyJob = Annotated[str | None, Argument(metavar="JOB", help="Only this job; by default all.")]
TrialName = Annotated[
    str,
    Argument(
        metavar="TRIAL", help="A run, such as digits-7-1; the name of a job means its last run."
    ),
]
JobFile = Annotated[Path, Argument(metavar="JOB.yaml", help="The job file.")]
Overrides = Annotated[
    list[str] | None,
    Option("--set", metavar="KEY=VALUE", help="Override a key: objective.eta_knob=0.8."),
]


def tell(text: str) -> None:
    """Show a sentence on standard error."""
    typer.echo(plain_text(f"zeusrun: {text}"), err=True)


def open_home(*given: str | None, show: Callable[[str], None] = tell) -> tuple[Path, History]:
    """Return zeusrun's home directory, if only its owner can write to it, and its history.

    ``given`` is what the user named: the history of a job file is that which the file names.
    ``show`` shows a sentence, such as that a server does not respond.
    """
    home = trusted_home(os.environ)
    specs = [load_job(Path(each)) for each in given if each is not None and is_job_file(each)]
    chosen = {spec.name: spec.history.url for spec in specs if spec.history.url is not None}
    return home, open_history(home, os.environ, own=chosen, show=show)


def open_own(
    spec: JobSpec,
    *,
    show: Callable[[str], None] | None = None,
    pause: Callable[[float], None] | None = None,
) -> tuple[Path, History]:
    """Return the home and the history of a job; with ``pause``, with its patience for a submit."""
    home = trusted_home(os.environ)
    section, show = spec.history, show or tell
    name, source = (section.url, "") if section.url else find_default(home, os.environ)
    named = partial(open_named, home, os.environ, name, source=source, show=show)
    if pause is None:
        return home, named()
    remember_choice(home, spec.name, section.url)
    return home, named(wait_s=section.wait_s, offline=section.offline, pause=pause)


def known_job(store: History, name: str) -> str:
    """Return ``name`` if a job of that name has a history; raise ``UsageError`` if not."""
    jobs = store.jobs()
    if name not in jobs:
        if rules.job_of(name) in jobs:
            raise UsageError(f"{name!r} is a run, not a job: `zeusrun show {name}`")
        raise UsageError(f"there is no job called {name!r}; {list_known(name, jobs)}")
    return name


def read_each(
    jobs: Iterable[str], read: Callable[[str], _Read]
) -> tuple[dict[str, _Read], HistoryError | None]:
    """Return what is read of each job whose history can be read, and the first damage."""
    found: dict[str, _Read] = {}
    damage: HistoryError | None = None
    for job in jobs:
        try:
            found[job] = read(job)
        except HistoryError as error:  # still read the other jobs
            damage = damage or error
    return found, damage


def find_trial(name: str, store: History) -> Trial:
    """Return the trial with this name, or the last one of the job with this name or file.

    ``slurm:1234`` means the last one that ran in that job of Slurm.
    """
    if not is_job(name):
        return rules.find_trial(store, job_name(name))
    if (trial := find_allocated(name, store)) is None:
        job = read_jobs([name]).get(name)
        check_exists(name, job)
        if job is None or job.state == GONE:
            raise UsageError(f"{describe_job(name, job)}, and no run of it is recorded here")
        raise UsageError(f"no run has begun in {name}; `zeusrun logs {name}` shows its output")
    return trial


def find_allocated(allocation: str, store: History) -> Trial | None:
    """Return the last trial that ran in a job of a scheduler; ``None`` if there is none."""
    trials, _ = read_each(store.jobs(), lambda job: store.trials(job, NEWEST))
    found = (
        t for of_job in trials.values() for t in reversed(of_job) if t.allocation == allocation
    )
    return next(found, None)


def find_settings(job: str) -> tuple[Path, str | None]:
    """Return a job file, and a line that says so if it is the copy in a run directory.

    The name of a job means the copy in its last run directory.
    """
    if Path(job).is_file() or Path(job).suffix in {".yaml", ".yml"}:
        return Path(job), None
    home, store = open_home()
    trial = find_trial(job, store)
    if job == trial.job:
        last = newest_here(home, store.trials(job, NEWEST))
        if last is None:
            raise UsageError(f"no run of {job} has its files in {home}; name its job file instead")
        trial = last
    return files_of(home, trial).job_copy, f"Settings: those of {trial.trial}."


def is_job_file(job: str) -> bool:
    """Whether the user named a job file that exists, and not a job or a run."""
    return Path(job).suffix in {".yaml", ".yml"} and Path(job).is_file()


def job_name(job: str) -> str:
    """Return the name of a job; a job file means the job that it describes."""
    return load_job(Path(job)).name if is_job_file(job) else job


def load_job(path: Path) -> JobSpec:
    """Read a job file, for verbs that rarely need one."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - takes 50 ms

    return load_spec(path)


def console(*, stderr: bool = False) -> Console:
    """Return the console for output that people read."""
    from zeusrun.view.console import PlainConsole  # noqa: PLC0415 - takes 40 ms, which --json saves

    return PlainConsole(stderr=stderr)


def answer(
    record: object, shown: RenderableType | Callable[[int], RenderableType], *, as_json: bool
) -> None:
    """Print what a command has found or done: the record for programs, else what people read.

    What fits itself to the console is a function, which gets its width.
    """
    if as_json:
        print_json(record)
    elif isinstance(shown, str):
        typer.echo(shown.removesuffix("\n"))
    else:
        screen = console()
        screen.print(shown(screen.width) if callable(shown) else shown)


def write_output(path: Path, content: bytes) -> None:
    """Make or replace a file. A new one may be read by others, as far as the umask allows.

    A link is followed. A pipe or a device is written to: it cannot be replaced.

    Raises:
        UsageError: If the file cannot be written.
        ExportError: If the disk is full, for example.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_bytes(content)
        else:
            real = path.resolve()
            fresh = real.with_name(f"{real.name}.{os.getpid()}.tmp")
            mode = stat.S_IMODE(real.stat().st_mode) if real.exists() else 0o666
            replace_file(real, content, fresh=fresh, mode=mode)
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        number, why = getattr(error, "errno", None), getattr(error, "strerror", None)
        failure = f"{path} cannot be written: {why or error}"
        if number in SHORTAGES:
            raise ExportError(f"{failure}; {SHORTAGES[number]}") from error
        raise UsageError(f"{failure}; name a file in a directory that you can write to") from error
