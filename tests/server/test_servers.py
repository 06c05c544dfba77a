"""Real servers, several on one database, and what happens to it."""

from __future__ import annotations

import re
import shutil
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from tests.commands import test_server as serve
from tests.databases import Postgres, new_server
from tests.factories import DONE, begin, build_trial
from tests.runs import wait_for
from tests.server.zeus.conftest import JOB
from zeusrun.errors import HistoryError
from zeusrun.history.http.client import HttpHistory
from zeusrun.history.shared.store import SharedHistory
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import create_token, revoke_token

pytestmark = pytest.mark.long


@pytest.fixture
def history(postgres_url):
    with closing(SqlHistory(postgres_url)) as history:
        yield history


@pytest.fixture
def ports(zeusrun, postgres_url):
    """Two servers on one database; their ports."""
    servers = [serve.start(zeusrun, "--database-url", postgres_url) for _ in range(2)]
    yield [port for _, port, _ in servers]
    for child, _, _ in servers:
        child.send_signal(signal.SIGTERM)
    assert [child.wait(300) for child, _, _ in servers] == [0, 0]


def at_once(count, do):
    """Do something in many threads that begin together; return what it returns."""
    ready = threading.Barrier(count)

    def wait_and_do(number):
        ready.wait()
        return do(number)

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(wait_and_do, range(count)))


def begin_next(history, uuid):
    """Begin a trial as a launcher does: choose again after each conflict."""
    return begin(history, lambda known: build_trial(len(known) + 1, uuid=uuid))


def test_fifty_launchers_of_one_job_begin_at_once_and_each_gets_a_number(ports, tmp_path):
    def launch(number):
        remote = HttpHistory(f"http://127.0.0.1:{ports[number % 2]}")
        with closing(remote):
            shared = SharedHistory(remote, tmp_path / str(number), remote.url)
            return begin_next(shared, f"{number:032x}").recurrence

    assert sorted(at_once(50, launch)) == list(range(1, 51))
    found = serve.ask(ports[0], "GET", "/api/v1/jobs/job/trials")[1]
    assert len({each["uuid"] for each in found["trials"]}) == found["total"] == 50


def test_trainings_of_zeus_have_distinct_numbers(ports):
    assert serve.ask(ports[0], "POST", "/jobs", JOB)[0] == 201

    def ask(number):
        while True:
            path = f"/jobs/batch_size?job_id={JOB['job_id']}"
            status, answer = serve.ask(ports[number % 2], "GET", path)
            if status == 200:
                return answer["trial_number"]
            assert status == 503  # too many at once

    assert sorted(at_once(16, ask)) == list(range(1, 17))


def test_every_server_notices_new_and_revoked_tokens_in_time(ports, history):
    def ask(token):
        return {serve.ask(port, "GET", "/api/v1/jobs", token=token)[0] for port in ports}

    text, token = create_token(history.engine, "*", can_write=False)
    wait_for(lambda: (ask(None), ask(text)) == ({401}, {200}))
    revoke_token(history.engine, token.id)
    wait_for(lambda: ask(text) == {401})


def test_a_lease_that_expires_is_one_change(ports, history):
    trial = begin_next(history, "e" * 32)
    before = history.snapshot("job").version
    history.renew(trial.trial, lease_s=-1)
    path = "/api/v1/jobs/job/trials"
    answers = at_once(16, lambda number: serve.ask(ports[number % 2], "GET", path)[1])
    (version,) = {each["version"] for each in answers}
    assert int(version.partition(":")[2]) == int(before.partition(":")[2]) + 1
    assert {each["status"] for answer in answers for each in answer["trials"]} == {"LOST"}


def test_a_database_that_stops_restarts_and_becomes_read_only(zeusrun):
    pytest.importorskip("psycopg")
    database = new_server(Postgres())
    try:
        check_outages(zeusrun, database)
    finally:
        database.run("stop", check=False)
        shutil.rmtree(database.folder)


def check_outages(zeusrun, database):
    url = f"{database.create_database()}&sslpassword=hunter2"
    child, port, text = serve.start(zeusrun, "--database-url", url)
    assert "hunter2" not in text
    history = HttpHistory(f"http://127.0.0.1:{port}")
    begin_next(history, "1" * 32)

    def check_away(ready):
        assert serve.ask(port, "GET", "/healthz")[0] == 200
        assert serve.ask(port, "GET", "/readyz")[0] == ready
        body = {"trial": build_trial(9).to_json(), "after": "any"}
        status, answer = serve.ask(port, "POST", "/api/v1/jobs/job/trials", body)
        assert (status, answer["error"]["code"]) == (503, "unavailable")
        with pytest.raises(HistoryError) as caught:
            history.begin(build_trial(9), after="any")
        assert caught.value.retry_after_s == 2

    database.run("stop")
    check_away(ready=503)
    database.run("start")
    begin_next(history, "2" * 32)
    name = re.search(r"/(\w+)\?", url)[1]
    for mode in ("on", "off"):
        database.execute(f"ALTER DATABASE {name} SET default_transaction_read_only = {mode}")
        database.execute(
            f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        )
        if mode == "on":
            check_away(ready=200)  # it can be read
            assert history.count("job") == 2
    begin_next(history, "3" * 32)
    history.close()
    child.send_signal(signal.SIGTERM)
    assert child.wait(300) == 0
    log = child.stdout.read()
    assert "does not respond" in log
    assert "read-only" in log
    assert "hunter2" not in log


def test_no_acknowledged_write_is_lost_when_a_server_is_killed(zeusrun):
    child, port, _ = serve.start(zeusrun)
    acknowledged = []

    def write(number):
        with closing(HttpHistory(f"http://127.0.0.1:{port}")) as history:
            for count in range(1, 10_000):
                trial = build_trial(count, job=f"job{number}", uuid=f"{number}{count:031x}")
                try:
                    begin(history, trial)
                    acknowledged.append(history.finish(trial.uuid, DONE))
                except HistoryError:
                    return

    writers = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for writer in writers:
        writer.start()
    while len(acknowledged) < 50:
        time.sleep(0.01)
    child.kill()
    for writer in writers:
        writer.join()
    with closing(SqlHistory(f"sqlite:///{zeusrun.home}/server/history.db")) as history:
        stored = [trial for job in history.jobs() for trial in history.trials(job)]
    assert all(trial in stored for trial in acknowledged)
