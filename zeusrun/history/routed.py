"""The histories of all jobs as one: some jobs have a history of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from zeusrun.history import rules
from zeusrun.history.base import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from zeusrun.history.base import Restoration, Snapshot
    from zeusrun.trial import Outcome, Trial


class RoutedHistory(History):
    """A ``History`` that asks the history of each job; each is opened when it is first needed."""

    def __init__(
        self, open_: Callable[[str], History], name: str, chosen: Mapping[str, str]
    ) -> None:
        """Prepare; nothing is opened yet.

        Args:
            open_: Opens a history by its name.
            name: That of the history of all jobs that are not in ``chosen``.
            chosen: Names of histories by job.
        """
        self._open, self._name, self._chosen = open_, name, chosen
        self._opened: dict[str, History] = {}

    def of(self, job: str | None) -> History:
        """Return the history of a job; ``None``: of what can be no job's."""
        name = self._chosen.get(job or "", self._name)
        if name not in self._opened:
            self._opened[name] = self._open(name)
        return self._opened[name]

    def jobs(self) -> list[str]:
        """See ``History.jobs``. Jobs with a history of their own count without asking it."""
        return sorted({*self.of(None).jobs(), *self._chosen})

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        return self.of(job).trials(job, last)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        return self.of(job).count(job)

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        return self.of(job).unfinished(job)

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        return self._of_trial(trial).find(trial)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        return self.of(job).snapshot(job, last)

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``."""
        return self.of(trial.job).begin(trial, after=after)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._of_trial(trial).finish(trial, outcome)

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._of_trial(trial).forget(trial, forgotten=forgotten)

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``; ``trials`` are of one job."""
        return self.of(trials[0].job).add(trials) if trials else []

    def address(self, job: str) -> str | None:
        """See ``History.address``."""
        return self.of(job).address(job)

    def renew(self, trial: str, live: dict[str, Any] | None = None) -> None:
        """See ``History.renew``."""
        self._of_trial(trial).renew(trial, live)

    def live(self, trial: str) -> dict[str, Any] | None:
        """See ``History.live``."""
        return self._of_trial(trial).live(trial)

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """See ``History.keep_trace``."""
        self._of_trial(trial).keep_trace(trial, trace)

    def keep_settings(self, job: str, settings: str) -> None:
        """See ``History.keep_settings``."""
        self.of(job).keep_settings(job, settings)

    def deliver(self, job: str | None = None, folder: Path | None = None) -> None:
        """See ``History.deliver``."""
        self.of(job).deliver(job, folder)

    def restore(self, job: str, found: Sequence[Trial]) -> Restoration:
        """See ``History.restore``."""
        return self.of(job).restore(job, found)

    def _of_trial(self, trial: str) -> History:
        return self.of(rules.job_of(trial) or rules.offline_job(trial))
