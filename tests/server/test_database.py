"""A database that cannot be used: clients are told to try later, and only the log says why."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.factories import DONE, build_trial
from zeusrun.errors import HistoryError
from zeusrun.server.run import listen
from zeusrun.server.settings import ServerSettings


def file_of(server):
    return Path(server.settings.database_url.removeprefix("sqlite:///"))


def execute(path, statement):
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(statement)


def test_a_database_of_a_newer_zeusrun_is_not_touched(start, capfd):
    server = start()
    assert server.begin(build_trial(1)).status == 201
    version = server.version("job")
    execute(file_of(server), "UPDATE history SET revision = 9999")
    ready = server.get("/readyz")
    assert (ready.status, ready.code) == (503, "unavailable")
    refused = server.begin(build_trial(2), after=version)
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")
    assert "has the tables of another zeusrun (revision 9999" in capfd.readouterr().err
    assert server.get("/healthz").status == 200
    with pytest.raises(HistoryError, match="has the tables of another zeusrun"):
        listen(server.settings)


@pytest.mark.filterwarnings("ignore:Query string")  # SQLite has no password
def test_a_password_in_the_query_of_the_url_is_not_shown(sqlite_url):
    listening = listen(
        ServerSettings(port=0, database_url=f"{sqlite_url}?sslpassword=hunter2&timeout=5")
    )
    listening.listener.close()
    assert listening.database == sqlite_url.removeprefix("sqlite:///")


def test_requests_of_a_server_whose_database_breaks_are_refused_for_now(start, capfd):
    server = start()
    server.begin(build_trial())
    path = file_of(server)
    execute(path, "ALTER TABLE jobs RENAME TO lost")  # as when a backup is being restored
    for method, where, body in (
        ("GET", "/api/v1/jobs", None),
        ("GET", "/api/v1/jobs/job/trials", None),
        ("POST", "/api/v1/trials/job-1-1/outcome", DONE.to_json()),
        ("GET", "/metrics", None),
    ):
        answer = server.ask(method, where, body)
        assert (answer.status, answer.code) == (503, "unavailable"), where
        assert int(answer.headers["retry-after"]) >= 1
        assert answer.message in {
            "the server's database cannot be used; the server's log says why",
            "the server's database does not respond; the server's log says why",
        }
    assert server.get("/healthz").status == 200
    execute(path, "ALTER TABLE lost RENAME TO jobs")
    ended = server.ask("POST", "/api/v1/trials/job-1-1/outcome", DONE.to_json())
    assert ended.status == 200
    log = capfd.readouterr().err
    assert "GET /api/v1/jobs: the database" in log
    assert "Traceback" not in log
