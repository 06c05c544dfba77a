"""Trials as rows: a job that is locked, and the trials that are found, stored and lost in it."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun import __version__
from zeusrun.clock import timestamp
from zeusrun.history import rules
from zeusrun.history.base import LEASE_S, UnreadableTrialError
from zeusrun.history.sql import schema
from zeusrun.history.sql.engine import insert_missing, now_s
from zeusrun.history.sql.schema import HOSTS, JOBS, LEASES, TRIALS
from zeusrun.history.turns import Turns
from zeusrun.job_name import check_job_name
from zeusrun.reasons import ReasonCode
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

_HOST_KEPT_S = 30 * 86400.0  # after its last report
_HOST_BYTES = 64 << 10  # of a report; one with 8 GPUs and 20 schedules has 16 KiB
_KEPT = 2048  # decoded trials, about 30 MB: servers read the newest ones again and again
_SHORT = 8192  # characters of a record; longer ones are rare, and decoded each time

# Built once: SQLAlchemy takes longer to build a statement than SQLite to execute it.
_NUMBER: sa.BindParameter[int] = sa.bindparam("own_number")
_LOCK_JOB = (
    sa.select(JOBS.c.changes, JOBS.c.trials, JOBS.c.recurrences, JOBS.c.stale, JOBS.c.turns)
    .where(JOBS.c.name == sa.bindparam("own_name"))
    .with_for_update()
)
_COUNT_JOB = sa.update(JOBS).where(JOBS.c.name == sa.bindparam("own_name"))
_INSERT_TRIAL = sa.insert(TRIALS)
_UPDATE_TRIAL = sa.update(TRIALS).where(TRIALS.c.number == _NUMBER)
_FOUND = sa.select(TRIALS.c.number, TRIALS.c.record, TRIALS.c.job)
_FIND_NUMBER = _FOUND.where(TRIALS.c.number == _NUMBER)
_FIND_NAME = _FOUND.where(TRIALS.c.trial == sa.bindparam("own_name"))
_FIND_UUID = _FOUND.where(TRIALS.c.uuid == sa.bindparam("own_name"))
_INSERT_LEASE = sa.insert(LEASES).values(expires_at=now_s() + LEASE_S, cancel=sa.false())
_DELETE_LEASE = sa.delete(LEASES).where(LEASES.c.number == _NUMBER)
_LAST_LIVE = sa.select(LEASES.c.live).where(LEASES.c.number == TRIALS.c.number).scalar_subquery()
_KEEP_LIVE = _UPDATE_TRIAL.values(live=sa.func.coalesce(_LAST_LIVE, TRIALS.c.live))
_NOW = sa.select(now_s())
_VERSION = re.compile(r"(?P<incarnation>[0-9a-f]{32}):(?P<changes>[0-9]{1,18})")
# The lease, too, is locked: no heartbeat can renew it while its trial is lost.
_LOCK_EXPIRED = (
    sa.select(TRIALS.c.record, now_s(), LEASES.c.live)
    .join(LEASES, LEASES.c.number == TRIALS.c.number)
    .where(LEASES.c.number == _NUMBER, LEASES.c.expires_at < now_s())
    .with_for_update()
)


class StoredTrial(NamedTuple):
    """A stored trial and its number in the database."""

    number: int
    trial: Trial
    record: str


class LockedJob:
    """A job whose history no other transaction changes until this one ends.

    Opening it locks the row of the job, or creates it, and waits for transactions that have locked
    it.
    """

    def __init__(self, connection: Connection, name: str) -> None:
        check_job_name(name)
        row = connection.execute(_LOCK_JOB, {"own_name": name}).one_or_none()
        if row is None:
            insert_job(connection, name)
            row = connection.execute(_LOCK_JOB, {"own_name": name}).one()
        self.name = name
        self._connection = connection
        self._changes, self._trials, self._recurrences, self._stale, self._turns = row

    def is_stale(self, after: str) -> bool:
        """Whether a choice from the snapshot with this version is stale."""
        since = parse_version(after, schema.read_incarnation(self._connection))
        return since is None or not self._stale <= since <= self._changes

    def read_turns(self) -> Turns:
        """Return the turns of the job."""
        return Turns(self._turns, float(self._connection.scalar(_NOW) or 0))

    def set_turns(self, turns: Turns) -> None:
        """Replace the turns of the job; ``write_counts`` stores them."""
        self._turns = turns.text

    def number_next(self, trial: Trial) -> Trial:
        """Return a trial that began offline with the next number of the job."""
        number = self._recurrences + 1
        return replace(trial, trial=f"{self.name}-{number}-1", recurrence=number, attempt=1)

    def store(self, trial: Trial, known: StoredTrial | None) -> int:
        """Write a new trial, or one that has changed; return its number.

        Raises:
            ValueError: If it could not be read back.
        """
        record = rules.encode_trial(trial)
        if known is not None:  # fields that only a newer zeusrun knows stay as they are
            record = {**json.loads(known.record), **record}
        self._changes += 1
        if rules.makes_stale(trial, None if known is None else known.trial):
            self._stale = self._changes
        self._recurrences = max(self._recurrences, trial.recurrence)
        values = schema.column_values(trial) | {
            "changed": self._changes,
            "trained": trial.time_s is not None or bool(trial.whole_steps),
            "record": json.dumps(record),
        }
        if known is None:
            self._trials += 1
            inserted = self._connection.execute(_INSERT_TRIAL, values)
            (number,) = inserted.inserted_primary_key or (0,)
        else:
            number = known.number
            values["own_number"] = number
            if trial.status is TrialStatus.LOST:  # a late result may build on what is known
                self._connection.execute(_KEEP_LIVE, values)
            else:
                self._connection.execute(_UPDATE_TRIAL, {**values, "live": None})
        if known is None or trial.status != known.trial.status:
            self._lease(number, trial, is_new=known is None)
        self.write_counts()
        return int(number)

    def write_counts(self) -> None:
        """Write what the row of the job contains."""
        counts = {
            "own_name": self.name,
            "changes": self._changes,
            "trials": self._trials,
            "recurrences": self._recurrences,
            "stale": self._stale,
            "turns": self._turns,
        }
        self._connection.execute(_COUNT_JOB, counts)

    def _lease(self, number: int, trial: Trial, *, is_new: bool) -> None:
        if not trial.status.finished:
            self._connection.execute(_INSERT_LEASE, {"number": number, "job": self.name})
        elif not is_new:
            self._connection.execute(_DELETE_LEASE, {"own_number": number})


def insert_job(connection: Connection, name: str) -> None:
    """Insert the row of a job, unless it is there."""
    insert_missing(connection, JOBS, name=name, changes=0, trials=0, recurrences=0, stale=0)


def parse_version(version: str | None, incarnation: str) -> int | None:
    """Return the number of changes in a version; ``None`` if it is of another history."""
    match = _VERSION.fullmatch(version or "")
    return int(match["changes"]) if match and match["incarnation"] == incarnation else None


def find_number(connection: Connection, name: str) -> int:
    """Return the number of the trial with an id or uuid; raises ``HistoryError`` if none has it."""
    row = _find_row(connection, name)
    if row is None:
        raise rules.unknown_trial(name)
    return int(row.number)


def find(connection: Connection, name: str) -> StoredTrial | None:
    """Return the trial with an id or uuid."""
    row = _find_row(connection, name)
    return None if row is None else StoredTrial(row.number, decode_trial(row.record), row.record)


def _find_row(connection: Connection, name: str) -> Any:  # noqa: ANN401 - a row, or ``None``
    if rules.is_uuid(name):
        return connection.execute(_FIND_UUID, {"own_name": name}).first()
    if rules.job_of(name) is None:
        return None
    return connection.execute(_FIND_NAME, {"own_name": name}).first()


def decode_trial(record: str) -> Trial:
    """Return the trial of a row; raises ``UnreadableTrialError``."""
    return (_decode_again if len(record) <= _SHORT else _decode)(record)


def _decode(record: str) -> Trial:
    try:
        return Trial.from_json(json.loads(record))
    except (ValueError, AttributeError) as error:
        found = re.search(r'"trial": ?"([^"]*)"', record)
        name = found[1] if found else "of a row"
        raise UnreadableTrialError(
            f"the trial {name} in the database cannot be read by zeusrun {__version__}: {error}; "
            "it is damaged, or a newer zeusrun has stored it"
        ) from error


_decode_again = functools.lru_cache(_KEPT)(_decode)


def change(connection: Connection, name: str, change: Callable[[Trial], Trial]) -> Trial:
    """Store what ``change`` makes of the trial with an id or uuid; return it.

    Raises:
        HistoryError: If there is no such trial.
    """
    before = _find_row(connection, name)
    if before is None:
        raise rules.unknown_trial(name)
    job = LockedJob(connection, before.job)
    row = connection.execute(_FIND_NUMBER, {"own_number": before.number}).one()  # under the lock
    known = decode_trial(row.record)
    changed = change(known)
    if changed != known:
        job.store(changed, StoredTrial(row.number, known, row.record))
    return changed


def add(connection: Connection, job: LockedJob, trial: Trial) -> Trial:
    """Store a trial of another history, as ``Shared.add`` does; return it as stored."""
    found = find(connection, trial.uuid)
    is_offline = rules.is_offline(trial)
    if found is None and not is_offline:
        found = find(connection, trial.trial)
    if found is None:
        new = job.number_next(trial) if is_offline else trial
        rules.check_numbers(new, job.name)
        job.store(new, None)
        return new
    known = found.trial
    if not rules.is_same(known, trial):
        raise ValueError(f"there is another trial {trial.trial} already")
    if not rules.is_superseded(known, trial):
        return known
    new = replace(trial, trial=known.trial, recurrence=known.recurrence, attempt=known.attempt)
    job.store(new, found)
    return new


def lose(connection: Connection, job: str, number: int) -> Trial | None:
    """Record a trial as LOST if its lease has expired; return it, or ``None`` if it has not."""
    locked = LockedJob(connection, job)
    row = connection.execute(_LOCK_EXPIRED, {"own_number": number}).first()
    if row is None:
        return None
    known = decode_trial(row[0])
    seen = _read_live(row[2], known) or known
    code, why = ReasonCode.LEASE_EXPIRED, "its lease expired: its launcher did not renew it in time"
    lost = known.finish(seen.ended_as(TrialStatus.LOST, code, why, timestamp(row[1])))
    locked.store(lost, StoredTrial(number, known, row[0]))
    return lost


def _read_live(live: str | None, known: Trial) -> Trial | None:
    """Return a trial with what its launcher reported last; ``None`` if that cannot be read."""
    try:
        seen = Trial.from_json(json.loads(live or "null"))
    except (ValueError, TypeError, AttributeError):
        return None
    return seen if (seen.trial, seen.uuid) == (known.trial, known.uuid) else None


def encode_json(value: object, what: str) -> str:
    """Return JSON in ASCII; raises ``ValueError`` for what is none."""
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{what} cannot be stored: {error}") from error


def is_listed() -> sa.ColumnElement[bool]:
    """Return the condition on ``hosts``: a machine has reported of late, and not too much."""
    seen = HOSTS.c.updated_at > now_s() - _HOST_KEPT_S
    return sa.and_(seen, sa.func.length(HOSTS.c.facts) <= _HOST_BYTES)


def check_host(host: str) -> None:
    """Raise ``ValueError`` if no machine can have this name."""
    most = schema.HOST_NAME
    if not 0 < len(host) <= most or not host.isprintable() or " " in host:
        raise ValueError(
            f"{host[:most]!r} is no name of a machine: up to {most} printable characters without "
            "spaces"
        )
