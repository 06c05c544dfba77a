"""From what a user types to a trial."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.history.rules import job_of

if TYPE_CHECKING:
    from zeusrun.history.base import History
    from zeusrun.trial import Trial

_SHOWN = 8


def find_trial(store: History, name: str) -> Trial:
    """Return the trial meant by its id, by ``7-1`` where that is but one, or a job's last.

    Raises:
        HistoryError: If the history cannot be read.
        UsageError: If there is none.
    """
    found = store.find(name)
    if found is not None:
        return found
    if name in store.jobs() and (trials := store.trials(name)):
        return trials[-1]
    if re.fullmatch(r"\d+-\d+", name):  # as the table of one job shows it
        full = [f"{job}-{name}" for job in store.jobs()]
        matches = [trial for trial in map(store.find, full) if trial is not None]
        if len(matches) == 1:
            return matches[0]
    job = job_of(name)
    if job is not None and job in store.jobs():
        runs = [trial.trial.removeprefix(f"{job}-") for trial in store.trials(job, _SHOWN)]
        newest = "its newest runs are" if store.count(job) > _SHOWN else "its runs are"
        raise UsageError(
            f"{job} has no run {name.removeprefix(f'{job}-')}; {newest} {', '.join(runs)}: "
            f"`zeusrun history {job}` shows them"
        )
    raise UsageError(
        f"there is no trial and no job called {name!r}; a trial is called JOB-RUN, such as "
        "digits-7-1, and 'zeusrun history' lists what there is"
    )
