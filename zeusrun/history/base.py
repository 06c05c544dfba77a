"""The contract of a history: where trials are kept, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.trial import Outcome, Trial


NEWEST = 1000
"""Trials of a job that a decision is made from, and a table compared with: years of nights."""


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

    def begin(
        self, job: str, dispatch: Callable[[list[Trial]], Trial], *, last: int | None = None
    ) -> Trial:
        """Choose and store a new trial as one step that no other process can come between.

        Or go on with one that was preempted: what ``Trial.resume`` makes of it takes its place,
        with the same arm, run directory and numbers, and with what it has taken so far.

        Args:
            job: The job's name.
            dispatch: Gets the trials so far, oldest first, and returns the new or resumed one,
                which is ``DISPATCHED`` and numbered by the caller. It runs while the history is
                locked, so it must be quick and must not write to the history. What it raises passes
                through, and nothing is stored.
            last: How many of the newest trials it gets, which is quick however many there are;
                ``None`` for all.

        Returns:
            The trial begun, once it would survive a power cut.

        Raises:
            ValueError: If the trial is of another job, finished, numbered like an earlier one that
                it does not resume, or could not be read back; or ``last`` is negative. Nothing is
                stored.
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
