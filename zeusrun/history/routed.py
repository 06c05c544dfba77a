"""The histories of all jobs as one: some jobs have a history of their own."""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, TypeVar, cast

from zeusrun.history import rules
from zeusrun.history.base import History

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from zeusrun.trial import Trial

_Method = TypeVar("_Method", bound="Callable[..., Any]")


def _routed(method: _Method) -> _Method:
    """Return a method that calls this one of the history of the job or trial that it is given."""
    takes_trial = "trial" in inspect.signature(method).parameters

    @functools.wraps(method)
    def call(self: RoutedHistory, name: str, *args: Any, **named: Any) -> Any:  # noqa: ANN401 - what the method takes and returns
        job = rules.job_of(name) or rules.offline_job(name) if takes_trial else name
        return getattr(self.of(job), method.__name__)(name, *args, **named)

    return cast("_Method", call)


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

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``."""
        return self.of(trial.job).begin(trial, after=after)

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``; ``trials`` are of one job."""
        return self.of(trials[0].job).add(trials) if trials else []

    trials = _routed(History.trials)
    count = _routed(History.count)
    unfinished = _routed(History.unfinished)
    snapshot = _routed(History.snapshot)
    find = _routed(History.find)
    finish = _routed(History.finish)
    forget = _routed(History.forget)
    address = _routed(History.address)
    renew = _routed(History.renew)
    live = _routed(History.live)
    keep_trace = _routed(History.keep_trace)
    keep_settings = _routed(History.keep_settings)
    restore = _routed(History.restore)
