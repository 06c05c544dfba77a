"""Flags, console and history access that several verbs share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from zeusrun.errors import UsageError
from zeusrun.files.home import trusted_home
from zeusrun.history import lookup
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.view.console import PlainConsole

if TYPE_CHECKING:
    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.jobfile.spec import JobSpec
    from zeusrun.trial import Trial

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TrialName = Annotated[
    str,
    typer.Argument(
        metavar="TRIAL", help="A trial, such as digits-7-1; the name of a job means its last trial."
    ),
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: objective.eta_knob=0.8."),
]


def open_history() -> TinyDBHistory:
    """Return the history in zeusrun's home directory."""
    return open_home()[1]


def open_home() -> tuple[Path, TinyDBHistory]:
    """Return zeusrun's home directory and the history in it.

    Raises:
        HistoryError: If other users can write to the home directory.
    """
    home = trusted_home(os.environ)
    return home, TinyDBHistory(home / "history")


def known_job(store: History, name: str) -> str:
    """Return ``name`` if a job of that name has a history.

    Raises:
        UsageError: If there is no such job.
    """
    if name not in store.jobs():
        raise unknown_job(store, name)
    return name


def unknown_job(store: History, name: str) -> UsageError:
    """Build the error for a name that is not the name of a job."""
    known = ", ".join(store.jobs()) or "none yet"
    return UsageError(f"there is no job called {name!r}; known jobs: {known}")


def find_trial(name: str) -> Trial:
    """Return the trial with this name, or the last trial of the job with this name.

    Raises:
        UsageError: If there is no such trial.
    """
    return lookup.find_trial(open_history(), name)


def job_file(job: str) -> Path:
    """Return the job file; the name of a job means the copy in its last run directory."""
    if Path(job).is_file() or Path(job).suffix in {".yaml", ".yml"}:
        return Path(job)
    return RunPaths(Path(find_trial(job).run_dir)).job_copy


def job_name(job: str) -> str:
    """Return the name of a job; a job file means the job that it describes."""
    if Path(job).suffix in {".yaml", ".yml"} and Path(job).is_file():
        return load_job(Path(job)).name
    return job


def load_job(path: Path) -> JobSpec:
    """Read a job file, for verbs that rarely need one: its models take 50 ms to import."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - see above

    return load_spec(path)


def console(*, stderr: bool = False) -> Console:
    """Return the console for output that people read."""
    return PlainConsole(stderr=stderr)
