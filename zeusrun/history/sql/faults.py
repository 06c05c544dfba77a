"""What the errors of a database mean, without any password or value, and what to do."""

from __future__ import annotations

import re
import sqlite3
from contextlib import contextmanager
from enum import Enum
from typing import TYPE_CHECKING, Any

from sqlalchemy import exc

from zeusrun.errors import HistoryError
from zeusrun.history.base import UnavailableError
from zeusrun.redaction import MASK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL, Engine

_LONGEST = 200  # characters of a message of a database
_PASSWORDS = ("password", "passwd", "sslpassword")  # in the query of a URL


class InterruptedWriteError(UnavailableError):
    """The database has undone a transaction for another one; the same again can succeed."""


class Fault(Enum):
    """What has happened, in a sentence; ``{what}`` is the database's own message."""

    INTERRUPTED = "the database {where} interrupts writing for another write: {what}; try again"
    UNREACHABLE = (
        "the database {where} does not respond: {what}; check that it runs, that this machine can "
        "reach it, and that no other program holds it locked"
    )
    NO_DATABASE = (
        "the database {where} cannot be opened: {what}; check its URL, ZEUSRUN_HOME, and who may "
        "use the file and its folder; `zeusrun db create` creates a SQLite file"
    )
    NO_TABLES = (
        "the database {where} does not contain the tables of this zeusrun: {what}; run: "
        "zeusrun db create"
    )
    OTHER = "the database {where} reports an error: {what}"


# https://www.postgresql.org/docs/current/errcodes-appendix.html: by the code, else by its class.
_SQLSTATES = {
    "40": Fault.INTERRUPTED,
    "23505": Fault.INTERRUPTED,  # the same row was inserted at the same time
    **dict.fromkeys(("08", "57", "58", "53", "25P03", "25P04", "55P03"), Fault.UNREACHABLE),
    "53100": Fault.OTHER,  # its disk is full
    "3D000": Fault.NO_DATABASE,
    **dict.fromkeys(("42P01", "42703", "3F000"), Fault.NO_TABLES),
}
# SQLite has few codes before Python 3.11, and an error on connecting to PostgreSQL has none.
_TEXTS = (
    (re.compile(r"database (table |schema )?is locked"), Fault.UNREACHABLE),
    (re.compile(r"no such (table|column)|has no column"), Fault.NO_TABLES),
    (re.compile(r"unable to open database file|FATAL: .*database .* not exist"), Fault.NO_DATABASE),
    (re.compile(r"UNIQUE constraint failed"), Fault.INTERRUPTED),
    (re.compile(r"FATAL: .*(authentication failed|pg_hba|role )|no password"), Fault.OTHER),
)


def describe(url: URL) -> str:
    """Return which database a URL names, without the password and without options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername=url.get_backend_name(), password=None, query={}).render_as_string()


@contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Turn the errors of a database into ``HistoryError``."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        raise explain(error, engine.url) from None


def explain(error: exc.SQLAlchemyError, url: URL) -> HistoryError:
    """Return the error for people, with advice; one that passes is an ``UnavailableError``."""
    original: Any = getattr(error, "orig", None) or error
    fault, what = _find_fault(error, original), _message(error, original)
    named = (value for name in _PASSWORDS for value in url.normalized_query.get(name, ()))
    for secret in filter(None, (url.password, *named)):
        what = what.replace(str(secret), MASK)
    kinds = {Fault.INTERRUPTED: InterruptedWriteError, Fault.UNREACHABLE: UnavailableError}
    return kinds.get(fault, HistoryError)(fault.value.format(where=describe(url), what=what))


def _find_fault(error: exc.SQLAlchemyError, original: Any) -> Fault:  # noqa: ANN401 - the driver's
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _SQLSTATES.get(state) or _SQLSTATES.get(state[:2]) or Fault.OTHER
    found = next((fault for pattern, fault in _TEXTS if pattern.search(str(original))), None)
    if found is not None or isinstance(original, sqlite3.Error):
        return found or Fault.OTHER
    lost = getattr(error, "connection_invalidated", False)
    passes = (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)
    return Fault.UNREACHABLE if lost or isinstance(error, passes) else Fault.OTHER


def _message(error: exc.SQLAlchemyError, original: Any) -> str:  # noqa: ANN401 - the driver's
    """Return the first line of what the database says, if it cannot contain a value."""
    if isinstance(error, exc.DataError):
        return f"{type(original).__name__} {getattr(original, 'sqlstate', None) or ''}"
    diagnosis = getattr(original, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(original)
    return " ".join(text.split())[:_LONGEST]
