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
from zeusrun.history.sql.engine import describe, explain, parse_url, reading, writing
from zeusrun.history.sql.schema import TRIALS, create_tables
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
            "mysql://u:pass@host/db",
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
            ("sqlite+aiosqlite:////h.db", "sqlite"),
        ):
            assert parse_url(text).drivername == driver

    def test_a_missing_driver_names_the_extra(self, monkeypatch):
        monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
        with pytest.raises(UsageError, match=r"extra 'postgresql': pip install '/path/to/zeusrun"):
            SqlHistory("postgresql://u@h/d")


class TestSqlite:
    def test_a_database_that_is_locked_for_too_long(self, sqlite_url):
        history = SqlHistory(f"{sqlite_url}?timeout=0.05")
        with writing(SqlHistory(sqlite_url).engine):
            text = refusal(lambda: begin(history), UnavailableError)
            assert history.trials("digits") == []  # reading goes on
        assert "is locked" in text
        begin(history)
        history.close()

    def test_a_database_that_is_read_only(self, sql_history):
        def forbid(connection, _record):
            connection.execute("PRAGMA query_only=ON")

        sa.event.listen(sql_history.engine, "connect", forbid)
        begin_text = refusal(lambda: begin(sql_history))
        assert "readonly" in begin_text
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
        assert sql_history.trace("digits-1-1") is None

    @pytest.mark.parametrize(
        "content", [b"not a database" * 1000, b"SQLite format 3\0" + b"x" * 9000]
    )
    def test_a_file_that_is_no_database(self, tmp_path, content):
        (tmp_path / "history.db").write_bytes(content)
        history = SqlHistory(f"sqlite:///{tmp_path}/history.db")
        text = refusal(history.jobs)
        assert "malformed" in text or "not a database" in text

    def test_a_file_in_a_folder_of_another_user(self, tmp_path, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError(errno.EACCES, "Permission denied")

        history = SqlHistory(f"sqlite:///{tmp_path}/nope/history.db")
        monkeypatch.setattr("zeusrun.history.sql.schema.Path.stat", refuse)
        assert "cannot be opened" in refusal(history.jobs)
        assert "cannot be opened" in refusal(lambda: create_tables(history.engine))

    def test_a_folder_is_no_database(self, tmp_path):
        history = SqlHistory(f"sqlite:///{tmp_path}")
        assert "cannot be opened" in refusal(history.jobs)

    def test_tables_that_vanish(self, sql_history):
        begin(sql_history)
        with writing(sql_history.engine) as connection:
            connection.execute(sa.text("DROP TABLE leases"))
        assert "zeusrun db create" in refusal(lambda: sql_history.unfinished("digits"))

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
        assert "read-only" in refusal(lambda: begin(history))
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
        assert "permission denied for table jobs" in text
        for each in (history, reader):
            each.close()

    def test_what_is_not_there(self, postgres):
        for url, expected in (
            (postgres.url("nowhere"), "cannot be opened"),
            (postgres.url("postgres").replace("postgres@", "nobody@"), "nobody"),
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
        assert "authentication failed" in text
        assert "wr0ng" not in text
        for each in (history, other):
            each.close()


class Told(Exception):  # noqa: N818
    """An error of a driver, with what it tells."""

    def __init__(self, *args, sqlstate=None):
        super().__init__(*args)
        self.sqlstate = sqlstate


@pytest.mark.parametrize(
    ("told", "kind", "expected"),
    [
        (Told("x", sqlstate="53100"), HistoryError, "reports an error"),
        (Told("x", sqlstate="53300"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="57P03"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="57014"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="08006"), UnavailableError, "does not respond"),
        (Told("x", sqlstate="99999"), HistoryError, "reports an error"),
        (Told("x", sqlstate="3D000"), HistoryError, "cannot be opened"),
        (Told(f"no route with {PASSWORD}"), UnavailableError, "no route with [*]{3};"),
        (Told("no key with wr0ng"), UnavailableError, "no key with [*]{3};"),
        (Told("FATAL: sorry, too many clients already"), UnavailableError, "does not respond"),
        (Told('FATAL: role "me" does not exist'), HistoryError, "reports an error"),
        (Told('FATAL: database "d" does not exist'), HistoryError, "cannot be opened"),
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
    told = Told("bad value-1", sqlstate="22001")
    found = explain(exc.DataError("INSERT", {}, told), sql_history.engine.url)
    assert "value-1" not in str(found)
