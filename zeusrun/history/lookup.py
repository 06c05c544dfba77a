"""Finds the trial that a user means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.history.rules import job_of

if TYPE_CHECKING:
    from zeusrun.history.base import History
    from zeusrun.trial import Trial


def find_trial(store: History, name: str) -> Trial:
    """Return the trial with this id, the only one called ``7-1``, or the last one of a job.

    Raises:
        HistoryError: If the history cannot be read.
        UsageError: If there is no such trial.
    """
    found = store.find(name)
    if found is not None:
        return found
    if name in store.jobs() and (trials := store.trials(name, 1)):
        return trials[0]
    if re.fullmatch(r"\d+-\d+", name):  # as the table of one job shows it
        full = [f"{job}-{name}" for job in store.jobs()]
        matches = [trial for trial in map(store.find, full) if trial is not None]
        if len(matches) == 1:
            return matches[0]
    job = job_of(name)
    if job is not None and job in store.jobs():
        run = name.removeprefix(f"{job}-")
        raise UsageError(f"{job} has no run {run}; `zeusrun history {job}` lists its runs")
    raise UsageError(
        f"there is no trial and no job called {name!r}; a trial is called JOB-RUN, such as "
        "digits-7-1; `zeusrun history` lists the jobs"
    )
