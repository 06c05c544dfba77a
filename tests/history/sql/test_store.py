"""The history in an SQL database."""

from __future__ import annotations

import pytest

from tests.contracts.history import HistoryContract
from tests.contracts.shared import SharedContract
from tests.databases import opened


class TestSqlite(HistoryContract, SharedContract):
    @pytest.fixture
    def history(self, sql_history):
        return sql_history

    @pytest.fixture
    def database(self, history):
        return history


class TestPostgres(HistoryContract, SharedContract):
    @pytest.fixture
    def history(self, postgres_url):
        yield from opened(postgres_url)

    @pytest.fixture
    def database(self, history):
        return history


@pytest.mark.long
class TestMariaDB(HistoryContract, SharedContract):
    @pytest.fixture
    def history(self, mariadb_url):
        yield from opened(mariadb_url)

    @pytest.fixture
    def database(self, history):
        return history
