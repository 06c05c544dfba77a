"""The history in an SQL database: both contracts over two databases."""

from __future__ import annotations

import pytest

from tests.contracts.history import HistoryContract
from tests.contracts.shared import SharedContract
from tests.databases import clear, opened


@pytest.fixture(scope="module")
def sqlite_history(empty_sqlite, tmp_path_factory):
    path = tmp_path_factory.mktemp("sqlite") / "history.db"
    path.write_bytes(empty_sqlite.read_bytes())
    yield from opened(f"sqlite:///{path}")


@pytest.fixture(scope="module")
def postgres_history(postgres, postgres_template):
    yield from opened(postgres.create_database(postgres_template))


class Over:
    """Gives the contracts what they need, over a history that all tests share."""

    shared = ""

    @pytest.fixture
    def history(self, request):
        history = request.getfixturevalue(self.shared)
        yield history
        clear(history)
        history.close()  # the next test opens a connection of its own

    @pytest.fixture
    def database(self, history):
        return history


class TestSqlite(Over, HistoryContract, SharedContract):
    shared = "sqlite_history"


class TestPostgres(Over, SharedContract):
    shared = "postgres_history"


@pytest.mark.long
class TestPostgresHistory(Over, HistoryContract):
    shared = "postgres_history"
