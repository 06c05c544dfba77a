"""The tables of a shared history: created, changed, changed back, and refused."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

pytest.importorskip("sqlalchemy")

import sqlalchemy as sa

from tests.contracts.history import begin
from tests.contracts.shared import with_uuid
from tests.databases import lease_held
from tests.factories import REACHED
from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.sql import migrate, schema
from zeusrun.history.sql.engine import open_engine, parse_url, reading, writing
from zeusrun.history.sql.identity import check_revision, read_revision
from zeusrun.history.sql.migrate import downgrade, is_new, upgrade
from zeusrun.history.sql.store import SqlHistory


def open_new(url):
    engine = open_engine(parse_url(url))
    yield engine
    engine.dispose()


class MigrationContract:
    """Tests over an ``engine`` of an empty database."""

    def test_the_migrations_make_the_tables_of_the_schema(self, engine):
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext

        assert upgrade(engine) is None
        with reading(engine) as connection:
            context = MigrationContext.configure(
                connection,
                opts={"version_table": "zeusrun_revision", "compare_type": True},
            )
            assert compare_metadata(context, schema.METADATA) == []
        assert upgrade(engine) == schema.REVISIONS[-1]
        check_revision(engine)

    def test_several_processes_may_upgrade_at_once(self, engine):
        start, failed = threading.Barrier(4), []

        def go():
            own = open_engine(engine.url)
            start.wait()
            try:
                upgrade(own)
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

    def test_trials_survive_a_later_migration_and_the_way_back(self, engine, later):
        upgrade(engine)
        (history,) = opened_once(engine)
        trial = begin(history, with_uuid())
        history.renew(trial.trial, {"epoch": 1})
        finished = history.finish(begin(history, with_uuid(2)).trial, REACHED)
        before = history.changes("digits", None)
        history.close()

        later()
        assert upgrade(engine) == "0001"
        with reading(engine) as connection:
            epochs = sa.text("SELECT epochs FROM trials ORDER BY number")
            assert list(connection.scalars(epochs)) == [None, 3]
        assert downgrade(engine, "0001") == "0002"
        assert downgrade(engine, "0001") == "0001"
        later.undo()

        (history,) = opened_once(engine)
        assert history.changes("digits", None) == before
        assert history.trials("digits") == [trial, finished]
        assert lease_held(history, trial.trial)
        assert history.live(trial.trial) == {"epoch": 1}
        assert begin(history, with_uuid(3)).recurrence == 3
        history.close()

    def test_an_older_zeusrun_is_told_to_upgrade_and_changes_nothing(self, engine, later):
        upgrade(engine)
        later()
        (history,) = opened_once(engine)
        with pytest.raises(HistoryError, match=r"older zeusrun \(revision 0001, needed is 0002\)"):
            history.jobs()
        history.close()
        with reading(engine) as connection:
            assert read_revision(connection) == "0001"

    def test_what_a_newer_zeusrun_has_migrated_is_refused(self, engine, later):
        later()
        upgrade(engine)
        later.undo()
        (history,) = opened_once(engine)
        for call in (
            history.jobs,
            lambda: begin(history),
            lambda: upgrade(engine),
            lambda: downgrade(engine, "0001"),
        ):
            with pytest.raises(
                HistoryError, match=r"newer zeusrun \(revision 0002; this one knows"
            ):
                call()
        history.close()

    def test_without_tables_nothing_works_and_the_message_says_why(self, engine):
        if is_new(engine):
            sqlite3.connect(engine.url.database).close()
        (history,) = opened_once(engine)
        with pytest.raises(HistoryError, match="run: zeusrun db upgrade"):
            history.jobs()
        with pytest.raises(HistoryError, match="is at revision none"):
            downgrade(engine, "0001")
        history.close()

    def test_tables_of_another_program_are_left_alone(self, engine):
        if is_new(engine):
            sqlite3.connect(engine.url.database).close()
        with writing(engine) as connection:
            connection.execute(sa.text("CREATE TABLE jobs (color INTEGER)"))
        with pytest.raises(HistoryError, match="belong to another program"):
            upgrade(engine)
        with reading(engine) as connection:
            columns = [column["name"] for column in sa.inspect(connection).get_columns("jobs")]
        assert columns == ["color"]


def opened_once(engine):
    """Return the history of an engine's database with connections of its own."""
    return [SqlHistory(engine.url.render_as_string(hide_password=False))]


@pytest.fixture
def later(monkeypatch):
    """Let this be a later zeusrun, with another migration; ``undo`` makes it today's again."""

    class Later:
        def __call__(self):
            configure = migrate._configure

            def with_another(connection):
                config = configure(connection)
                folders = [Path(migrate.__file__).parent / "migrations" / "versions"]
                folders.append(Path(__file__).parent / "later")
                for option in ("path_separator", "version_path_separator"):
                    config.set_main_option(option, "os")
                config.set_main_option("version_locations", os.pathsep.join(map(str, folders)))
                return config

            monkeypatch.setattr(migrate, "_configure", with_another)
            for module in ("migrate", "identity"):
                name = f"zeusrun.history.sql.{module}.REVISIONS"
                monkeypatch.setattr(name, (*schema.REVISIONS, "0002"))

        def undo(self):
            monkeypatch.undo()

    return Later()


class TestSqlite(MigrationContract):
    @pytest.fixture
    def engine(self, tmp_path):
        yield from open_new(f"sqlite:///{tmp_path}/history.db")


class TestPostgres(MigrationContract):
    @pytest.fixture
    def engine(self, postgres):
        yield from open_new(postgres.create_database())


@pytest.mark.long
class TestMariaDB(MigrationContract):
    @pytest.fixture
    def engine(self, mariadb):
        yield from open_new(mariadb.create_database())


def test_the_revisions_are_those_of_the_migrations():
    from alembic.script import ScriptDirectory

    scripts = ScriptDirectory(str(Path(migrate.__file__).parent / "migrations"))
    assert [each.revision for each in scripts.walk_revisions()][::-1] == list(schema.REVISIONS)


@pytest.mark.parametrize("name", ["history.db", "a folder/with %20 & #? ü.db"])
def test_a_new_sqlite_file_is_for_its_owner_alone(tmp_path, name):
    path = tmp_path / name
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}").set(database=str(path)))
    assert is_new(engine)
    upgrade(engine)
    assert not is_new(engine)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    check_revision(engine)
    engine.dispose()


def test_only_an_upgrade_creates_a_file(tmp_path):
    path = tmp_path / "missing" / "history.db"
    history = SqlHistory(f"sqlite:///{path}")
    for call in (history.jobs, lambda: history.renew("digits-1-1")):
        with pytest.raises(HistoryError, match=r"no database .*history\.db: .*zeusrun db upgrade"):
            call()
    assert not path.parent.exists()
    history.close()


def test_a_file_in_the_way_of_a_folder_is_named(tmp_path):
    (tmp_path / "taken").write_text("")
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}/taken/history.db"))
    with pytest.raises(HistoryError, match="cannot be written"):
        upgrade(engine)
    engine.dispose()


def test_no_other_revision_is_known(tmp_path):
    engine = open_engine(parse_url(f"sqlite:///{tmp_path}/history.db"))
    upgrade(engine)
    for revision in ("0000", "base", "-1", "head"):
        with pytest.raises(UsageError, match="there is no revision"):
            downgrade(engine, revision)
    engine.dispose()
