"""What a database is: the revision of its tables, and which incarnation of a history."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import sqlalchemy as sa

from zeusrun.errors import HistoryError
from zeusrun.history.sql.engine import reading
from zeusrun.history.sql.faults import describe
from zeusrun.history.sql.schema import HISTORY, REVISIONS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

REVISION_TABLE = "zeusrun_revision"  # not Alembic's usual name, which other programs use
_INCARNATION = sa.select(HISTORY.c.incarnation)  # built once: it is read with every change
_REVISION = sa.table(REVISION_TABLE, sa.column("version_num"))


def read_revision(connection: Connection) -> str | None:
    """Return the last migration of a database; ``None`` if zeusrun has no tables in it."""
    if not sa.inspect(connection).has_table(REVISION_TABLE):
        return None
    return connection.scalar(sa.select(_REVISION.c.version_num))


def check_revision(engine: Engine) -> str:
    """Return the revision of a database; raise ``HistoryError`` unless it is this zeusrun's."""
    with reading(engine) as connection:
        revision = read_revision(connection)
    where, newest = describe(engine.url), REVISIONS[-1]
    if revision is None:
        raise HistoryError(
            f"the database {where} does not contain the tables of zeusrun; run: zeusrun db upgrade"
        )
    refuse_newer(revision, where)
    if revision != newest:
        raise HistoryError(
            f"the database {where} has the tables of an older zeusrun (revision {revision}, needed "
            f"is {newest}); stop what uses it, back it up, then run: zeusrun db upgrade"
        )
    return revision


def refuse_newer(revision: str | None, where: str) -> None:
    """Raise ``HistoryError`` for a revision that this zeusrun does not know."""
    if revision is not None and revision not in REVISIONS:
        raise HistoryError(
            f"the database {where} was migrated by a newer zeusrun (revision {revision[:32]}; this "
            f"one knows revisions up to {REVISIONS[-1]}); install that zeusrun on this machine, too"
        )


def read_incarnation(connection: Connection) -> str:
    """Return the random id of the history in a database."""
    found = connection.scalar(_INCARNATION)
    if found is None:
        raise HistoryError("the database has no history yet; run: zeusrun db upgrade")
    return str(found)


def start_incarnation(connection: Connection) -> None:
    """Give the history in a database a new id, so that all copies of it are read anew."""
    connection.execute(sa.update(HISTORY).values(incarnation=uuid.uuid4().hex))
