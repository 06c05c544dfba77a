"""Files are looked for at every reading, however long that takes."""

from __future__ import annotations

import pytest

from zeusrun.metrics import lines


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(lines, "_PAUSE", 0)
