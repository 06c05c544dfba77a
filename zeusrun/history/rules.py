"""What every back end asks of names, ids and new trials. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.history.base import Conflict
from zeusrun.job_name import check_job_name, is_job_name
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from zeusrun.trial import Trial

_TRIAL_ID = re.compile(r"(?P<job>.+)-(?P<recurrence>[1-9][0-9]*)-[1-9][0-9]*")
# Of a trial that goes on, what it was chosen for and what it has taken.
_KEPT = (
    "global_batch_size",
    "learning_rate",
    "world_size",
    "run_dir",
    "recurrence",
    "attempt",
    "time_s",
    "energy_j",
    "epochs",
    "curve",
)


def job_of(trial: str) -> str | None:
    """Return the job in a trial's id ``<job>-<recurrence>-<attempt>``; ``None`` if it is no id."""
    match = _TRIAL_ID.fullmatch(trial)
    return match["job"] if match and is_job_name(match["job"]) else None


def recurrence_of(trial: str) -> int:
    """Return the recurrence in a trial's id; 0, which none has, if it is no id."""
    match = _TRIAL_ID.fullmatch(trial)
    # Python refuses to read longer numbers, and so does the recurrence that a record holds.
    return int(match["recurrence"]) if match and len(match["recurrence"]) <= 18 else 0


def check_last(last: int | None) -> None:
    """Refuse a number of trials that is none.

    Raises:
        ValueError: If it is negative.
    """
    if last is not None and last < 0:
        raise ValueError(f"the last {last} trials are none")


def check_new(trial: Trial) -> None:
    """Refuse a trial that cannot begin, whatever the history holds.

    Raises:
        ValueError: If it is finished, its id does not match its numbers, or no job can have the
            name of its job.
    """
    check_job_name(trial.job)
    check_numbers(trial, trial.job)
    if trial.status.finished:
        raise ValueError(f"trial {trial.trial} is {trial.status.value} before it began")


def check_id(trial: Trial, known: Trial | None) -> None:
    """Refuse a trial whose id is taken.

    Args:
        trial: The one to begin, or to go on with.
        known: The job's trial with this id, if there is one.

    Raises:
        ValueError: If there is one that it does not resume.
    """
    if known is not None and not _resumes(trial, known):
        raise ValueError(f"there is a trial {trial.trial} already")


def check_numbers(trial: Trial, job: str) -> None:
    """Refuse a trial whose id is not the one that its job and numbers make.

    Raises:
        ValueError: If it is of another job, or its id is not its own.
    """
    if trial.job != job:
        raise ValueError(f"trial {trial.trial} is of job {trial.job!r}, not of {job!r}")
    own_id = f"{job}-{trial.recurrence}-{trial.attempt}"
    if trial.trial != own_id or job_of(own_id) != job:
        raise ValueError(
            f"trial {trial.trial!r} is number {trial.recurrence}-{trial.attempt} of {job!r}: "
            "ids are <job>-<recurrence>-<attempt>, counted from 1"
        )


def _resumes(trial: Trial, known: Trial) -> bool:
    return (
        known.status is TrialStatus.PREEMPTED
        and trial.preemptions == known.preemptions + 1
        and all(getattr(trial, name) == getattr(known, name) for name in _KEPT)
    )


def unknown_trial(trial: str) -> HistoryError:
    """Build the error for an id that no job has."""
    return HistoryError(f"no trial {trial!r} in the history; `zeusrun history` lists them")


def changed(job: str) -> Conflict:
    """Build the error for a trial that was chosen from an earlier version of a history."""
    return Conflict(f"the history of {job} has changed since the trial was chosen")
