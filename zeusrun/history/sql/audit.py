"""The log of who changed what, written in the same transaction as the change.

A transaction that changes no row, or only a lease, as when a request comes twice, is not logged.
"""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.history.sql.engine import now_s, reading, writing
from zeusrun.history.sql.schema import AUDIT, LEASES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import Connection, Engine

_DAY_S = 86400.0
_LONGEST = {"client": 64, "action": 32, "subject": 250}


class AuditEntry(NamedTuple):
    """Who changes what. ``at`` is in Unix seconds by the database's clock."""

    action: str
    subject: str  # a job, a trial, a token
    token: str | None = None  # its id; ``None`` without one
    client: str | None = None  # its address; ``None`` for a command on the database itself
    at: float | None = None


@dataclass
class _Announced:
    entry: AuditEntry
    changes: bool = False  # whether the transaction has changed a row


_ANNOUNCED: ContextVar[_Announced | None] = ContextVar("announced", default=None)


@contextmanager
def audited(entry: AuditEntry) -> Iterator[None]:
    """Log what this thread commits to a database inside of the block."""
    before = _ANNOUNCED.set(_Announced(entry))
    try:
        yield
    finally:
        _ANNOUNCED.reset(before)


def keep_audit(engine: Engine) -> None:
    """Have the transactions of an engine log what ``audited`` announces."""
    sa.event.listen(engine, "after_cursor_execute", _note_change)
    sa.event.listen(engine, "commit", _log_change)


def list_entries(engine: Engine, last: int) -> list[AuditEntry]:
    """Return the newest entries, oldest first."""
    query = sa.select(AUDIT).order_by(AUDIT.c.id.desc()).limit(last)
    with reading(engine) as connection:
        rows = list(connection.execute(query))
    return [
        AuditEntry(row.action, row.subject, row.token, row.client, row.at) for row in rows[::-1]
    ]


def prune_entries(engine: Engine, days: float) -> int:
    """Remove entries that are older; return how many."""
    old = sa.delete(AUDIT).where(AUDIT.c.at < now_s() - days * _DAY_S)
    with writing(engine) as connection:
        return int(connection.execute(old).rowcount)


def _note_change(*of_statement: Any) -> None:  # noqa: ANN401 - as SQLAlchemy's event passes them
    _, cursor, _, _, context, _ = of_statement
    announced = _ANNOUNCED.get()
    if announced is None or not (context.isinsert or context.isupdate or context.isdelete):
        return
    if cursor.rowcount != 0 and context.compiled.statement.table is not LEASES:
        announced.changes = True


def _log_change(connection: Connection) -> None:
    announced = _ANNOUNCED.get()
    if announced is None or not announced.changes:
        return
    values = {
        name: None if value is None else str(value)[: _LONGEST.get(name)]
        for name, value in announced.entry._asdict().items()
    }
    connection.execute(sa.insert(AUDIT).values({**values, "at": now_s()}))
    announced.changes = False
