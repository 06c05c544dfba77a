"""What ``repair`` finds and puts right: trials, power limits, stale files, histories."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError
from zeusrun.files.home import limits_directory, runs_directory
from zeusrun.job_name import is_job_name
from zeusrun.launcher.power.control import restore_limits
from zeusrun.launcher.recover import recover_lost
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.lock import lease_of
from zeusrun.launcher.rundir.record import read_outcome, read_record

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from zeusrun.history.tinydb.store import TinyDBHistory
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Attributes:
        kind: ``limit``, ``trial``, ``file`` or ``history``.
        subject: What it is about: a GPU's UUID, a trial, a path, a job.
        state: ``repaired``; ``found``, where a repair would put it right; ``problem``, which a
            user must see to; ``fine``.
        text: The sentence for people.
    """

    kind: str
    subject: str
    state: str
    text: str


def look_after(history: TinyDBHistory, home: Path, *, dry_run: bool) -> list[Finding]:
    """Put right what dead processes have left; with ``dry_run`` only say what there is.

    Args:
        history: Of all jobs.
        home: Zeusrun's.
        dry_run: Change nothing.
    """
    found = list(_limits(home, dry_run=dry_run))
    # A history that was deleted leaves run directories.
    for job in sorted({*history.jobs(), *_jobs_with_runs(home)}):
        try:
            found += _trials(history, home, job, dry_run=dry_run)
            found += _files(history, home, job, dry_run=dry_run)
        except HistoryError as error:
            found.append(Finding("history", job, "problem", str(error)))
    return found


def read_found_trials(home: Path, job: str) -> list[Trial]:
    """Return the trials that a job's run directories hold, whatever the history knows."""
    found = [(paths.run_dir.name, read_record(paths)) for paths in _runs(home, job)]
    return [trial for name, trial in found if trial is not None and trial.trial == name]


def _limits(home: Path, *, dry_run: bool) -> Iterator[Finding]:
    restored, problems, held = restore_limits(home, dry_run=dry_run)
    for limit in restored:
        yield Finding("limit", limit.uuid, "found" if dry_run else "repaired", limit.text)
    for text in problems:
        yield Finding("limit", str(limits_directory(home)), "problem", text)
    for uuid in held:
        text = f"the power limit of {uuid} is held by a run that goes on"
        yield Finding("limit", uuid, "fine", text)


def _trials(history: TinyDBHistory, home: Path, job: str, *, dry_run: bool) -> Iterator[Finding]:
    if not dry_run:
        for trial in recover_lost(history, job, timestamp(), home):
            text = f"{trial.trial} is recorded as {trial.status.value}: {trial.reason}"
            yield Finding("trial", trial.trial, "repaired", text)
        return
    for trial in history.unfinished(job):
        if not lease_of(trial).is_held():
            text = f"{trial.trial} is not recorded: its launcher died"
            yield Finding("trial", trial.trial, "found", text)


def _files(history: TinyDBHistory, home: Path, job: str, *, dry_run: bool) -> Iterator[Finding]:
    """Look for what no trial needs any more, and for trials that only run directories know.

    A run that never began is removed by the next submit of its job, which nobody comes between.
    """
    known = {trial.trial: trial for trial in history.trials(job)}
    unknown = 0
    for paths in _runs(home, job):
        trial = known.get(paths.run_dir.name)
        unknown += trial is None and read_outcome(paths) is not None
        if trial is None or not trial.status.finished:
            continue
        for path in paths.leftovers:
            if path.exists():
                if not dry_run:
                    path.unlink(missing_ok=True)
                state = "found" if dry_run else "repaired"
                yield Finding("file", str(path), state, f"a left-over file: {path}")
    if unknown:
        text = (
            f"{unknown} ended trial{'' if unknown == 1 else 's'} of {job} only in run directories; "
            f"take them in with `zeusrun repair --restore {job}`"
        )
        yield Finding("history", job, "found", text)


def _jobs_with_runs(home: Path) -> list[str]:
    try:
        names = [path.name for path in (home / "runs").iterdir() if path.is_dir()]
    except OSError:
        return []
    return list(filter(is_job_name, names))


def _runs(home: Path, job: str) -> Iterable[RunPaths]:
    try:
        paths = sorted(runs_directory(home, job).iterdir())
        return [RunPaths(path) for path in paths if path.is_dir() and not path.is_symlink()]
    except OSError:
        return []
