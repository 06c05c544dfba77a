"""What every back end asks of names, ids and new trials. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from zeusrun.trial import Trial

# No separator, no leading dot: such a name plus a suffix stays one visible file in its directory.
_JOB_NAME = re.compile(r"[^\W_][\w.-]*")
_TRIAL_ID = re.compile(r"(?P<job>.+)-[1-9][0-9]*-[1-9][0-9]*")


def is_job_name(name: str) -> bool:
    """Whether a job can have this name: letters, digits, ``._-``; the first no sign."""
    return _JOB_NAME.fullmatch(name) is not None


def check_job_name(name: str) -> None:
    """Refuse a name that could lead out of the history's directory.

    Raises:
        ValueError: If it is not a job name.
    """
    if not is_job_name(name):
        raise ValueError(f"{name!r} cannot be the name of a job")


def job_of(trial: str) -> str | None:
    """Return the job in a trial's id ``<job>-<recurrence>-<attempt>``; ``None`` if it is no id."""
    match = _TRIAL_ID.fullmatch(trial)
    return match["job"] if match and is_job_name(match["job"]) else None


def check_new(trial: Trial, job: str, earlier: Iterable[Trial]) -> None:
    """Refuse a trial that cannot be the next one of a job.

    Raises:
        ValueError: If it is of another job, finished, or its id is taken or not its own.
    """
    if trial.job != job:
        raise ValueError(f"trial {trial.trial} is of job {trial.job!r}, not of {job!r}")
    own_id = f"{job}-{trial.recurrence}-{trial.attempt}"
    if trial.trial != own_id or job_of(own_id) != job:
        raise ValueError(
            f"trial {trial.trial!r} is number {trial.recurrence}-{trial.attempt} of {job!r}: "
            "ids are <job>-<recurrence>-<attempt>, counted from 1"
        )
    if trial.status.finished:
        raise ValueError(f"trial {trial.trial} is {trial.status.value} before it began")
    if any(trial.trial == other.trial for other in earlier):
        raise ValueError(f"there is a trial {trial.trial} already")


def unknown_trial(trial: str) -> HistoryError:
    """Build the error for an id that no job has."""
    return HistoryError(f"no trial {trial!r} in the history; `zeusrun history` lists them")
