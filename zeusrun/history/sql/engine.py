"""Opens a database by its URL: connections, transactions, its clock, and what its errors mean."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from sqlalchemy import exc
from sqlalchemy.engine import make_url
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from zeusrun.errors import HistoryError, UsageError
from zeusrun.files.private import make_folder
from zeusrun.history.base import UnavailableError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy.engine import URL, Connection, Engine

_WAIT_S = 30  # for a lock of another connection, and for a connection
_DRIVERS = {
    "sqlite": ("sqlite", "server"),
    "postgresql": ("postgresql+psycopg", "postgresql"),
    "postgres": ("postgresql+psycopg", "postgresql"),
    "mysql": ("mysql+pymysql", "mysql"),
    "mariadb": ("mariadb+pymysql", "mysql"),
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


@compiles(now_s, "mysql", "mariadb")
def _mysql_now(_element: object, _compiler: object, **_: object) -> str:
    return "(unix_timestamp(sysdate(6)) + 0e0)"


def parse_url(text: str) -> URL:
    """Return the URL of a database with the driver that zeusrun uses; raises ``UsageError``."""
    try:
        url = make_url(text)
    except exc.ArgumentError:
        raise UsageError(
            "the URL of the database cannot be read; write sqlite:////absolute/path.db, "
            "postgresql://user:password@host/name or mysql://user:password@host/name"
        ) from None
    known = _DRIVERS.get(url.get_backend_name()) if "+" not in url.drivername else None
    return url if known is None else url.set(drivername=known[0])


def open_engine(url: URL) -> Engine:
    """Return the engine of a database; it connects with the first statement.

    Raises:
        UsageError: If the driver is not installed, or zeusrun does not support the database.
    """
    backend = url.get_backend_name()
    if backend not in _DRIVERS:
        raise UsageError(
            f"a history cannot be kept in a database of the kind {backend!r}; use sqlite, "
            "postgresql, mysql or mariadb"
        )
    options: dict[str, Any] = {"pool_pre_ping": True, "pool_size": 8, "max_overflow": 8}
    options |= {"pool_timeout": _WAIT_S, "hide_parameters": True}
    if backend == "sqlite":
        options = {"hide_parameters": True, "connect_args": {"timeout": _WAIT_S}}
        if url.database not in {None, "", ":memory:"}:
            make_folder(Path(str(url.database)).absolute().parent)
    elif backend == "postgresql":
        options["connect_args"] = {"connect_timeout": 5}
    else:
        options["connect_args"] = {"connect_timeout": 5, "charset": "utf8mb4"}
        options["isolation_level"] = "READ COMMITTED"
    try:
        engine = sa.create_engine(url, **options)
    except ImportError as error:
        extra = _DRIVERS[backend][1]
        raise UsageError(
            f"a {backend} database needs the package {error.name}: pip install 'zeusrun[{extra}]'"
        ) from None
    if backend == "sqlite":
        sa.event.listen(engine, "connect", _prepare_sqlite)
        sa.event.listen(engine, "begin", _begin_sqlite)
    return engine


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
    """Open a transaction that only reads; raises ``HistoryError``."""
    with explained(engine), engine.connect() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """Open a transaction that writes; it is committed at the end. Raises ``HistoryError``."""
    with (
        explained(engine),
        engine.connect().execution_options(writes=True) as connection,
        connection.begin(),
    ):
        yield connection


@contextmanager
def explained(engine: Engine) -> Iterator[None]:
    """Turn the errors of a database into ``HistoryError``, without any password."""
    try:
        yield
    except exc.SQLAlchemyError as error:
        where = engine.url.render_as_string(hide_password=True)
        original = getattr(error, "orig", None) or error
        what = " ".join(str(original).split())
        if isinstance(error, exc.OperationalError | exc.InterfaceError | exc.TimeoutError):
            raise UnavailableError(f"the database {where} does not respond: {what}") from None
        raise HistoryError(f"the database {where} refuses: {what}") from None
