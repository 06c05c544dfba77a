"""No write that was acknowledged is lost when a writer or the database is killed."""

from __future__ import annotations

import multiprocessing
import shutil
import threading
import time
import uuid

import pytest

pytest.importorskip("sqlalchemy")

from tests.contracts.history import begin, build_trial
from tests.databases import Postgres, new_server, prepare
from tests.factories import REACHED
from zeusrun.history.base import Conflict, UnavailableError
from zeusrun.history.sql.store import SqlHistory


def keep_trying(call):
    """Call as a launcher does while the database is away."""
    while True:
        try:
            return call()
        except UnavailableError:
            time.sleep(0.05)


def write_on(url, report):
    """Begin and finish trials; ``report`` each uuid once both are acknowledged, until it is true."""
    history = SqlHistory(url)
    while True:
        name = uuid.uuid4().hex

        def start(name=name):
            snapshot = history.snapshot("digits", 1)
            number = snapshot.trials[-1].recurrence + 1 if snapshot.trials else 1
            trial = build_trial(number, uuid=name)
            return keep_trying(lambda: history.begin(trial, after=snapshot.version))

        while True:
            try:
                keep_trying(start)
                break
            except Conflict:
                continue
        keep_trying(lambda name=name: history.finish(name, REACHED))
        if report(name):
            history.close()
            return


def check(history, acknowledged):
    trials = history.trials("digits")
    finished = {trial.uuid for trial in trials if trial.status.finished}
    assert len(set(acknowledged)) == len(acknowledged)
    assert set(acknowledged) <= finished
    assert len({trial.trial for trial in trials}) == len({trial.uuid for trial in trials})
    assert sorted(trial.recurrence for trial in trials) == list(range(1, len(trials) + 1))


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.long)])
def test_a_writer_of_a_sqlite_file_is_killed(sqlite_url, kills):
    context = multiprocessing.get_context("fork")
    acknowledged = []
    for count in range(kills):
        receiver, sender = context.Pipe(duplex=False)
        child = context.Process(target=write_on, args=(sqlite_url, sender.send))
        child.start()
        acknowledged += [receiver.recv() for _ in range(3 + count % 4)]
        child.kill()
        child.join()
        while receiver.poll():  # written before the kill
            acknowledged.append(receiver.recv())
    history = SqlHistory(sqlite_url)
    check(history, acknowledged)
    begin(history)
    history.close()


@pytest.mark.long
def test_postgres_is_killed():
    pytest.importorskip("psycopg")
    server = new_server(Postgres())
    url = server.create_database()
    prepare(url)
    acknowledged, done = [], threading.Event()

    def report(name):
        acknowledged.append(name)
        return done.is_set()

    writers = [threading.Thread(target=write_on, args=(url, report)) for _ in range(4)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(10):
            before = len(acknowledged)
            while len(acknowledged) < before + 10:
                time.sleep(0.01)
            server.run("stop")  # at once, as by SIGKILL
            server.run("start")
    finally:
        done.set()
        for writer in writers:
            writer.join()
    history = SqlHistory(url)
    check(history, acknowledged)
    history.close()
    server.run("stop")
    shutil.rmtree(server.folder)
