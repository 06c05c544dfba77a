"""A history that lives as long as the process: for tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from zeusrun.history.rules import check_job_name, check_last, check_next, job_of, unknown_trial
from zeusrun.history.schema import encode_trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.trial import Outcome, Trial


class MemoryHistory:
    """A ``History`` in memory; safe for the threads of one process."""

    def __init__(self) -> None:
        self._trials: dict[str, list[Trial]] = {}
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

    def begin(
        self, job: str, dispatch: Callable[[list[Trial]], Trial], *, last: int | None = None
    ) -> Trial:
        """See ``History.begin``."""
        check_job_name(job)
        check_last(last)
        with self._lock:
            trial = dispatch(self.trials(job, last))
            known = self.find(trial.trial)
            check_next(trial, job, known)
            encode_trial(trial)
            if known is None:
                self._trials.setdefault(job, []).append(trial)
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
