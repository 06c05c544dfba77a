"""The contract of a history: where trials are kept, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from zeusrun.trial import Outcome, Trial


NEWEST = 1000
"""Trials of a job that a decision is made from, and a table compared with: years of nights."""


class Conflict(HistoryError):  # noqa: N818 - the name is part of the contract
    """The history of a job has changed since the snapshot that a trial was chosen from."""


class Snapshot(NamedTuple):
    """The trials of a job at one moment.

    Attributes:
        trials: Oldest first.
        version: Stands for the state of the job's whole history, and means nothing else: two
            snapshots have the same version only if nothing changed between them.
    """

    trials: tuple[Trial, ...]
    version: str


class History(Protocol):
    """The trials of every job. Suites for a new back end are in ``tests/contracts/history.py``.

    Every method raises ``HistoryError`` when what is stored cannot be read or written, and
    ``ValueError`` for a job name that could not be a file name: the job file rules those out.
    """

    def jobs(self) -> list[str]:
        """Return the names of the jobs with something to read, sorted."""
        ...

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """Return the trials of a job in the order they began; none for an unknown job.

        Never waits for another process.

        Args:
            job: The job's name.
            last: How many of the newest, which is quick however many there are; ``None`` for all.

        Raises:
            ValueError: If ``last`` is negative.
        """
        ...

    def count(self, job: str) -> int:
        """Return how many trials a job has."""
        ...

    def unfinished(self, job: str) -> list[Trial]:
        """Return the trials of a job that are dispatched, in the order they began."""
        ...

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id, of whichever job; ``None`` if there is none."""
        ...

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """Return the newest trials of a job, and which version of its history they are from.

        Never waits for another process.

        Args:
            job: The job's name.
            last: How many of the newest trials, which is quick however many there are; ``None``
                for all.

        Raises:
            ValueError: If ``last`` is negative.
        """
        ...

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """Store a new trial, or one that goes on after it was preempted.

        What ``Trial.resume`` returns takes the place of the preempted trial: it has the same
        batch size, run directory and numbers, and what the trial has taken so far.

        Args:
            trial: ``DISPATCHED``, and numbered by the caller.
            after: The version of the snapshot that the trial was chosen from.

        Returns:
            The trial, once it would survive a power cut.

        Raises:
            Conflict: If the history of the job has changed since that snapshot: a trial began,
                finished, was forgotten, or the history was restored. Nothing is stored; take
                another snapshot and choose again.
            ValueError: If the trial is finished, its id does not match its numbers, it has the id
                of an earlier one that it does not resume, or it could not be read back. Nothing
                is stored.
        """
        ...

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """Store how a trial ended, for good; one that was preempted may still be cancelled.

        Returns:
            The finished trial, once it would survive a power cut.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it is finished already, or the outcome could not be read back.
        """
        ...

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """Mark a trial as one that nothing is learned from, or take the mark away again.

        Nothing else of a finished trial changes, unless it was preempted.

        Returns:
            The trial with its mark, once it would survive a power cut.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it has not ended.
        """
        ...
