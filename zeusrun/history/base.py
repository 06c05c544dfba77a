"""The contract of a history: it stores trials, and nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from zeusrun.errors import HistoryError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zeusrun.trial import Outcome, Trial


NEWEST = 1000
"""How many of the newest trials a decision uses: years of nightly runs."""


class Conflict(HistoryError):  # noqa: N818 - the name is part of the contract
    """The history of a job has changed since the snapshot that a trial was chosen from."""


class UnknownTrialError(HistoryError):
    """The history has no trial with this id or uuid."""


class UnreadableTrialError(HistoryError):
    """A trial in the database is damaged, or a newer zeusrun has stored it."""


class RefusedError(HistoryError):
    """The server of a shared history refuses a request, and has changed nothing."""


class UnavailableError(HistoryError):
    """The server or the database of a shared history does not respond now; try again later."""

    retry_after_s: float | None = None  # when, if it says so


class Snapshot(NamedTuple):
    """The trials of a job at one moment, oldest first.

    Two snapshots have the same version only if nothing in the job's history changed between them.
    ``offline``: a shared history does not respond, and the trials are those of the local copy.
    """

    trials: tuple[Trial, ...]
    version: str
    offline: bool = False


class Changes(NamedTuple):
    """The trials of a job that changed since a version, in the order of their numbers.

    ``whole``: they are the newest trials instead, because the version is unknown. ``total`` is the
    number of all trials of the job.
    """

    trials: tuple[Trial, ...]
    version: str
    total: int
    whole: bool


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
        """Store durably how a trial ended; return it. See ``Trial.finish`` for what may change.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it is finished already, or the outcome could not be read back. A late
                outcome replaces LOST.
        """
        ...

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """Mark a finished trial durably as one to learn nothing from, or remove this mark.

        Raises:
            HistoryError: If there is no such trial.
            ValueError: If it has not ended.
        """
        ...


LEASE_S = 120.0
"""How long a trial of a shared history counts as running after its launcher's last heartbeat."""
HEARTBEAT_S = 20.0


@runtime_checkable
class Shared(Protocol):
    """What a history that several machines share does beyond ``History``.

    A trial is named by its id or its uuid. Every method raises what those of ``History`` raise, and
    ``UnavailableError`` if the server or the database does not respond.
    """

    def changes(self, job: str, after: str | None, last: int | None = None) -> Changes:
        """Return what changed since the version ``after``; without one, the newest ``last``."""
        ...

    def renew(self, trial: str, live: dict[str, Any] | None = None) -> None:
        """Renew the lease of a trial by ``LEASE_S``, and keep what is known while it runs."""
        ...

    def identify(self) -> tuple[str, float]:
        """Return the random id of the database, and the time by its clock in Unix seconds."""
        ...

    def live(self, trial: str) -> dict[str, Any] | None:
        """Return what was kept with the last ``renew`` of a trial; ``None`` if nothing was."""
        ...

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """Store trials of another history, in order, all or none; return them as stored.

        A trial that is stored already stays as it is, except that a late result replaces LOST and
        ``DISPATCHED``. One that began offline gets the next number of its job.

        Raises:
            ValueError: If another trial has the same id.
        """
        ...

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """Keep what a machine reports of itself: its GPUs and schedules."""
        ...

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """Keep the power over time of a trial, reduced for people."""
        ...

    def keep_settings(self, job: str, settings: str) -> None:
        """Keep the job file of a job, without secrets, as its newest run used it."""
        ...
