"""The history on a server: the contracts, and what its refusals mean."""

from __future__ import annotations

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

from tests.contracts.history import HistoryContract, begin, build_trial
from tests.contracts.shared import SharedContract, with_uuid
from tests.factories import REACHED
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
    def test_trials_are_added_all_or_none(self, history):
        """Of one job: those of several jobs are several requests."""
        first = begin(history, with_uuid())
        with pytest.raises(ValueError, match="another trial digits-1-1"):
            history.add([build_trial(2).finish(REACHED), with_uuid(1).finish(REACHED)])
        assert history.trials("digits") == [first]

    def test_the_job_file_is_kept(self, history, database):
        history.keep_settings("digits", "name: digits  # €\n")
        assert database.settings("digits") == "name: digits  # €\n"
