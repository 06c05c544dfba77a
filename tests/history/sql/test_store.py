"""The history in an SQL database."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.contracts.history import HistoryContract
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.store import SqlHistory, new_incarnation


class TestSqliteHistory(HistoryContract):
    @pytest.fixture
    def history(self, tmp_path):
        history = SqlHistory(f"sqlite:///{tmp_path}/history.db")
        history.create()
        with writing(history.engine) as connection:
            new_incarnation(connection)
        yield history
        history.close()
