"""The shared history as a machine uses it: the contracts, over a database."""

from __future__ import annotations

import pytest

pytest.importorskip("sqlalchemy")

from tests.contracts.history import HistoryContract
from tests.contracts.shared import SharedContract
from zeusrun.history.shared.store import SharedHistory


@pytest.fixture
def history(sql_history, tmp_path):
    return SharedHistory(sql_history, tmp_path / "shared", "the database")


@pytest.fixture
def database(sql_history):
    return sql_history


class TestSharedHistory(HistoryContract):
    pass


class TestSharedHistoryAsShared(SharedContract):
    pass
