"""The tables of a shared history: created, and refused."""

from __future__ import annotations

import sqlite3
import stat
import threading
from functools import partial

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from tests.contracts.history import begin
from zeusrun.errors import HistoryError
from zeusrun.history.sql import schema
from zeusrun.history.sql.engine import open_engine, parse_url, reading, writing
from zeusrun.history.sql.schema import create_tables, has_tables
from zeusrun.history.sql.store import SqlHistory


def open_new(url):
    engine = open_engine(parse_url(url))
    yield engine
    engine.dispose()


class CreationContract:
    """Tests over an ``engine`` of an empty database."""

    def test_the_tables_are_created_once(self, engine):
        assert not has_tables(engine)
        assert create_tables(engine)
        assert has_tables(engine)
        (history,) = opened_once(engine)
        trial = begin(history)
        assert not create_tables(engine)
        assert history.trials("digits") == [trial]
        history.close()

    def test_several_processes_may_create_them_at_once(self, engine):
        start, failed = threading.Barrier(4), []

        def go():
            own = open_engine(engine.url)
            start.wait()
            try:
                create_tables(own)
            except HistoryError as error:
                failed.append(error)
            own.dispose()

        threads = [threading.Thread(target=go) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failed == []
        with reading(engine) as connection:
            assert connection.scalar(sa.select(sa.func.count()).select_from(schema.HISTORY)) == 1

    def test_tables_of_another_revision_are_refused(self, engine):
        create_tables(engine)
        with writing(engine) as connection:
            connection.execute(sa.update(schema.HISTORY).values(revision=7))
        (history,) = opened_once(engine)
        calls = (has_tables, create_tables)
        for call in (
            history.jobs,
            lambda: begin(history),
            *(partial(each, engine) for each in calls),
        ):
            with pytest.raises(HistoryError, match=r"another zeusrun \(revision 7, needed is 3\)"):
                call()
        history.close()

    def test_without_tables_nothing_works_and_the_message_says_why(self, engine):
        if engine.dialect.name == "sqlite":
            sqlite3.connect(engine.url.database).close()
        (history,) = opened_once(engine)
        with pytest.raises(HistoryError, match="run: zeusrun db create"):
            history.jobs()
        history.close()

    def test_tables_of_another_program_are_left_alone(self, engine):
        if engine.dialect.name == "sqlite":
            sqlite3.connect(engine.url.database).close()
        with writing(engine) as connection:
            connection.execute(sa.text("CREATE TABLE jobs (color INTEGER)"))
        with pytest.raises(HistoryError, match="already exists"):
            create_tables(engine)
        with reading(engine) as connection:
            names = sa.inspect(connection).get_table_names()
            columns = [column["name"] for column in sa.inspect(connection).get_columns("jobs")]
        assert (names, columns) == (["jobs"], ["color"])


def opened_once(engine):
    """Return the history of an engine's database with connections of its own."""
    return [SqlHistory(engine.url.render_as_string(hide_password=False))]


class TestSqlite(CreationContract):
    @pytest.fixture
    def engine(self, tmp_path):
        yield from open_new(f"sqlite:///{tmp_path}/history.db")


class TestPostgres(CreationContract):
    @pytest.fixture
    def engine(self, postgres):
        yield from open_new(postgres.create_database())


@pytest.mark.parametrize("name", ["history.db", "a folder/with %20 & #? ü.db"])
def test_a_new_sqlite_file_is_for_its_owner_alone(tmp_path, name):
    path = tmp_path / name
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}").set(database=str(path)))
    assert create_tables(engine)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    engine.dispose()


def test_only_the_verb_creates_a_file(tmp_path):
    path = tmp_path / "missing" / "history.db"
    history = SqlHistory(f"sqlite:///{path}")
    for call in (history.jobs, lambda: history.renew("digits-1-1")):
        with pytest.raises(
            HistoryError, match=r"history\.db cannot be opened: .*zeusrun db create"
        ):
            call()
    assert not path.parent.exists()
    history.close()


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}/taken/history.db"))
    with pytest.raises(HistoryError, match="cannot be written"):
        create_tables(engine)
    engine.dispose()
