"""Creates the tables of a shared history, and says which tables and which history they are.

There is one revision of the tables. A release that changes them needs a migration of its own.
"""

from __future__ import annotations

import errno
import os
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from zeusrun.errors import HistoryError, unwritable
from zeusrun.files.private import make_folder, open_for_writing
from zeusrun.history.sql.engine import reading, writing
from zeusrun.history.sql.faults import describe
from zeusrun.history.sql.schema import HISTORY, METADATA, REVISION

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine

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
    try:
        path.stat()
    except OSError as error:
        if error.errno not in {errno.ENOENT, errno.ENOTDIR}:
            return  # perhaps it exists, and this user may not see it: opening it fails
        try:
            make_folder(path.parent)
            os.close(open_for_writing(path, os.O_WRONLY | os.O_CREAT))
        except OSError as failed:
            raise unwritable(path, failed) from failed
