"""A history that lives as long as the process: for tests."""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from zeusrun.history.base import Snapshot
from zeusrun.history.rules import (
    changed,
    check_id,
    check_last,
    check_new,
    job_of,
    unknown_trial,
)
from zeusrun.history.schema import encode_trial
from zeusrun.job_name import check_job_name

if TYPE_CHECKING:
    from zeusrun.trial import Outcome, Trial


class MemoryHistory:
    """A ``History`` in memory; safe for the threads of one process."""

    def __init__(self) -> None:
        self._trials: dict[str, list[Trial]] = {}
        self._changes: Counter[str] = Counter()
        self._lock = threading.Lock()

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        return sorted(self._trials)

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        check_job_name(job)
        check_last(last)
        trials = self._trials.get(job, [])
        return trials[0 if last is None else max(0, len(trials) - last) :]

    def count(self, job: str) -> int:
        """See ``History.count``."""
        return len(self.trials(job))

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        return [trial for trial in self.trials(job) if not trial.status.finished]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        job = job_of(trial)
        known = [] if job is None else self.trials(job)
        return next((candidate for candidate in known if candidate.trial == trial), None)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        with self._lock:
            return Snapshot(tuple(self.trials(job, last)), self._version(job))

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``."""
        check_new(trial)
        encode_trial(trial)
        with self._lock:
            if self._version(trial.job) != after:
                raise changed(trial.job)
            known = self.find(trial.trial)
            check_id(trial, known)
            if known is None:
                self._trials.setdefault(trial.job, []).append(trial)
                self._changes[trial.job] += 1
            else:
                self._replace(known, trial)
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        with self._lock:
            known = self.find(trial)
            if known is None:
                raise unknown_trial(trial)
            finished = known.finish(outcome)
            encode_trial(finished)
            self._replace(known, finished)
        return finished

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        with self._lock:
            known = self.find(trial)
            if known is None:
                raise unknown_trial(trial)
            marked = known.forget(forgotten=forgotten)
            self._replace(known, marked)
        return marked

    def _replace(self, known: Trial, trial: Trial) -> None:
        trials = self._trials[known.job]
        trials[trials.index(known)] = trial
        self._changes[known.job] += 1

    def _version(self, job: str) -> str:
        return str(self._changes[job])
