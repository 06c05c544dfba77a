"""A history that lives as long as the process: for simulations and tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from zeusrun.history.rules import check_job_name, check_new, job_of, unknown_trial
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

    def trials(self, job: str) -> list[Trial]:
        """See ``History.trials``."""
        check_job_name(job)
        return list(self._trials.get(job, ()))

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        job = job_of(trial)
        known = [] if job is None else self.trials(job)
        return next((candidate for candidate in known if candidate.trial == trial), None)

    def begin(self, job: str, dispatch: Callable[[list[Trial]], Trial]) -> Trial:
        """See ``History.begin``."""
        check_job_name(job)
        with self._lock:
            earlier = self.trials(job)
            trial = dispatch(list(earlier))
            check_new(trial, job, earlier)
            encode_trial(trial)
            self._trials.setdefault(job, []).append(trial)
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        with self._lock:
            known = self.find(trial)
            if known is None:
                raise unknown_trial(trial)
            finished = known.finish(outcome)
            encode_trial(finished)
            trials = self._trials[known.job]
            trials[trials.index(known)] = finished
        return finished
