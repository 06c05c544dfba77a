"""Opens a database by its URL: connections, transactions and its clock."""

from __future__ import annotations

import random
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import make_url
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeusrun.errors import UsageError
from zeusrun.history.sql.faults import InterruptedWriteError, explained
from zeusrun.plugins import how_to_add

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
    except (exc.ArgumentError, ValueError):
        raise UsageError(
            "the URL of the database cannot be read; write sqlite:////absolute/path.db or "
            "postgresql://user:password@host/name, and encode special characters of the password, "
            "such as %2F for /"
        ) from None
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise UsageError(
            "the URL of the database begins with neither sqlite: nor postgresql:; zeusrun keeps a "
            "history in no other database"
        )
    url = url.set(drivername=_DRIVERS[backend])
    if backend == "sqlite":
        if not Path(url.database or "").is_absolute():
            raise UsageError(
                "the URL of the database names no file, or a relative path, which is another file "
                "in each directory; write sqlite:////absolute/path.db"
            )
        return url
    if not url.database:
        raise UsageError("the URL of the database has no name of a database after the host")
    if "@" in f"{url.host}{url.database}":
        raise UsageError(
            "the password in the URL of the database contains a special character: encode it, such "
            "as %2F for /, %3F for ? and %40 for @"
        )
    return url


def open_engine(url: URL) -> Engine:
    """Return the engine of a database; it connects with the first statement.

    Raises:
        UsageError: If the driver is not installed.
    """
    backend = url.get_backend_name()
    own = _OPTIONS[backend]
    options: dict[str, Any] = {
        "connect_args": {name: value for name, value in own.items() if name not in url.query},
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
