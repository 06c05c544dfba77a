"""Opens a database by its URL: connections, transactions, its clock and what its errors mean.

No message contains a password or a value.
"""

from __future__ import annotations

import random
import re
import sqlite3
import threading
import time
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import UnavailableError
from zeusrun.plugins import how_to_add
from zeusrun.redaction import MASK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy.engine import URL, Connection, Engine

_Result = TypeVar("_Result")

_WAIT_S = 30  # for a lock of another connection, and for a connection
_CONNECT_S = 5
_TRIES = 6  # of a write that the database interrupts, such as one of two in a deadlock
_PAUSE_S = 0.02  # before the second try; twice as long before each further one
_DRIVERS = {
    "sqlite": "sqlite",
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
}
"""By the beginning of a URL: the driver."""

_OPTIONS: dict[str, dict[str, Any]] = {
    "sqlite": {"timeout": _WAIT_S},
    # A connection to a machine that has lost its power holds its locks for a minute at most.
    "postgresql": {
        "connect_timeout": _CONNECT_S,
        "options": f"-c lock_timeout={_WAIT_S}s -c statement_timeout={2 * _WAIT_S}s "
        "-c idle_in_transaction_session_timeout=60s",
        "keepalives_idle": 20,
        "keepalives_interval": 10,
        "keepalives_count": 3,
        "tcp_user_timeout": 40_000,  # milliseconds
    },
}


class now_s(FunctionElement[float]):  # noqa: N801 - reads as an SQL function
    """Unix seconds by the clock of the database, which all servers share."""

    type = sa.Double()
    inherit_cache = True


@compiles(now_s, "sqlite")
def _sqlite_now(_element: object, _compiler: object, **_: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


@compiles(now_s, "postgresql")
def _postgresql_now(_element: object, _compiler: object, **_: object) -> str:
    return "extract(epoch from clock_timestamp())::float8"


def parse_url(text: str) -> URL:
    """Return the URL of a database with the driver that zeusrun uses.

    Raises:
        UsageError: If it is no URL, or zeusrun does not support the database. No part of it is in
            the message, as any part may be a password.
    """
    try:
        url = make_url(text.strip())
        name, driver = url.database or "", _DRIVERS[url.get_backend_name()]
        is_part = driver != "sqlite" and "@" in f"{url.host}{name}"  # of a password
        usable = name and not is_part and (driver != "sqlite" or Path(name).is_absolute())
    except (exc.ArgumentError, ValueError, KeyError):
        usable = False
    if not usable:
        raise UsageError(
            "the URL of the database cannot be used; write sqlite:////absolute/path.db or "
            "postgresql://user:password@host/name, and encode special characters of the password, "
            "such as %2F for /, %3F for ? and %40 for @"
        )
    return url.set(drivername=driver)


def open_engine(url: URL) -> Engine:
    """Return the engine of a database; it connects with the first statement.

    Raises:
        UsageError: If the driver is not installed.
    """
    backend = url.get_backend_name()
    defaults = _OPTIONS[backend]
    options: dict[str, Any] = {
        "connect_args": {name: value for name, value in defaults.items() if name not in url.query},
        "hide_parameters": True,
        "pool_size": 8,
        "max_overflow": 8,
        "pool_timeout": _WAIT_S,
    }
    if backend != "sqlite":
        options |= {"pool_pre_ping": True, "isolation_level": "READ COMMITTED"}
    try:
        engine = sa.create_engine(url, **options)
    except ImportError as error:
        raise UsageError(
            f"a {backend} database needs {error.name}; {how_to_add(backend)}"
        ) from None
    if backend == "sqlite":
        sa.event.listen(engine, "do_connect", _open_sqlite)
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
        engine.update_execution_options(one_writer=threading.Lock())
    return engine


def _open_sqlite(
    dialect: sa.Dialect, _record: object, arguments: list[Any], options: dict[str, Any]
) -> object:
    # A file that does not exist is an error, and not a new database.
    uri = f"file:{quote(arguments[0])}?mode=rw"
    return dialect.connect(uri, *arguments[1:], **{**options, "uri": True})


def _prepare_sqlite(connection: Any, _record: object) -> None:  # noqa: ANN401 - sqlite3's
    connection.isolation_level = None  # transactions begin below
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")  # a commit survives a power failure
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that reads and then writes would fail if another one wrote in between.
    mode = "IMMEDIATE" if connection.get_execution_options().get("writes") else "DEFERRED"
    connection.exec_driver_sql(f"BEGIN {mode}")


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that only reads; raises ``HistoryError``.

    All its statements see the database at one moment, that of the first one.
    """
    options = {} if engine.dialect.name == "sqlite" else {"isolation_level": "REPEATABLE READ"}
    with explained(engine), engine.connect().execution_options(**options) as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes; it is committed at the end. Raises ``HistoryError``.

    Each statement sees what other transactions have committed before it. ``write`` repeats a
    transaction that the database interrupts.
    """
    with (
        explained(engine),
        _turn(engine),
        engine.connect().execution_options(writes=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def _turn(engine: Engine) -> Iterator[None]:
    """Wait until no other thread writes to a SQLite file.

    Between processes SQLite waits by sleeping longer and longer, up to 0.1 s at a time.
    """
    lock: threading.Lock | None = engine.get_execution_options().get("one_writer")
    if lock is None:
        yield
        return
    if not lock.acquire(timeout=_WAIT_S):
        raise exc.TimeoutError("other threads of this process have been writing to it all the time")
    try:
        yield
    finally:
        lock.release()


def write(engine: Engine, work: Callable[[Connection], _Result]) -> _Result:
    """Do ``work`` in a transaction that writes, and again if the database interrupts it.

    It does so to one of two transactions that wait for each other. Raises ``HistoryError``.
    """
    for count in range(1, _TRIES):
        try:
            with writing(engine) as connection:
                return work(connection)
        except InterruptedWriteError:
            time.sleep(_PAUSE_S * 2**count * random.random())  # noqa: S311 - no secret
    with writing(engine) as connection:
        return work(connection)


def insert_missing(connection: Connection, table: sa.Table, **values: Any) -> None:  # noqa: ANN401 - of any column
    """Insert a row unless one with the same primary key is there or comes at the same time."""
    dialect: Any = postgresql if connection.dialect.name == "postgresql" else sqlite
    connection.execute(dialect.insert(table).values(values).on_conflict_do_nothing())


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
