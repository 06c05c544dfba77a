"""The history in memory."""

from __future__ import annotations

import pytest

from tests.contracts.history import HistoryContract
from tests.history.memory import MemoryHistory


class TestMemoryHistory(HistoryContract):
    @pytest.fixture
    def history(self):
        return MemoryHistory()
