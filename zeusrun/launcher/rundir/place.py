"""Where the files of a trial are: with a shared history perhaps on another machine."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.files.home import runs_directory
from zeusrun.history.rules import job_of, offline_job
from zeusrun.launcher.rundir.layout import RunPaths, find_run, numbered_runs, run_names
from zeusrun.launcher.rundir.record import describes

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


def find_own(history: History, home: Path, trial: Trial) -> RunPaths | None:
    """Return the files of a trial if they are certainly its own; ``None`` if they are not here.

    Call this before a record decides what is written, deleted or killed: the history may have been
    tampered with, and the trials of a shared one may be those of other machines. The directory of
    such a trial keeps its name if the trial gets another number.
    """
    if not history.is_shared(trial.job):
        return find_run(home, trial)
    name = Path(trial.run_dir).name
    paths = RunPaths(runs_directory(home, trial.job) / name)
    own = trial.job in {job_of(name), offline_job(name)} and not paths.run_dir.is_symlink()
    return paths if own and describes(paths, trial) else None


def runs_here(history: History, home: Path, job: str, trials: Iterable[Trial]) -> dict[str, Trial]:
    """Return the trials of a job that have a run directory here, by the name of that."""
    if not history.is_shared(job):
        known = {name: trial for trial in trials for name in run_names(trial)}
        return {name: known[name] for _, name in numbered_runs(home, job) if name in known}
    found = [(find_own(history, home, trial), trial) for trial in trials]
    return {paths.run_dir.name: trial for paths, trial in found if paths is not None}


def files_of(history: History, home: Path, trial: Trial) -> RunPaths:
    """Return the files of a trial, to read them.

    Raises:
        UsageError: If they are on another machine, of another home, or gone.
    """
    paths = find_own(history, home, trial)
    if paths is not None:
        return paths
    if not history.is_shared(trial.job):
        return RunPaths(Path(trial.run_dir))  # a container may see the home under another path
    name, place = trial.trial, find_place(home, trial)
    if place is None:
        raise UsageError(f"the files of {name} are gone: {trial.run_dir}")
    if trial.host == platform.node():
        raise UsageError(f"the files of {name} are those {place} of this machine: {trial.run_dir}")
    verb = "ran" if trial.status.finished else "runs"
    raise UsageError(
        f"{name} {verb} {place}, and its files are there ({trial.run_dir}); run this command there"
    )


def find_place(home: Path, trial: Trial) -> str | None:
    """Return where the files are that a home lacks, with a preposition; ``None``: gone."""
    if trial.host != platform.node():
        return f"on {trial.host or 'another machine'}"
    return None if Path(trial.run_dir).is_relative_to(home) else "of another ZEUSRUN_HOME"


def newest_here(history: History, home: Path, trials: Sequence[Trial]) -> Trial | None:
    """Return the newest trial whose files are here; ``trials`` are those of a job, oldest first.

    With a history of this machine it is the newest one.
    """
    if not trials or not history.is_shared(trials[-1].job):
        return trials[-1] if trials else None
    return next((each for each in reversed(trials) if find_own(history, home, each)), None)
