"""Creates and changes the tables of a shared history, by Alembic's migrations."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import sqlalchemy as sa

from zeusrun.errors import HistoryError, UsageError, unwritable
from zeusrun.files.private import make_folder, open_for_writing
from zeusrun.history.sql.audit import AuditEntry, audited, keep_audit
from zeusrun.history.sql.engine import open_engine, reading, writing
from zeusrun.history.sql.faults import describe, is_missing
from zeusrun.history.sql.identity import read_revision, refuse_newer, start_incarnation
from zeusrun.history.sql.schema import HISTORY, REVISIONS
from zeusrun.plugins import no_plugins

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from alembic.config import Config
    from sqlalchemy.engine import Connection, Engine

_LOCK = 0x7A657573  # any number, the same for all; others rarely lock a number
_WAIT_S = 60


def is_new(engine: Engine) -> bool:
    """Whether the database is a SQLite file that does not exist yet, or is empty."""
    if engine.dialect.name != "sqlite":
        return False
    if is_missing(engine.url):
        return True
    with reading(engine) as connection:  # another process may be creating the tables
        return not connection.scalar(sa.text("SELECT count(*) FROM sqlite_master"))


def upgrade(engine: Engine) -> str | None:
    """Create the tables, or change them to those of this zeusrun; return the revision before.

    A SQLite file that does not exist is created, for its owner alone. Several processes may call
    this at once.

    Raises:
        HistoryError: If the database cannot be changed, or a newer zeusrun has migrated it.
    """
    if engine.dialect.name == "sqlite" and is_missing(engine.url):
        _create_file(Path(str(engine.url.database)))
    with audited(AuditEntry("db upgrade", REVISIONS[-1])), _alone(engine) as connection:
        before = read_revision(connection)
        refuse_newer(before, describe(engine.url))
        if before != REVISIONS[-1]:
            _load_alembic().upgrade(_configure(connection), "head")
        if connection.scalar(sa.select(HISTORY.c.id)) is None:
            connection.execute(sa.insert(HISTORY).values(id=1, incarnation=""))
            start_incarnation(connection)
    return before


def downgrade(engine: Engine, revision: str) -> str:
    """Change the tables back to an earlier revision; return the one before.

    Raises:
        HistoryError: If the database cannot be changed, or does not have a later revision.
        UsageError: If there is no such revision.
    """
    if revision not in REVISIONS:
        known = ", ".join(REVISIONS)
        raise UsageError(f"there is no revision {revision!r} of the tables; there are: {known}")
    with audited(AuditEntry("db downgrade", revision)), _alone(engine) as connection:
        before = read_revision(connection)
        where = describe(engine.url)
        refuse_newer(before, where)
        if before is None or REVISIONS.index(before) < REVISIONS.index(revision):
            raise HistoryError(
                f"the database {where} is at revision {before or 'none'}, which is not later than "
                f"{revision}; `zeusrun db upgrade` goes forward"
            )
        if before != revision:
            _load_alembic().downgrade(_configure(connection), revision)
    return before


def _create_file(path: Path) -> None:
    try:
        make_folder(path.parent)
        os.close(open_for_writing(path, os.O_WRONLY | os.O_CREAT))
    except OSError as error:
        raise unwritable(path, error) from error


@contextmanager
def _alone(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes, while no other process migrates the same database."""
    if engine.dialect.name in {"sqlite", "postgresql"}:
        with writing(engine) as connection:  # SQLite allows one at a time
            if engine.dialect.name == "postgresql":
                connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
                connection.execute(sa.text("SET LOCAL statement_timeout = 0"))
            yield connection
        return
    # In MySQL each change of a table ends a transaction, and a large table may take minutes. This
    # lock lasts as long as the connection.
    name = sa.func.concat("zeusrun ", sa.func.md5(sa.func.database()))
    own = open_engine(engine.url.update_query_dict({"read_timeout": "7200"}))
    keep_audit(own)
    try:
        with writing(own) as connection:
            if not connection.scalar(sa.select(sa.func.get_lock(name, _WAIT_S))):
                raise HistoryError(
                    f"another process has been migrating {describe(engine.url)} for {_WAIT_S} s; "
                    "try again"
                )
            yield connection
    finally:
        own.dispose()


def _load_alembic() -> ModuleType:
    with no_plugins():
        from alembic import command  # noqa: PLC0415 - 0.2 s, and hardly ever needed

    return command


def _configure(connection: Connection) -> Config:
    from alembic.config import Config  # noqa: PLC0415 - see above

    config = Config()
    config.set_main_option("script_location", "zeusrun.history.sql:migrations")
    config.attributes["connection"] = connection
    return config
