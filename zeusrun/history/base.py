"""The contract of a history: it stores trials, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, runtime_checkable

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from zeusrun.trial import Outcome, Trial


NEWEST = 1000
"""How many of the newest trials a decision uses: years of nightly runs."""


class Conflict(HistoryError):  # noqa: N818 - the name is part of the contract
    """The history of a job has changed since the snapshot that a trial was chosen from."""


class Snapshot(NamedTuple):
    """The trials of a job at one moment, oldest first.

    Two snapshots have the same version only if nothing in the job's history changed between them.
    """

    trials: tuple[Trial, ...]
    version: str


@runtime_checkable
class History(Protocol):
    """The trials of every job. The test suite for a new one is ``tests/contracts/history.py``.

    Every method raises ``HistoryError`` if the history cannot be read or written, and
    ``ValueError`` if a job has a name that no job can have.
    """

    def jobs(self) -> list[str]:
        """Return the names of the jobs that have a history, sorted."""
        ...

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """Return the newest ``last`` trials of a job, oldest first; ``None`` for all.

        It never waits for another process, and older trials do not slow it down. An unknown job
        has no trials.
        """
        ...

    def count(self, job: str) -> int:
        """Return how many trials a job has."""
        ...

    def unfinished(self, job: str) -> list[Trial]:
        """Return the dispatched trials of a job, oldest first."""
        ...

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id, of any job; ``None`` if there is none."""
        ...

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """Return what ``trials`` returns, and the version of the job's history."""
        ...

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """Store a new trial durably; one from ``Trial.resume`` replaces the preempted one.

        ``after`` is the version of the snapshot that the trial was chosen from.

        Raises:
            Conflict: If the history of the job has changed since that snapshot: a trial began,
                finished or was forgotten, or the history was restored. Nothing is stored; take
                another snapshot and choose again.
            ValueError: If the trial is finished, its id does not match its numbers, another trial
                has this id and is not the one that it resumes, or it could not be read back.
                Nothing is stored.
        """
        ...

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """Store durably how a trial ended; return it. Only a preempted one may change again.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it is finished already, or the outcome could not be read back.
        """
        ...

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """Mark a finished trial durably as one to learn nothing from, or remove this mark.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it has not ended.
        """
        ...
