"""Fixtures: histories in SQLite files, and real servers of PostgreSQL.

A server is started when a test first needs it. All workers of a test run share it; it stops when
the last one has exited, however that exits. Without the programs of a server its tests are skipped.
"""

from __future__ import annotations

import fcntl
import itertools
import os
import shlex
import shutil
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

from tests import leftovers

_NAMES = itertools.count(1)


class Postgres:
    """PostgreSQL on a socket in a folder of its own; everybody may log in as ``postgres``."""

    user = "postgres"
    url = "postgresql://postgres@/{name}?host={folder}"

    def find(self):
        """Return the folder of its programs; ``None`` if it is not installed."""
        found = shutil.which("initdb")
        folders = [Path(found).parent] if found else []
        folders += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
        return next((str(each) for each in folders if (each / "initdb").exists()), None)

    def commands(self, programs, folder):
        data = f"{folder}/data"
        options = f"-k {folder} -c listen_addresses= -c fsync=off -c max_connections=200"
        control = [f"{programs}/pg_ctl", "-D", data, "-w"]
        return {
            "create": [
                *(f"{programs}/initdb", "-D", data, "-A", "trust", "-U", "postgres"),
                *("--no-sync", "--locale=C.UTF-8"),
            ],
            "start": [*control, "-l", f"{folder}/log", "-o", options, "start"],
            "stop": [*control, "-m", "immediate", "stop"],
            "running": [f"{programs}/pg_ctl", "-D", data, "status"],
        }


class Server:
    """A running database server.

    Attributes:
        folder: Its files, which the user of the server owns.
    """

    def __init__(self, kind, folder: Path) -> None:
        self.kind = kind
        self.folder = folder
        self._commands = kind.commands(kind.find(), folder)

    def run(self, what, *, check=True):
        """Run one of the commands ``create``, ``start``, ``stop`` and ``running``."""
        return subprocess.run(
            as_user(self.kind.user, self._commands[what]),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=check,
        )

    def url(self, name):
        """Return the URL of one of its databases."""
        return self.kind.url.format(name=name, folder=self.folder)

    def execute(self, statement, name=None):
        """Run a statement outside of any transaction."""
        import sqlalchemy as sa

        from zeusrun.history.sql.engine import parse_url

        engine = sa.create_engine(
            parse_url(self.url(name or "postgres")), isolation_level="AUTOCOMMIT"
        )
        with engine.connect() as connection:
            connection.exec_driver_sql(statement)
        engine.dispose()

    def create_database(self, template=None):
        """Create a database of its own for a test; return its URL."""
        name = f"test_{os.getpid()}_{next(_NAMES)}"
        self.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        return self.url(name)

    def stop_later(self, users: Path):
        """Stop it as soon as no process has the file ``users`` locked any more."""
        stop = shlex.join(as_user(self.kind.user, self._commands["stop"]))
        script = f"{stop}; rm -rf {shlex.quote(str(self.folder))}"
        stopping = subprocess.Popen(
            ["flock", str(users), "sh", "-c", script],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        leftovers.shared_children.add(stopping.pid)


def as_user(user, command):
    """Return a command; if this process is root's, as one that runs as a user without rights."""
    return ["runuser", "-u", user, "--", *command] if os.geteuid() == 0 else list(command)


def new_server(kind) -> Server:
    """Make and start a server, or skip the test if it is not installed."""
    if kind.find() is None:
        pytest.skip(f"no server of {type(kind).__name__} is installed")
    folder = Path(tempfile.mkdtemp(prefix="zeusrun-db-"))  # a name that is short enough for sockets
    if os.geteuid() == 0:
        shutil.chown(folder, kind.user)
    server = Server(kind, folder)
    server.run("create")
    server.run("start")
    return server


def share_server(kind, tmp_path_factory, config):
    """Yield the server of this test run."""
    shared = tmp_path_factory.getbasetemp()
    if hasattr(config, "workerinput"):
        shared = shared.parent
    name = type(kind).__name__
    users = shared / f"{name}.users"
    with (shared / f"{name}.lock").open("w") as one, users.open("w") as user:
        leftovers.shared_descriptors.update({one.fileno(), user.fileno()})
        fcntl.flock(one, fcntl.LOCK_EX)
        fcntl.flock(user, fcntl.LOCK_SH)  # waits while one is being stopped
        place = shared / f"{name}.folder"
        with suppress(FileNotFoundError):
            server = Server(kind, Path(place.read_text()))
            if server.folder.exists():
                fcntl.flock(one, fcntl.LOCK_UN)
                yield server
                return
        server = new_server(kind)
        place.write_text(str(server.folder))
        server.stop_later(users)
        fcntl.flock(one, fcntl.LOCK_UN)
        yield server


@pytest.fixture(scope="session")
def postgres(tmp_path_factory, request):
    """A PostgreSQL server, for all tests."""
    pytest.importorskip("psycopg")
    yield from share_server(Postgres(), tmp_path_factory, request.config)


@pytest.fixture(scope="session")
def empty_sqlite(tmp_path_factory):
    """A SQLite file with zeusrun's tables and nothing in them, to be copied."""
    pytest.importorskip("sqlalchemy")
    path = tmp_path_factory.mktemp("sqlite") / "empty.db"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture
def sqlite_url(empty_sqlite, tmp_path):
    """The URL of a SQLite file with zeusrun's tables and nothing in them."""
    shutil.copy(empty_sqlite, tmp_path / "history.db")
    return f"sqlite:///{tmp_path}/history.db"


@pytest.fixture
def sql_history(sqlite_url):
    """A history in a SQLite file."""
    yield from opened(sqlite_url)


@pytest.fixture(scope="session")
def postgres_template(postgres):
    """A database with zeusrun's tables, to be copied; its name."""
    url = postgres.create_database()
    prepare(url)
    return url.partition("?")[0].rpartition("/")[2]


@pytest.fixture
def postgres_url(postgres, postgres_template):
    """The URL of a PostgreSQL database with zeusrun's tables and nothing in them."""
    return postgres.create_database(postgres_template)


def prepare(url):
    """Create zeusrun's tables."""
    from zeusrun.history.sql.engine import open_engine, parse_url
    from zeusrun.history.sql.schema import create_tables

    engine = open_engine(parse_url(url))
    create_tables(engine)
    engine.dispose()


def opened(url):
    """Yield the history of a database, then close its connections."""
    from zeusrun.history.sql.store import SqlHistory

    history = SqlHistory(url)
    yield history
    history.close()


def clear(history):
    """Remove all trials and jobs, so that the next test begins with none: fast."""
    import sqlalchemy as sa

    from zeusrun.history.sql.engine import writing
    from zeusrun.history.sql.schema import HOSTS, JOBS, LEASES, TRIALS

    with writing(history.engine) as connection:
        for table in (LEASES, TRIALS, JOBS, HOSTS):
            connection.execute(sa.delete(table))


def expire_lease(database, trial):
    """Let the lease of a trial end now, as if its launcher had died two minutes ago."""
    import sqlalchemy as sa

    from zeusrun.history.sql.engine import now_s, writing
    from zeusrun.history.sql.schema import LEASES, TRIALS

    with writing(database.engine) as connection:
        number = connection.scalar(sa.select(TRIALS.c.number).where(TRIALS.c.trial == trial))
        update = sa.update(LEASES).where(LEASES.c.number == number)
        assert connection.execute(update.values(expires_at=now_s() - 1)).rowcount == 1


def lease_held(database, trial):
    """Whether a trial, named by its id or uuid, has a lease that has not expired."""
    import sqlalchemy as sa

    from zeusrun.history.sql.engine import now_s, reading
    from zeusrun.history.sql.schema import LEASES, TRIALS

    query = sa.select(LEASES.c.expires_at > now_s()).join(
        TRIALS, TRIALS.c.number == LEASES.c.number
    )
    with reading(database.engine) as connection:
        named = sa.or_(TRIALS.c.trial == trial, TRIALS.c.uuid == trial)
        return bool(connection.scalar(query.where(named)))
