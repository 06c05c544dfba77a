"""A zeusrun here and a newer one there: a trial with one more field, or with one more status."""

from __future__ import annotations

import json

import pytest
import sqlalchemy as sa

from tests.factories import PREEMPTED, REACHED, begin, build_trial
from zeusrun.errors import HistoryError
from zeusrun.history.base import UnavailableError
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.schema import TRIALS
from zeusrun.trial import Outcome, Trial

UUID = "0123456789abcdef0123456789abcdef"
LATER = "2025-06-02T12:00:00Z"


@pytest.fixture
def client(server):
    history = HttpHistory(f"http://127.0.0.1:{server.port}")
    yield history
    history.close()


def newer(monkeypatch, kind, **fields):
    """Let one side send what a newer zeusrun sends; the other reads it as this one does."""
    own = kind.to_json
    monkeypatch.setattr(kind, "to_json", lambda self: {**own(self), **fields})


def test_one_more_field_is_left_out_by_the_older_side(client, monkeypatch):
    trial = build_trial(uuid=UUID)
    newer(monkeypatch, Trial, colour="red")
    newer(monkeypatch, Outcome, colour="red")
    assert begin(client, trial) == trial
    assert client.finish("job-1-1", REACHED) == trial.finish(REACHED)
    assert client.trials("job") == [trial.finish(REACHED)]


def test_what_a_newer_zeusrun_has_stored_survives_what_an_older_one_writes(server, client):
    trial = begin(client, build_trial(uuid=UUID))

    def store(changes):
        with writing(history.engine) as connection:
            record = {**json.loads(connection.scalar(sa.select(TRIALS.c.record))), **changes}
            connection.execute(sa.update(TRIALS).values(record=json.dumps(record)))

    def read():
        with writing(history.engine) as connection:
            return json.loads(connection.scalar(sa.select(TRIALS.c.record)))

    with server.history() as history:
        store({"colour": "red"})
        preempted = client.finish(trial.trial, PREEMPTED)
        resumed = begin(client, preempted.resume(LATER))
        assert read() == {**resumed.to_json(), "colour": "red"}
        history.renew(UUID, lease_s=-1)
        (lost,) = history.expire()
        assert read() == {**lost.to_json(), "colour": "red"}
        client.add([resumed.finish(REACHED)])
        client.forget(trial.trial, forgotten=True)
        assert read()["colour"] == "red"


def test_a_status_that_the_server_does_not_know_waits_until_it_is_updated(
    client, monkeypatch, tmp_path
):
    shared = SharedHistory(client, tmp_path, client.url)
    trial = begin(shared, build_trial(uuid=UUID))
    with monkeypatch.context() as patch:
        newer(patch, Outcome, status="ASLEEP")
        with pytest.raises(HistoryError, match="if you have a newer one, update it"):
            client.finish(trial.trial, REACHED)
        shared.finish(trial.trial, REACHED)
        shared.deliver()
        assert len(shared.spool.entries()) == 1
    shared.deliver()
    assert client.find(trial.trial) == trial.finish(REACHED)
    assert not shared.spool.list_refused()


def test_a_status_that_the_client_does_not_know_asks_for_an_update_here(client, monkeypatch):
    begin(client, build_trial(uuid=UUID))
    newer(monkeypatch, Trial, status="ASLEEP")
    for call in (
        lambda: client.find(UUID),
        lambda: client.trials("job"),
        lambda: client.unfinished("job"),
    ):
        with pytest.raises(HistoryError, match=r"'ASLEEP' .*; update zeusrun here") as error:
            call()
        assert not isinstance(error.value, UnavailableError)
