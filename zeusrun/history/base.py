"""The contract of a history: where trials are kept, and nothing else is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from zeusrun.trial import Outcome, Trial


class History(Protocol):
    """The trials of every job. Suites for a new back end are in ``tests/contracts/history.py``.

    Every method raises ``HistoryError`` when what is stored cannot be read or written, and
    ``ValueError`` for a job name that could not be a file name: the job file rules those out.
    """

    def jobs(self) -> list[str]:
        """Return the names of the jobs with something to read, sorted."""
        ...

    def trials(self, job: str) -> list[Trial]:
        """Return the trials of a job in the order they began; none for an unknown job.

        Never waits for another process.
        """
        ...

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id, of whichever job; ``None`` if there is none."""
        ...

    def begin(self, job: str, dispatch: Callable[[list[Trial]], Trial]) -> Trial:
        """Choose and store a new trial as one step that no other process can come between.

        Args:
            job: The job's name.
            dispatch: Gets the trials so far, oldest first, and returns the new one, which is
                ``DISPATCHED`` and numbered by the caller. It runs while the history is locked, so
                it must be quick and must not write to the history. What it raises passes through,
                and nothing is stored.

        Returns:
            The new trial, once it would survive a power cut.

        Raises:
            ValueError: If the new trial is of another job, finished, numbered like an earlier one,
                or could not be read back. Nothing is stored.
        """
        ...

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """Store how a trial ended, for good.

        Returns:
            The finished trial, once it would survive a power cut.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it is finished already, or the outcome could not be read back.
        """
        ...
