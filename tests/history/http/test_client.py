"""The history on a server: the contracts, and what its refusals mean."""

from __future__ import annotations

from unittest import mock

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("uvicorn")

import sqlalchemy as sa

from tests.contracts.history import HistoryContract, begin, build_trial
from tests.contracts.shared import SharedContract, with_uuid
from tests.databases import expire_lease
from tests.factories import REACHED
from tests.servers import running
from zeusrun.errors import HistoryError
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.schema import TRIALS
from zeusrun.trial import TrialStatus


@pytest.fixture(scope="module")
def any_server(empty_sqlite):
    with (
        mock.patch("zeusrun.server.app._EXPIRE_S", 3600.0),  # tests let leases expire themselves
        running(f"sqlite:///{empty_sqlite}") as server,
    ):
        yield server


@pytest.fixture
def server(any_server, sqlite_url):
    any_server.use(sqlite_url)
    yield any_server
    any_server.rest()


@pytest.fixture
def history(server):
    history = HttpHistory(server.url)
    yield history
    history.close()


@pytest.fixture
def database(server):
    return server.history


def test_a_trial_that_the_server_cannot_read_delays_only_its_own_result(
    history, database, tmp_path
):
    bad, good = begin(history, with_uuid(1)), begin(history, with_uuid(2))
    expire_lease(database, bad.trial)
    expire_lease(database, good.trial)
    later = sa.func.replace(TRIALS.c.record, "DISPATCHED", "ASLEEP")
    with writing(database.engine) as connection:
        connection.execute(sa.update(TRIALS).where(TRIALS.c.uuid == bad.uuid).values(record=later))
    with pytest.raises(HistoryError, match=r"digits-1-1 .*a newer zeusrun has stored it") as error:
        history.trials("digits")
    assert type(error.value) is HistoryError  # not away: nobody waits for it
    assert history.find(good.trial).status is TrialStatus.LOST
    shared = SharedHistory(history, tmp_path, history.url)
    for trial in (bad, good):
        shared.spool.put("finish", trial.finish(REACHED))
    shared.renew(good.uuid)
    assert history.find(good.trial) == good.finish(REACHED)
    assert [each.trial.uuid for each in shared.spool.entries()] == [bad.uuid]


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
