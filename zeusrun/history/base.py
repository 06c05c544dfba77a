"""The contract of a history: it stores trials, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.turns import Turn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from zeusrun.trial import Outcome, Trial


NEWEST = 1000
"""How many of the newest trials a decision uses: years of nightly runs."""


class Conflict(HistoryError):  # noqa: N818 - the name is part of the contract
    """A choice is stale: the history has changed since its snapshot, or others are ahead."""


class UnknownTrialError(HistoryError):
    """The history has no trial with this id or uuid."""


class UnreadableTrialError(HistoryError):
    """A trial in the database is damaged, or a newer zeusrun has stored it."""


class RefusedError(HistoryError):
    """The server of a shared history refuses a request, and has changed nothing."""


class UnavailableError(HistoryError):
    """The server or the database of a shared history does not respond now; try again later."""

    retry_after_s: float | None = None  # when, if it says so


class OfflineError(UnavailableError):
    """A trial could not begin; the next snapshot is offline: choose again, by that."""


class Snapshot(NamedTuple):
    """The trials of a job at one moment, oldest first.

    Two snapshots have the same version only if nothing in the job's history changed between them.
    The version also says whether a choice from the snapshot is stale: see ``History.begin``.
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


@dataclass(frozen=True)
class Restoration:
    """What ``restore`` did.

    Attributes:
        copy: What it started from: ``present`` for the history itself, ``bak`` for its last good
            copy, ``None`` if neither could be read.
        written_at: When that was written (RFC 3339).
        trials: How many trials the history has now.
        found: Ids of the trials that came from run directories, oldest first.
        unfinished: Ids of the trials without an outcome, oldest first.
        aside: Where the previous history is kept.
        lost: Empty if nothing was lost; ``None`` if that is unknown.
        problems: A sentence for each thing that could not be read.
    """

    copy: str | None
    written_at: str | None
    trials: int
    found: tuple[str, ...]
    unfinished: tuple[str, ...]
    aside: Path | None
    lost: tuple[str, ...] | None
    problems: tuple[str, ...]


@runtime_checkable
class History(Protocol):
    """The trials of every job. The test suite for a new one is ``tests/contracts/history.py``.

    A history inherits this class.

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
        return list(self.snapshot(job, last).trials)

    def count(self, job: str) -> int:
        """Return how many trials a job has."""
        return len(self.trials(job))

    def unfinished(self, job: str) -> list[Trial]:
        """Return the dispatched trials of a job, oldest first; those among the newest suffice."""
        return [trial for trial in self.trials(job, NEWEST) if not trial.status.finished]

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id, of any job; ``None`` if there is none."""
        ...

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """Return what ``trials`` returns, and the version of the job's history."""
        ...

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """Renew a turn of a job by ``TURN_S``, and return its place; see ``history/turns.py``.

        Without a number, or with that of a turn that has expired, take a new one at the end. A
        history without turns inherits this answer: nobody waits, and choices become stale.
        """
        return Turn(0)

    def leave_turn(self, job: str, number: int) -> None:
        """End a turn without beginning a trial; nothing happens if it has expired."""
        return

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """Store a new trial durably; one from ``Trial.resume`` replaces the preempted one.

        ``after`` is the version of the snapshot that the trial was chosen from. ``turn`` is the
        number of the turn in which the snapshot was taken, and the turn ends; 0: the version alone
        decides.

        Raises:
            Conflict: If the choice is stale (``rules.makes_stale``), the history was restored, or
                others are ahead. Nothing is stored; ask for the turn, take another snapshot and
                choose again.
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

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """Store trials of another history, in order, all or none; return them as stored.

        A trial that is stored already stays as it is, except that a late result replaces LOST and
        ``DISPATCHED``. In a shared history, one that began offline gets the next number of its job.

        Raises:
            ValueError: If an id does not match its numbers, a trial could not be read back or, in
                a shared history, another trial has the same id.
        """
        ...

    # What only histories of several machines need. A history of this home inherits these answers.

    def address(self, job: str) -> str | None:
        """Return the address of the shared history of a job; ``None`` if it is of this home."""
        return None

    def keeps_leases(self, job: str) -> bool:
        """Whether the history of a job has leases, for trials of other machines.

        Such a history records a trial as LOST if its lease is not renewed. In a history of this
        home, only the lock in the run directory shows whether the launcher is alive.
        """
        return self.address(job) is not None

    def renew(self, trial: str, live: dict[str, Any] | None = None) -> bool:
        """Renew the lease of a trial by ``LEASE_S``, and keep what is known while it runs.

        Return whether somebody has asked to cancel it.
        """
        return False

    def ask_to_cancel(self, trial: str) -> bool:
        """Ask the launcher of a trial to cancel it; the answer to its next heartbeat says so.

        Return ``False`` if the trial does not run, or this history gets no heartbeats.
        """
        return False

    def live(self, trial: str) -> dict[str, Any] | None:
        """Return what was kept with the last ``renew`` of a trial; ``None`` if nothing was."""
        return None

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """Keep the power over time of a trial, reduced for people."""
        return

    def keep_settings(self, job: str, settings: str) -> None:
        """Keep the job file of a job, without secrets, as its newest run used it."""
        return

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """Keep what a machine reports of itself: its GPUs and schedules."""
        return

    def deliver(self) -> None:
        """Deliver what waits here.

        Raises:
            UnavailableError: If the history does not respond.
        """
        return

    def restore(self, job: str, found: Sequence[Trial]) -> Restoration:
        """Add what run directories contain and the history lacks; ``found`` are their trials."""
        raise UsageError("--restore rebuilds zeusrun's own history; unset ZEUSRUN_HISTORY")

    def tell(self, text: str) -> None:
        """Show a sentence to the user once, if the history was opened with a way to do so."""
        return


LEASE_S = 120.0
"""How long a trial of a shared history counts as running after its launcher's last heartbeat."""
HEARTBEAT_S = 20.0


@runtime_checkable
class Shared(History, Protocol):
    """A history on a server: both the client's side and the database of the server.

    A trial is named by its id or its uuid. Every method raises what those of ``History`` raise, and
    ``UnavailableError`` if the server or the database does not respond.
    """

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        found = self.changes(job, None, last)
        return Snapshot(found.trials, found.version)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        return self.changes(job, None, 0).total

    def changes(self, job: str, after: str | None, last: int | None = None) -> Changes:
        """Return what changed since the version ``after``; without one, the newest ``last``."""
        ...
