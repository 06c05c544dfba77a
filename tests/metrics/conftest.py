"""Files are looked for at every reading, however long that takes."""

from __future__ import annotations

import pytest

from zeusrun.metrics import mlflow, newest_file


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(newest_file, "_PAUSE", 0)
    monkeypatch.setattr(mlflow, "_SEARCH_S", 0.0)
