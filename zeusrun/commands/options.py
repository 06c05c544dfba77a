"""Flags, console and history access that several verbs share."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from zeusrun.errors import UsageError
from zeusrun.files.home import trusted_home
from zeusrun.history import rules
from zeusrun.history.registry import open_history
from zeusrun.job_name import list_known
from zeusrun.launcher.rundir.layout import RunPaths

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.server.settings import Settings
    from zeusrun.trial import Trial

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
DatabaseUrl = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="Database of the server, such as postgresql://user@host/name; by default "
        "ZEUSRUN_DATABASE_URL, or a SQLite file in ZEUSRUN_HOME.",
    ),
]


def open_home() -> tuple[Path, History]:
    """Return zeusrun's home directory, if only its owner can write to it, and its history."""
    home = trusted_home(os.environ)
    return home, open_history(home, os.environ)


def server_settings(given: Mapping[str, object]) -> Settings:
    """Return the settings of a server; ``given`` are those of flags.

    Raises:
        UsageError: If what a server needs is not installed, or a flag is not usable.
        JobFileError: If ``server.yaml`` is not usable.
    """
    for name in ("fastapi", "sqlalchemy", "uvicorn"):
        if find_spec(name) is None:
            raise UsageError(f"a server needs the package {name}: pip install 'zeusrun[server]'")
    from zeusrun.server.settings import load_settings  # noqa: PLC0415 - takes 60 ms

    return load_settings(trusted_home(os.environ), os.environ, given)


def known_job(store: History, name: str) -> str:
    """Return ``name`` if a job of that name has a history; raise ``UsageError`` if not."""
    jobs = store.jobs()
    if name not in jobs:
        if rules.job_of(name) in jobs:
            raise UsageError(f"{name!r} is a run, not a job: `zeusrun show {name}`")
        raise UsageError(f"there is no job called {name!r}; {list_known(name, jobs)}")
    return name


def find_trial(name: str) -> Trial:
    """Return the trial with this name, or the last trial of the job with this name."""
    return rules.find_trial(open_home()[1], name)


def job_file(job: str) -> Path:
    """Return the job file; the name of a job means the copy in its last run directory."""
    return find_settings(job)[0]


def find_settings(job: str) -> tuple[Path, str | None]:
    """Return the same job file and, if it is the copy in a run directory, a line that says so."""
    if Path(job).is_file() or Path(job).suffix in {".yaml", ".yml"}:
        return Path(job), None
    trial = find_trial(job)
    whose = "the last run," if job == trial.job else "run"
    return RunPaths(Path(trial.run_dir)).job_copy, f"Settings: those of {whose} {trial.trial}."


def job_name(job: str) -> str:
    """Return the name of a job; a job file means the job that it describes."""
    if Path(job).suffix in {".yaml", ".yml"} and Path(job).is_file():
        return load_job(Path(job)).name
    return job


def load_job(path: Path) -> JobSpec:
    """Read a job file, for verbs that rarely need one."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - takes 50 ms

    return load_spec(path)


def console(*, stderr: bool = False) -> Console:
    """Return the console for output that people read."""
    from zeusrun.view.console import PlainConsole  # noqa: PLC0415 - takes 40 ms, which --json saves

    return PlainConsole(stderr=stderr)
