"""What several verbs share: their flags, the console, and the history that they open."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from zeusrun.errors import UsageError

if TYPE_CHECKING:
    from rich.console import Console

    from zeusrun.history.base import History
    from zeusrun.history.tinydb.store import TinyDBHistory
    from zeusrun.trial import Trial

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TrialName = Annotated[
    str, typer.Argument(metavar="TRIAL", help="A trial, such as digits-7-1; a job means its last.")
]
JobFile = Annotated[Path, typer.Argument(metavar="JOB.yaml", help="The job file.")]
Overrides = Annotated[
    Optional[list[str]],  # noqa: UP045 - typer evaluates it, and Python 3.10 must, too
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
    from zeusrun.files.home import trusted_home  # noqa: PLC0415
    from zeusrun.history.tinydb.store import TinyDBHistory  # noqa: PLC0415

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
    from zeusrun.history import lookup  # noqa: PLC0415

    return lookup.find_trial(open_history(), name)


def job_file(job: str) -> Path:
    """Return the job file meant: a name is taken for the job of its last run."""
    if Path(job).is_file() or Path(job).suffix in {".yaml", ".yml"}:
        return Path(job)
    from zeusrun.launcher.rundir.layout import RunPaths  # noqa: PLC0415

    return RunPaths(Path(find_trial(job).run_dir)).job_copy


def job_name(job: str) -> str:
    """Return the name meant: job files are taken for the job they describe."""
    if Path(job).suffix in {".yaml", ".yml"} and Path(job).is_file():
        from zeusrun.jobfile.spec import load_spec  # noqa: PLC0415

        return load_spec(Path(job)).name
    return job


def console(*, stderr: bool = False) -> Console:
    """Return where people read."""
    from zeusrun.view.console import PlainConsole  # noqa: PLC0415

    return PlainConsole(stderr=stderr)
