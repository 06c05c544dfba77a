"""Copies histories between the files of this machine and a shared history, without loss."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history import rules
from zeusrun.history.registry import HISTORY_VARIABLE, shared_of
from zeusrun.history.tinydb.store import TinyDBHistory
from zeusrun.job_name import list_known

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zeusrun.history.base import History
    from zeusrun.history.shared.store import SharedHistory
    from zeusrun.trial import Trial


@dataclass(frozen=True)
class Transferred:
    """What was copied of one job."""

    job: str
    copied: int  # trials that the target did not have as they are
    known: int  # trials that it had already
    running: tuple[str, ...]  # left out
    target: str

    def describe(self) -> str:
        """Return a sentence for people."""
        text = f"{self.job}: {_runs(self.copied)} copied to {self.target}"
        if self.known:
            text += f", {self.known} there already"
        if self.running:
            names = ", ".join(self.running)
            text += f"; left out because {'it runs' if len(self.running) == 1 else 'they run'}: "
            text += f"{names}; copy again after the end"
        return text


def transfer(
    history: History, home: Path, job: str | None, *, to_shared: bool
) -> list[Transferred]:
    """Copy one job, or all jobs, to the shared history in use, or from it; return what was copied.

    Copying again changes nothing. Trials that run are left out.

    Raises:
        UsageError: If no shared history is in use, or the job is unknown.
        HistoryError: If the target has another trial with an id of the source; nothing of that job
            is copied then.
    """
    local = TinyDBHistory(home / "history")
    names = local.jobs() if to_shared else history.jobs()
    names = [name for name in names if shared_of(history, name) is not None]
    if job is not None:
        if shared_of(history, job) is None:
            raise _no_shared_history()
        if job not in names:
            raise UsageError(f"there is no job called {job!r}; {list_known(job, names)}")
        names = [job]
    elif not names and shared_of(history, "") is None:
        raise _no_shared_history()
    done = []
    for name in names:
        shared = shared_of(history, name)
        if shared is not None:
            copy = _to_shared if to_shared else _from_shared
            done.append(copy(local, shared, name))
    return done


def restore_shared(shared: SharedHistory, job: str, found: Sequence[Trial]) -> int:
    """Add the ended trials of run directories that a server has lost; return how many.

    Trials of an earlier history of this machine stay away: their numbers may be others' by now.
    """
    shared.deliver()
    known = {each.uuid for each in shared.remote.trials(job)}
    lost = [each for each in found if each.status.finished and each.uuid not in {None, *known}]
    if lost:
        with _refused(job, shared.name):
            shared.add(sorted(lost, key=rules.place_of))
    return len(lost)


def _to_shared(local: TinyDBHistory, shared: SharedHistory, job: str) -> Transferred:
    trials, running = _split(local.trials(job))
    known = shared.remote.trials(job)
    _check(trials, known, job, shared.name)
    same = _count_known(trials, known)
    if same < len(trials):
        with _refused(job, shared.name):
            shared.add(trials)
    return Transferred(job, len(trials) - same, same, running, shared.name)


def _from_shared(local: TinyDBHistory, shared: SharedHistory, job: str) -> Transferred:
    shared.deliver()
    trials, running = _split(shared.remote.trials(job))
    known = local.trials(job)
    _check(trials, known, job, "this machine")
    same = _count_known(trials, known)
    if same < len(trials):
        with _refused(job, "this machine"):
            local.add(job, trials)
    return Transferred(job, len(trials) - same, same, running, "this machine")


@contextmanager
def _refused(job: str, target: str) -> Iterator[None]:
    """Raise ``HistoryError`` if the target refuses a trial; the message names the trial."""
    try:
        yield
    except ValueError as error:
        raise HistoryError(f"{target} refuses a run of {job}: {error}") from error


def _split(trials: Sequence[Trial]) -> tuple[list[Trial], tuple[str, ...]]:
    """Return the trials that have ended, and the names of those that run."""
    ended = [trial for trial in trials if trial.status.finished]
    return ended, tuple(trial.trial for trial in trials if not trial.status.finished)


def _check(trials: Sequence[Trial], known: Sequence[Trial], job: str, target: str) -> None:
    """Raise ``HistoryError`` if the target has another trial with the same id."""
    others = {trial.trial: trial for trial in known}
    clashes = [
        trial.trial
        for trial in trials
        if (other := others.get(trial.trial)) is not None and not rules.is_same(other, trial)
    ]
    if clashes:
        raise HistoryError(
            f"{target} has other runs called {', '.join(clashes[:3])}"
            f"{'' if len(clashes) < 4 else f' and {len(clashes) - 3} more'}, so nothing of {job} "
            "is copied; two histories of a job cannot be joined, because their runs have the same "
            "numbers"
        )


def _count_known(trials: Sequence[Trial], known: Sequence[Trial]) -> int:
    """Return how many trials the target has already, as they are."""
    there = {trial.trial: trial for trial in known}
    return sum(
        (other := there.get(trial.trial)) is not None
        and (other == trial or not rules.is_news(other, trial))
        for trial in trials
    )


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"


def _no_shared_history() -> UsageError:
    return UsageError(
        f"no shared history is in use; set {HISTORY_VARIABLE} to its URL, or name a job file that "
        "has a key history"
    )
