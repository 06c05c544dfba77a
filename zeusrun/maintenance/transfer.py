"""Copies histories between the files of this machine and a shared history, without loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError, UsageError, list_known
from zeusrun.history import rules
from zeusrun.history.registry import HISTORY_VARIABLE
from zeusrun.history.tinydb.store import TinyDBHistory

if TYPE_CHECKING:
    from pathlib import Path

    from zeusrun.history.base import History


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
    if to_shared and not names:
        raise UsageError("the files of this machine have no runs to import")
    names = [name for name in names if history.address(name) is not None]
    if history.address(job or "") is None and (job is not None or not names):
        raise UsageError(
            f"no shared history is in use; run `zeusrun connect`, set {HISTORY_VARIABLE} to its "
            "URL, or name a job file with the key 'history'"
        )
    if job is not None:
        if job not in names:
            raise UsageError(f"there is no job called {job!r}; {list_known(job, names)}")
        names = [job]
    return [_copy(local, history, name, to_shared=to_shared) for name in names]


def _copy(local: History, shared: History, job: str, *, to_shared: bool) -> Transferred:
    # A snapshot of a shared history is that of its server, never of the local copy.
    from_, to = (local, shared) if to_shared else (shared, local)
    source, there = from_.snapshot(job).trials, to.snapshot(job).trials
    target = to.address(job) or "this machine"
    known = {trial.trial: trial for trial in there}
    pairs = [(each, known.get(each.trial)) for each in source if each.status.finished]
    clashes = [trial.trial for trial, old in pairs if old and not rules.is_same(old, trial)]
    if clashes:
        raise HistoryError(
            f"{target} has other runs called {', '.join(clashes[:3])}"
            f"{'' if len(clashes) < 4 else f' and {len(clashes) - 3} more'}, so nothing of {job} "
            "is copied; two histories of a job cannot be joined, because their runs have the same "
            "numbers"
        )
    new = [each for each, old in pairs if rules.is_superseded(old, each)]
    try:
        to.add(new)
    except ValueError as error:
        raise HistoryError(f"{target} refuses a run of {job}: {error}") from error
    running = tuple(trial.trial for trial in source if not trial.status.finished)
    return Transferred(job, len(new), len(pairs) - len(new), running, target)


def _runs(count: int) -> str:
    return "1 run" if count == 1 else f"{count} runs"
