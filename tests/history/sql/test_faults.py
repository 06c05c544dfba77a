"""What a database cannot do: a sentence with advice, and never a password or a value."""

from __future__ import annotations

import errno
import shutil

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa
from sqlalchemy import exc

from tests.contracts.history import begin
from tests.contracts.shared import with_uuid
from tests.databases import Postgres, new_server, prepare
from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import UnavailableError, UnreadableTrialError
from zeusrun.history.sql.engine import parse_url, reading, writing
from zeusrun.history.sql.faults import describe, explain
from zeusrun.history.sql.migrate import upgrade
from zeusrun.history.sql.schema import TRIALS
from zeusrun.history.sql.store import SqlHistory

PASSWORD = "s3cret/1"


def refusal(call, kind=HistoryError):
    """Return the message with which a call is refused."""
    with pytest.raises(HistoryError) as caught:
        call()
    assert type(caught.value) is kind
    assert "\n" not in str(caught.value)
    return str(caught.value)


class TestUrl:
    @pytest.mark.parametrize(
        "text",
        [
            "",
            "nonsense",
            "history.db",
            "postgresql://u:pa@ss@host/db",
            "postgresql://u:pass@host:99999999999999999999x/db",
            "postgresql://u:pass@[::1/db",
            "mysql://u:pass@host",
            "mssql://u:pass@host/db",
            "pass://u:pass@host/db",
            "sqlite://",
            "sqlite:///:memory:",
            "sqlite:///history.db",
        ],
    )
    def test_what_is_no_database_is_refused_without_quoting_it(self, text):
        with pytest.raises(UsageError, match=r"database") as caught:
            SqlHistory(text)
        for secret in ("pa", "pass@", "ss@", "34@"):
            assert f"{secret}" not in str(caught.value).replace("password", "").replace("path", "")

    @pytest.mark.parametrize("password", ["pa/ss", "pa?ss", "12/34", "pa:ss", "pa#ss", "pa%ss"])
    def test_a_password_is_not_taken_for_anything_else(self, password):
        url = parse_url(f"postgresql://u:{password}@host/db")
        assert (url.password, url.host, url.database) == (password, "host", "db")
        assert describe(url) == "postgresql://u:***@host/db"

    def test_the_driver_is_ours(self):
        for text, driver in (
            ("postgres://u@h/d", "postgresql+psycopg"),
            ("postgresql+psycopg2://u@h/d", "postgresql+psycopg"),
            ("mysql://u@h/d", "mysql+pymysql"),
            ("mariadb://u@h/d", "mariadb+pymysql"),
            ("sqlite+aiosqlite:////h.db", "sqlite"),
        ):
            assert parse_url(text).drivername == driver

    def test_a_missing_driver_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "pymysql", None)
        with pytest.raises(
            UsageError, match=r"extra 'mysql': pip install '/path/to/zeusrun\[mysql\]'"
        ):
            SqlHistory("mysql://u@h/d")


class TestSqlite:
    def test_a_database_that_is_locked_for_too_long(self, sqlite_url):
        history = SqlHistory(f"{sqlite_url}?timeout=0.05")
        with writing(SqlHistory(sqlite_url).engine):
            text = refusal(lambda: begin(history), UnavailableError)
            assert history.trials("digits") == []  # reading goes on
        assert "has been locked by another program for too long" in text
        begin(history)
        history.close()

    def test_a_database_that_is_read_only(self, sql_history):
        def forbid(connection, _record):
            connection.execute("PRAGMA query_only=ON")

        sa.event.listen(sql_history.engine, "connect", forbid)
        begin_text = refusal(lambda: begin(sql_history))
        assert "is read-only" in begin_text
        assert "make it writable" in begin_text
        assert sql_history.jobs() == []

    def test_a_full_disk(self, sql_history):
        begin(sql_history, with_uuid(1))

        def limit(connection, _record):
            connection.execute("PRAGMA max_page_count=1")

        sa.event.listen(sql_history.engine, "connect", limit)
        sql_history.engine.dispose()
        trace = {"power_w": [1.0] * 100_000}
        text = refusal(lambda: sql_history.keep_trace("digits-1-1", trace))
        assert "is full" in text
        assert "free some space" in text
        assert sql_history.trace("digits-1-1") is None

    @pytest.mark.parametrize(
        "content", [b"not a database" * 1000, b"SQLite format 3\0" + b"x" * 9000]
    )
    def test_a_file_that_is_no_database(self, tmp_path, content):
        (tmp_path / "history.db").write_bytes(content)
        history = SqlHistory(f"sqlite:///{tmp_path}/history.db")
        text = refusal(history.jobs)
        assert "is damaged" in text
        assert "restore a backup" in text

    def test_a_file_in_a_folder_of_another_user(self, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(errno.EACCES, "Permission denied")

        history = SqlHistory(f"sqlite:///{tmp_path}/nope/history.db")
        monkeypatch.setattr("zeusrun.history.sql.faults.Path.stat", refuse)
        assert "may not open" in refusal(history.jobs)
        assert "may not open" in refusal(lambda: upgrade(history.engine))

    def test_a_folder_is_no_database(self, tmp_path):
        history = SqlHistory(f"sqlite:///{tmp_path}")
        assert "may not open" in refusal(history.jobs)

    def test_tables_that_vanish(self, sql_history):
        begin(sql_history)
        with writing(sql_history.engine) as connection:
            connection.execute(sa.text("DROP TABLE leases"))
        assert "zeusrun db upgrade" in refusal(lambda: sql_history.unfinished("digits"))

    @pytest.mark.parametrize("record", ["{}", "[]", "7", '{"trial": "a", "status": "ASLEEP"}', "{"])
    def test_a_damaged_record(self, sql_history, record):
        begin(sql_history)
        with writing(sql_history.engine) as connection:
            connection.execute(sa.update(TRIALS).values(record=record))
        text = refusal(lambda: sql_history.trials("digits"), UnreadableTrialError)
        assert "in the database cannot be read by zeusrun" in text

    def test_a_program_that_keeps_all_connections(self, sqlite_url):
        history = SqlHistory(sqlite_url)
        history.engine.pool._timeout = 0.05
        held = [history.engine.connect() for _ in range(16)]
        assert "does not respond" in refusal(history.jobs, UnavailableError)
        for connection in held:
            connection.close()
        assert history.jobs() == []
        history.close()


class TestPostgres:
    def test_a_row_that_is_locked_for_too_long(self, postgres_url):
        history = SqlHistory(f"{postgres_url}&options=-c%20lock_timeout%3D50ms")
        begin(history)
        usual = SqlHistory(postgres_url)
        with reading(usual.engine) as connection:  # a query that never ends holds up no stop
            assert connection.scalar(sa.text("SHOW statement_timeout")) == "1min"
        usual.close()
        with writing(history.engine) as connection:
            connection.execute(sa.text("UPDATE jobs SET changes = changes"))
            assert "locked" in refusal(lambda: begin(history), UnavailableError)
        begin(history)
        history.close()

    def test_a_database_that_becomes_read_only(self, postgres, postgres_url):
        history = SqlHistory(postgres_url)
        begin(history)
        name = history.engine.url.database
        postgres.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        history.engine.dispose()
        assert "is read-only" in refusal(lambda: begin(history))
        assert len(history.trials("digits")) == 1
        history.close()

    def test_a_user_who_may_not_write(self, postgres, postgres_url):
        history = SqlHistory(postgres_url)
        name = history.engine.url.database
        postgres.execute(
            f"CREATE ROLE reader_{name} LOGIN; GRANT pg_read_all_data TO reader_{name}"
        )
        url = history.engine.url.set(username=f"reader_{name}", password=PASSWORD)
        reader = SqlHistory(url.render_as_string(hide_password=False))
        assert reader.jobs() == []
        text = refusal(lambda: begin(reader))
        assert "denies access: permission denied for table jobs" in text
        for each in (history, reader):
            each.close()

    def test_what_is_not_there(self, postgres):
        for url, expected in (
            (postgres.url("nowhere"), "there is no database"),
            (postgres.url("postgres").replace("postgres@", "nobody@"), "denies access"),
        ):
            history = SqlHistory(url)
            assert expected in refusal(history.jobs)

    def test_a_server_that_does_not_run(self, tmp_path):
        pytest.importorskip("psycopg")
        url = f"postgresql://me:{PASSWORD.replace('/', '%2F')}@127.0.0.1:1/d"
        for each in (url, f"postgresql://me@/d?host={tmp_path}", url.replace("127.0.0.1", "[::1]")):
            history = SqlHistory(each)
            text = refusal(history.jobs, UnavailableError)
            assert "does not respond" in text
            assert "s3cret" not in text

    @pytest.mark.long
    def test_a_wrong_password_and_a_restart(self):
        pytest.importorskip("psycopg")
        server = new_server(Postgres())
        try:
            self.check_login_and_restart(server)
        finally:
            server.run("stop", check=False)
            shutil.rmtree(server.folder)

    def check_login_and_restart(self, server):
        server.execute(f"CREATE ROLE me LOGIN SUPERUSER PASSWORD '{PASSWORD}'")
        url = parse_url(server.create_database()).set(username="me", password=PASSWORD)
        prepare(url.render_as_string(hide_password=False))
        history = SqlHistory(url.render_as_string(hide_password=False))
        begin(history)
        (server.folder / "data" / "pg_hba.conf").write_text("local all all scram-sha-256\n")
        server.run("stop")
        text = refusal(history.jobs, UnavailableError)
        assert "s3cret" not in text
        server.run("start")
        assert history.jobs() == ["digits"]
        begin(history)
        other = SqlHistory(url.set(password="wr0ng").render_as_string(hide_password=False))
        text = refusal(other.jobs)
        assert "denies access" in text
        assert "wr0ng" not in text
        for each in (history, other):
            each.close()


@pytest.mark.long
class TestMariaDB:
    def test_what_is_not_there(self, mariadb, tmp_path):
        history = SqlHistory(mariadb.url("nowhere"))
        assert "there is no database" in refusal(history.jobs)
        history = SqlHistory(f"mysql://me:s3cret@/d?unix_socket={tmp_path}/none")
        text = refusal(history.jobs, UnavailableError)
        assert "does not respond" in text
        assert "s3cret" not in text

    def test_a_row_that_is_locked_for_too_long(self, mariadb_url):
        history = SqlHistory(
            f"{mariadb_url}&init_command=SET%20SESSION%20innodb_lock_wait_timeout%3D1"
        )
        begin(history)
        with writing(history.engine) as connection:
            connection.execute(sa.text("UPDATE jobs SET changes = changes + 0, trials = trials"))
            connection.execute(sa.text("SELECT * FROM jobs FOR UPDATE"))
            assert "locked" in refusal(lambda: begin(history), UnavailableError)
        history.close()

    def test_a_server_that_becomes_read_only(self, mariadb_url):
        history = SqlHistory(mariadb_url)
        begin(history)
        with writing(history.engine) as connection:
            connection.execute(sa.text("SET SESSION TRANSACTION READ ONLY"))
        assert "is read-only" in refusal(lambda: self.write_often(history))
        history.close()

    def write_often(self, history):
        for _ in range(20):
            begin(history)


class Told(Exception):  # noqa: N818
    """An error of a driver, with what it tells."""

    def __init__(self, *args, sqlstate=None):
        super().__init__(*args)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("told", "kind", "expected"),
    [
        (Told("x", sqlstate="53100"), HistoryError, "is full"),
        (Told("x", sqlstate="53300"), UnavailableError, "accepts no more connections"),
        (Told("x", sqlstate="57P03"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="57014"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="08006"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="XX001"), HistoryError, "is damaged"),
        (Told("x", sqlstate="99999"), HistoryError, "reports an error"),
        (Told(1021, "Disk full"), HistoryError, "is full"),
        (Told(1114, "The table 'trials' is full"), HistoryError, "is full"),
        (Told(1040, "Too many connections"), UnavailableError, "accepts no more connections"),
        (Told(1290, "--read-only"), HistoryError, "is read-only"),
        (Told(2013, "Lost connection"), UnavailableError, "does not respond"),
        (Told(1142, "INSERT command denied"), HistoryError, "denies access"),
        (Told(f"no route with {PASSWORD}"), UnavailableError, "no route with [*]{3};"),
        (Told("no key with wr0ng"), UnavailableError, "no key with [*]{3};"),
        (Told("FATAL: sorry, too many clients already"), UnavailableError, "no more connections"),
    ],
)
def test_each_fault_has_its_advice(told, kind, expected):
    url = parse_url("postgresql://me@h/d?sslpassword=wr0ng").set(password=PASSWORD)
    found = explain(exc.OperationalError("SELECT :a", {"a": "value-1"}, told), url)
    assert type(found) is kind
    with pytest.raises(kind, match=expected):
        raise found
    assert "value-1" not in str(found)
    assert "SELECT" not in str(found)


def test_no_value_is_in_a_message(sql_history):
    for told in (Told(1406, "Data too long: 'value-1'"), Told("bad value-1", sqlstate="22001")):
        found = explain(exc.DataError("INSERT", {}, told), sql_history.engine.url)
        assert "value-1" not in str(found)
    found = explain(
        exc.IntegrityError("INSERT", {}, Told(1062, "Duplicate entry 'value-1'")),
        sql_history.engine.url,
    )
    assert "value-1" not in str(found)
