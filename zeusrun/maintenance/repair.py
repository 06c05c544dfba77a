"""Repairs what dead processes left: trials, power limits, histories."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError
from zeusrun.files.home import limits_directory, runs_directory
from zeusrun.job_name import is_job_name
from zeusrun.launcher.power.control import restore_limits
from zeusrun.launcher.rundir.layout import RunPaths, read_outcome, read_record
from zeusrun.launcher.rundir.ownership import run_names
from zeusrun.maintenance.recover import end_orphans, recover_lost

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from zeusrun.history.base import History
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Finding:
    """One thing that ``repair`` checked.

    ``subject`` is a GPU's UUID, the trial of the processes, a trial or a job, as ``kind``
    says. ``found``: the text says what fixes it; ``problem``: the user must fix it.
    """

    kind: Literal["limit", "process", "trial", "history"]
    subject: str
    state: Literal["repaired", "found", "problem", "fine"]
    text: str


def find_and_repair(history: History, home: Path) -> list[Finding]:
    """Repair what dead processes left in a home."""
    of_jobs = _check_jobs(history, home, _trials, _lacking)
    return [*_limits(home), *_processes(home), *of_jobs]


def find_damage(history: History, home: Path) -> list[Finding]:
    """Return the histories that cannot be read, and those that lack ended trials."""
    return [*_check_jobs(history, home, _lacking)]


def _check_jobs(
    history: History, home: Path, *checks: Callable[[History, Path, str], Iterable[Finding]]
) -> Iterator[Finding]:
    """Check each job; a history that cannot be read is a finding, and ends those of its job."""
    # A history that was deleted leaves run directories.
    with_runs = {path.name for path in _folders(home / "runs") if is_job_name(path.name)}
    for job in sorted({*history.jobs(), *with_runs}):
        try:
            for check in checks:
                yield from check(history, home, job)
        except HistoryError as error:
            yield Finding("history", job, "problem", str(error))


def read_found_trials(home: Path, job: str) -> list[Trial]:
    """Return the trials that are recorded in a job's run directories."""
    found = [(path.name, read_record(RunPaths(path))) for path in _job_runs(home, job)]
    return [
        trial
        for name, trial in found
        if trial is not None and name in {trial.trial, Path(trial.run_dir).name}
    ]


def _limits(home: Path) -> Iterator[Finding]:
    restored, problems, held = restore_limits(home)
    for limit in restored:
        yield Finding("limit", limit.uuid, "repaired", limit.text)
    for text in problems:
        yield Finding("limit", str(limits_directory(home)), "problem", text)
    for uuid in held:
        yield Finding("limit", uuid, "fine", f"a running trial holds the power limit of {uuid}")


def _processes(home: Path) -> Iterator[Finding]:
    for orphans in end_orphans(home):
        yield Finding("process", orphans.run, "repaired", f"ended {orphans.text}")
        if orphans.problem is not None:
            yield Finding("process", orphans.run, "problem", orphans.problem)


def _trials(history: History, home: Path, job: str) -> Iterator[Finding]:
    for trial in recover_lost(history, job, timestamp(), home):
        text = f"{trial.trial} is recorded as {trial.status.value}: {trial.reason}"
        yield Finding("trial", trial.trial, "repaired", text)


def _lacking(history: History, home: Path, job: str) -> Iterator[Finding]:
    """Find ended trials that are only in run directories."""
    known = {name for trial in history.trials(job) for name in run_names(trial)}
    unknown = [each for each in _job_runs(home, job) if each.name not in known]
    count = sum(read_outcome(RunPaths(each)) is not None for each in unknown)
    if count:
        text = (
            f"the history of {job} lacks {count} ended trial{'' if count == 1 else 's'}; add "
            f"what the run directories contain with `zeusrun repair --restore {job}`"
        )
        yield Finding("history", job, "found", text)


def _job_runs(home: Path, job: str) -> list[Path]:
    return _folders(runs_directory(home, job))


def _folders(folder: Path) -> list[Path]:
    try:
        return [p for p in sorted(folder.iterdir()) if p.is_dir() and not p.is_symlink()]
    except OSError:
        return []
