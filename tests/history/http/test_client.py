"""The history on a server: the contracts, and what its refusals mean."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.contracts.history import HistoryContract
from tests.contracts.shared import SharedContract
from tests.servers import running
from zeusrun.history.http.client import HttpHistory


@pytest.fixture(scope="module")
def any_server(empty_sqlite):
    with running(f"sqlite:///{empty_sqlite}") as server:
        yield server


@pytest.fixture
def server(any_server, sqlite_url):
    any_server.use(sqlite_url)
    return any_server


@pytest.fixture
def history(server):
    history = HttpHistory(server.url, environment={})
    yield history
    history.close()


@pytest.fixture
def database(server):
    return server.history


class TestHttpHistory(HistoryContract):
    pass


class TestSharedOverHttp(SharedContract):
    pass
