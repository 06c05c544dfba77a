"""What several verbs share: their flags, the console, and the history that they open."""

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
    str, typer.Argument(metavar="TRIAL", help="A trial, such as digits-7-1; a job means its last.")
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key: objective.eta_knob=0.8."),
]


def open_history() -> TinyDBHistory:
    """Return the history under zeusrun's home."""
    return open_home()[1]


def open_home() -> tuple[Path, TinyDBHistory]:
    """Return zeusrun's home, and the history in it.

    Raises:
        HistoryError: If others can write to the home.
    """
    home = trusted_home(os.environ)
    return home, TinyDBHistory(home / "history")


def known_job(store: History, name: str) -> str:
    """Return the name of a job that has a history.

    Raises:
        UsageError: If there is none of that name.
    """
    if name not in store.jobs():
        raise unknown_job(store, name)
    return name


def unknown_job(store: History, name: str) -> UsageError:
    """Build the error for a name that no job has."""
    known = ", ".join(store.jobs()) or "none yet"
    return UsageError(f"there is no job called {name!r}; known jobs: {known}")


def find_trial(name: str) -> Trial:
    """Return the trial that a user means.

    Raises:
        UsageError: If there is none.
    """
    return lookup.find_trial(open_history(), name)


def job_file(job: str) -> Path:
    """Return the job file meant: a name is taken for the job of its last run."""
    if Path(job).is_file() or Path(job).suffix in {".yaml", ".yml"}:
        return Path(job)
    return RunPaths(Path(find_trial(job).run_dir)).job_copy


def job_name(job: str) -> str:
    """Return the name meant: job files are taken for the job they describe."""
    if Path(job).suffix in {".yaml", ".yml"} and Path(job).is_file():
        return load_job(Path(job)).name
    return job


def load_job(path: Path) -> JobSpec:
    """Read a job file, for verbs that seldom do: its models take a third of their start."""
    from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415 - see above

    return load_spec(path)


def console(*, stderr: bool = False) -> Console:
    """Return where people read."""
    return PlainConsole(stderr=stderr)
