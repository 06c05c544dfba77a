"""What the errors of a database mean, without any password or value, and what to do."""

from __future__ import annotations

import errno
import re
import sqlite3
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
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
    """What has happened, in a sentence with advice; ``{what}`` is the database's own message."""

    INTERRUPTED = "the database {where} interrupts writing for another write: {what}; try again"
    AWAY = (
        "the database {where} does not respond: {what}; check that it runs and that this machine "
        "can reach it"
    )
    LOCKED = (
        "the database {where} has been locked by another program for too long: {what}; end what "
        "holds it open, such as a backup or an interactive session, and try again"
    )
    CROWDED = (
        "the database {where} accepts no more connections: {what}; use fewer workers, or raise its "
        "limit (max_connections)"
    )
    READ_ONLY = (
        "the database {where} is read-only: {what}; make it writable, or name the primary server "
        "if this is a replica"
    )
    FULL = "the disk of the database {where} is full: {what}; free some space on it"
    DENIED = (
        "the database {where} denies access: {what}; check the user and the password in its URL, "
        "and what the user may do"
    )
    NO_ACCESS = "zeusrun may not open {where}: {what}; give it access to the file and its folder"
    NO_DATABASE = (
        "there is no database {where}: {what}; check its URL, or ZEUSRUN_HOME; "
        "`zeusrun db upgrade` creates a SQLite file; a database server has a command such as "
        "createdb"
    )
    NO_TABLES = (
        "the database {where} does not contain the tables of this zeusrun: {what}; run: "
        "zeusrun db upgrade"
    )
    IN_THE_WAY = (
        "the database {where} contains tables that zeusrun cannot change: {what}; they belong to "
        "another program, or an upgrade was interrupted: use an empty database, or restore a backup"
    )
    DAMAGED = "the database {where} is damaged: {what}; restore a backup (docs/server-database.md)"
    OTHER = "the database {where} reports an error: {what}"


_UNAVAILABLE = {Fault.AWAY, Fault.LOCKED, Fault.CROWDED}

# https://www.postgresql.org/docs/current/errcodes-appendix.html: by the code, else by its class.
_SQLSTATES = {
    "40": Fault.INTERRUPTED,
    "23505": Fault.INTERRUPTED,  # the same row was inserted at the same time
    "08": Fault.AWAY,
    "57": Fault.AWAY,
    "58": Fault.AWAY,
    "25P03": Fault.AWAY,
    "25P04": Fault.AWAY,
    "55P03": Fault.LOCKED,
    "53300": Fault.CROWDED,
    "25006": Fault.READ_ONLY,
    "53100": Fault.FULL,
    "53": Fault.AWAY,
    "28": Fault.DENIED,
    "42501": Fault.DENIED,
    "3D000": Fault.NO_DATABASE,
    "42P01": Fault.NO_TABLES,
    "42703": Fault.NO_TABLES,
    "3F000": Fault.NO_TABLES,
    "42P07": Fault.IN_THE_WAY,
    "42701": Fault.IN_THE_WAY,
    "XX001": Fault.DAMAGED,
    "XX002": Fault.DAMAGED,
}
# https://mariadb.com/kb/en/mariadb-error-code-reference/
_MYSQL_NUMBERS = {
    Fault.INTERRUPTED: (1020, 1062, 1213),
    Fault.AWAY: (1053, 1077, 1080, 1152, 1159, 1161, 1317, 1927, *range(2000, 2060)),
    Fault.LOCKED: (1205,),
    Fault.CROWDED: (1040, 1203, 1226),
    Fault.READ_ONLY: (1036, 1290, 1792, 1836, 4202),
    Fault.FULL: (1021, 1114),
    Fault.DENIED: (1044, 1045, 1142, 1143, 1227, 1370, 1698),
    Fault.NO_DATABASE: (1046, 1049),
    Fault.NO_TABLES: (1054, 1146),
    Fault.IN_THE_WAY: (1050, 1060, 1061),
    Fault.DAMAGED: (126, 127, 145, 1034, 1194, 1712),
}
_MYSQL = {number: fault for fault, numbers in _MYSQL_NUMBERS.items() for number in numbers}
# SQLite has few codes before Python 3.11, and an error on connecting to PostgreSQL has none.
_TEXTS = (
    (re.compile(r"database (table )?is locked|database schema is locked"), Fault.LOCKED),
    (re.compile(r"readonly database|read-only"), Fault.READ_ONLY),
    (re.compile(r"disk is full|No space left"), Fault.FULL),
    (re.compile(r"no such (table|column)|has no column"), Fault.NO_TABLES),
    (re.compile(r"already exists|duplicate column"), Fault.IN_THE_WAY),
    (re.compile(r"unable to open database file"), Fault.NO_DATABASE),
    (re.compile(r"UNIQUE constraint failed"), Fault.INTERRUPTED),
    (re.compile(r"malformed|not a database|disk I/O error"), Fault.DAMAGED),
    (re.compile(r"FATAL: .*(too many clients|connection slots)"), Fault.CROWDED),
    (re.compile(r"FATAL: .*(authentication failed|pg_hba|role .* (not|is not))"), Fault.DENIED),
    (re.compile(r"no password supplied"), Fault.DENIED),
    (re.compile(r"FATAL: .*database .* does not exist"), Fault.NO_DATABASE),
)


def describe(url: URL) -> str:
    """Return which database a URL names, without the password and without options."""
    if url.get_backend_name() == "sqlite":
        return str(url.database)
    return url.set(drivername=url.get_backend_name(), password=None, query={}).render_as_string()


def is_missing(url: URL) -> bool:
    """Whether a SQLite file does not exist; if this user may not see it, it is not missing."""
    try:
        Path(str(url.database)).stat()
    except OSError as error:
        return error.errno in {errno.ENOENT, errno.ENOTDIR}
    return False


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
    fault = _find_fault(error, original)
    if fault is Fault.NO_DATABASE and url.get_backend_name() == "sqlite":
        fault = fault if is_missing(url) else Fault.NO_ACCESS
    what = _message(error, original)
    named = (value for name in _PASSWORDS for value in url.normalized_query.get(name, ()))
    for secret in filter(None, (url.password, *named)):
        what = what.replace(str(secret), MASK)
    message = fault.value.format(where=describe(url), what=what)
    if fault is Fault.INTERRUPTED:
        return InterruptedWriteError(message)
    return (UnavailableError if fault in _UNAVAILABLE else HistoryError)(message)


def _find_fault(error: exc.SQLAlchemyError, original: Any) -> Fault:  # noqa: ANN401 - the driver's
    number = original.args[0] if original.args else None
    if isinstance(number, int) and number in _MYSQL:
        return _MYSQL[number]
    state = getattr(original, "sqlstate", None)
    if state is not None:
        return _SQLSTATES.get(state) or _SQLSTATES.get(state[:2]) or Fault.OTHER
    found = next((fault for pattern, fault in _TEXTS if pattern.search(str(original))), None)
    if found is not None:
        return found
    lost = getattr(error, "connection_invalidated", False)
    if isinstance(original, sqlite3.Error):
        return Fault.OTHER
    if lost or isinstance(error, (exc.OperationalError, exc.InterfaceError, exc.TimeoutError)):
        return Fault.AWAY
    return Fault.OTHER


def _message(error: exc.SQLAlchemyError, original: Any) -> str:  # noqa: ANN401 - the driver's
    """Return the first line of what the database says, if it cannot contain a value."""
    code = original.args[0] if original.args else ""
    has_value = isinstance(error, exc.DataError) or (
        isinstance(error, exc.IntegrityError) and isinstance(code, int)
    )
    if has_value:
        return f"{type(original).__name__} {getattr(original, 'sqlstate', None) or code}"
    diagnosis = getattr(original, "diag", None)
    text = getattr(diagnosis, "message_primary", None) or str(original)
    return " ".join(text.split())[:_LONGEST]
