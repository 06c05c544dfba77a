"""The tables of a shared history: what they are, how they are created, and which history it is.

Some fields of the records of trials have a column, for searches and for sums.

There is one revision of the tables. A change needs another ``REVISION``, and a migration once there
has been a release.
"""

from __future__ import annotations

import errno
import os
import typing
import uuid
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.clock import unix_seconds
from zeusrun.errors import HistoryError, writes_to
from zeusrun.files.private import make_folder, open_for_writing
from zeusrun.history.sql.engine import describe, reading, writing
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection, Engine

_CHARACTERS = 150  # of a text; an id has at most 102, an index row 2,704 bytes
_MAX_AMOUNT = 1e30  # a larger amount is invalid, and sums would overflow


class _Kind(NamedTuple):
    column: sa.types.TypeEngine[Any]
    convert: Callable[[Any], Any]


def _storable(text: str | None) -> str | None:
    """Return a text, cut to ``_CHARACTERS``; ``None`` if it has a character that is not printable.

    Databases refuse a NUL and half a surrogate pair.
    """
    return text[:_CHARACTERS] if text is not None and text.isprintable() else None


def _addable(amount: float | None) -> float | None:
    return amount if amount is not None and abs(amount) < _MAX_AMOUNT else None


_TEXT = _Kind(sa.String(_CHARACTERS), _storable)
_MOMENT = _Kind(sa.Double(), unix_seconds)  # Unix seconds
_AMOUNT = _Kind(sa.Double(), _addable)
_KINDS = {int: _Kind(sa.BigInteger(), int), float: _AMOUNT}


def _find_stored() -> dict[str, _Kind]:
    hints = typing.get_type_hints(Trial)
    first = {name: (typing.get_args(hint) or [hint])[0] for name, hint in hints.items()}
    stored = [field.name for field in fields(Trial) if field.metadata.get("stored")]
    return {
        name: _MOMENT if name.endswith("_at") else _KINDS.get(first[name], _TEXT) for name in stored
    }


_STORED = _find_stored()
SUMS = tuple(name for name, kind in _STORED.items() if kind is _AMOUNT)
"""The columns that are summed over runs."""


def column_values(trial: Trial) -> dict[str, Any]:
    """Return the values of the columns for a trial, by the name of the field."""
    return {name: kind.convert(getattr(trial, name)) for name, kind in _STORED.items()}


REVISION = 3
"""Of the tables; a database has it in ``history``."""

# SQLite numbers rows by itself only in a column of the type INTEGER.
_Number = sa.BigInteger().with_variant(sa.Integer, "sqlite")
JOB_NAME = 100  # characters
HOST_NAME = 253  # as in DNS

METADATA = sa.MetaData()

HISTORY = sa.Table(
    "history",
    METADATA,
    sa.Column("id", sa.Integer, primary_key=True),  # always 1
    sa.Column("revision", sa.Integer, nullable=False),
    # Random. A new one says that copies of this history are no longer good.
    sa.Column("incarnation", sa.String(32), nullable=False),
)
JOBS = sa.Table(
    "jobs",
    METADATA,
    sa.Column("name", sa.String(JOB_NAME), primary_key=True),
    sa.Column("changes", sa.BigInteger, nullable=False),  # how often the job's history has changed
    sa.Column("trials", sa.BigInteger, nullable=False),  # how many it has
    sa.Column("recurrences", sa.BigInteger, nullable=False),  # the highest number of a recurrence
    sa.Column("stale", sa.BigInteger, nullable=False),  # choices of versions below this are stale
    sa.Column("turns", sa.Text),  # who chooses and who waits: ``Turns.text``
    sa.Column("settings", sa.Text),  # the job file of its newest run, as a JSON string
)
TRIALS = sa.Table(
    "trials",
    METADATA,
    sa.Column("number", _Number, primary_key=True, autoincrement=True),
    *(sa.Column(name, kind.column) for name, kind in _STORED.items()),
    sa.Column("changed", sa.BigInteger, nullable=False),  # ``jobs.changes`` at its last change
    sa.Column("trained", sa.Boolean, nullable=False),  # whether it took an optimizer step
    sa.Column("record", sa.Text, nullable=False),  # ``Trial.to_json``
    sa.Column("live", sa.Text),  # of a LOST trial: the last heartbeat
    sa.Column("trace", sa.Text),  # power over time, reduced
    sa.UniqueConstraint("trial"),
    sa.UniqueConstraint("uuid"),
    sa.Index("trials_order", "job", "recurrence", "attempt"),
    sa.Index("trials_job_changed", "job", "changed"),
    # Everything that sums and sorted lists need: they would otherwise read all records.
    sa.Index(
        "trials_listed",
        *("job", "currency", "energy_source", "status", "trained", *SUMS),
        *("global_batch_size", "started_at", "host", "gpu_model"),
        *("recurrence", "attempt", "number"),
    ),
)
# Not by their numbers: an import adds trials that are older than those that are there.
NEWEST_FIRST = (TRIALS.c.recurrence.desc(), TRIALS.c.attempt.desc())
# A table of its own: it is small, and heartbeats, most of all writes, touch nothing else.
LEASES = sa.Table(
    "leases",
    METADATA,
    sa.Column("number", _Number, primary_key=True, autoincrement=False),  # of an unfinished trial
    sa.Column("job", sa.String(JOB_NAME), nullable=False),
    sa.Column("expires_at", sa.Double, nullable=False),  # Unix seconds by the database's clock
    sa.Column("live", sa.Text),  # what its launcher sent with its last heartbeat
    sa.Column("cancel", sa.Boolean, nullable=False),  # whether somebody has asked to cancel it
    sa.Index("leases_job", "job"),
)
HOSTS = sa.Table(
    "hosts",
    METADATA,
    sa.Column("host", sa.String(HOST_NAME), primary_key=True),
    sa.Column("updated_at", sa.Double, nullable=False),  # Unix seconds by the database's clock
    sa.Column("facts", sa.Text, nullable=False),
)
TOKENS = sa.Table(
    "tokens",
    METADATA,
    sa.Column("id", sa.String(16), primary_key=True),
    sa.Column("hash", sa.String(64), nullable=False, unique=True),  # SHA-256 of the token
    sa.Column("jobs", sa.String(200), nullable=False),  # a pattern such as team-*
    sa.Column("can_write", sa.Boolean, nullable=False),
    sa.Column("for_zeus", sa.Boolean, nullable=False),
    sa.Column("note", sa.Text),
    sa.Column("created_at", sa.Double, nullable=False),
    sa.Column("expires_at", sa.Double),
    sa.Column("revoked_at", sa.Double),
    sa.Column("used_at", sa.Double),  # to the minute
)
CODES = sa.Table(
    "codes",
    METADATA,
    sa.Column("hash", sa.String(64), primary_key=True),  # SHA-256 of the code
    sa.Column("token", sa.String(16), nullable=False),  # the id of the one that it passes on
    sa.Column("expires_at", sa.Double, nullable=False),
)
ZEUS_JOBS = sa.Table(
    "zeus_jobs",
    METADATA,
    sa.Column("job_id", sa.String(200), primary_key=True),
    sa.Column("job", sa.String(JOB_NAME), nullable=False, unique=True),
    sa.Column("settings", sa.Text, nullable=False),
    sa.Column("created_at", sa.Double, nullable=False),
)


_LOCK = 0x7A657573  # any number, the same for all; others rarely lock a number
_INCARNATION = sa.select(HISTORY.c.incarnation)  # built once: it is read with every change


def create_tables(engine: Engine) -> bool:
    """Create the tables unless they are there; return whether they were created.

    A SQLite file that does not exist is created, for its owner alone. Several processes may call
    this at once.

    Raises:
        HistoryError: If the database cannot be changed, or has tables of another revision.
    """
    if engine.dialect.name == "sqlite":
        _create_file(Path(str(engine.url.database)))
    with writing(engine) as connection:  # SQLite allows one at a time
        if engine.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
        is_new = not sa.inspect(connection).has_table(HISTORY.name)
        if is_new:
            METADATA.create_all(connection, checkfirst=False)  # a table of others is an error
            connection.execute(sa.insert(HISTORY).values(id=1, revision=REVISION, incarnation=""))
            start_incarnation(connection)
    check_tables(engine)
    return is_new


def has_tables(engine: Engine) -> bool:
    """Return whether a database has tables; creates nothing.

    Raises:
        HistoryError: If it cannot be read, or has tables of another revision.
    """
    if engine.dialect.name == "sqlite" and _is_missing(Path(str(engine.url.database))):
        return False
    with reading(engine) as connection:
        found = sa.inspect(connection).has_table(HISTORY.name)
    if found:
        check_tables(engine)
    return found


def check_tables(engine: Engine) -> None:
    """Raise ``HistoryError`` unless a database has the tables of this zeusrun."""
    with reading(engine) as connection:
        revision = connection.scalar(sa.select(HISTORY.c.revision))
    if revision != REVISION:
        raise HistoryError(
            f"the database {describe(engine.url)} has the tables of another zeusrun (revision "
            f"{revision}, needed is {REVISION}); install that zeusrun on this machine, too"
        )


def read_incarnation(connection: Connection) -> str:
    """Return the random id of the history in a database."""
    return str(connection.scalar(_INCARNATION))


def start_incarnation(connection: Connection) -> None:
    """Give the history in a database a new id, so that all copies of it are read anew."""
    connection.execute(sa.update(HISTORY).values(incarnation=uuid.uuid4().hex))


def _create_file(path: Path) -> None:
    if _is_missing(path):
        with writes_to(path):
            make_folder(path.parent)
            os.close(open_for_writing(path, os.O_WRONLY | os.O_CREAT))


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except OSError as error:
        # Otherwise it may exist, and this user may not see it: opening it fails.
        return error.errno in {errno.ENOENT, errno.ENOTDIR}
    return False
