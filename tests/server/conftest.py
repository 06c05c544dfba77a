"""A real server on loopback, in a thread of the test process, and clients that speak HTTP to it."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from typing import ClassVar
from unittest import mock
from urllib.parse import urlencode

import pytest

pytest.importorskip("fastapi")
pytest.importorskip("sqlalchemy")
pytest.importorskip("uvicorn")

import uvicorn

from tests.servers import hang_up
from tests.view.report.values import close_fonts
from zeusrun.history.sql.engine import writing
from zeusrun.history.sql.schema import METADATA, start_incarnation
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import create_token
from zeusrun.server import app, auth
from zeusrun.server.pages import router
from zeusrun.server.pages.reports import Reports
from zeusrun.server.run import build_config, listen
from zeusrun.server.settings import ServerSettings


@dataclass
class Answer:
    status: int
    headers: dict[str, str]  # names in lower case
    body: bytes

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def code(self):
        return self.json["error"]["code"]

    @property
    def message(self):
        return self.json["error"]["message"]


@dataclass
class Server:
    """A running server; ``url`` is that of its database."""

    port: int
    settings: ServerSettings

    def ask(self, method, path, body=None, token=None, *, raw=None, **headers):
        """Send a request on a connection of its own."""
        content = raw if body is None else json.dumps(body).encode()
        own = {} if body is None else {"Content-Type": "application/json"}
        own |= {} if token is None else {"Authorization": f"Bearer {token}"}
        own |= {name.replace("_", "-"): value for name, value in headers.items()}
        with closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)) as line:
            line.request(method, path, content, own)
            answer = line.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answer(answer.status, found, answer.read())

    def get(self, path, token=None, **headers):
        return self.ask("GET", path, None, token, **headers)

    def submit_form(self, path, fields, **headers):
        content = urlencode(fields).encode()
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, raw=content, **kind, **headers)

    def connect(self):
        """Return a socket, for what no HTTP client sends."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    def version(self, job, token=None):
        return self.get(f"/api/v1/jobs/{job}/trials?last=0", token).json["version"]

    def begin(self, trial, token=None, after=None):
        after = self.version(trial.job, token) if after is None else after
        body = {"trial": trial.to_json(), "after": after}
        return self.ask("POST", f"/api/v1/jobs/{trial.job}/trials", body, token)

    def create_token(self, jobs="*", *, write=True, **options):
        with self.history() as history:
            return create_token(history.engine, jobs, can_write=write, **options)[0]

    @contextmanager
    def history(self):
        with closing(SqlHistory(self.settings.database_url)) as history:
            yield history


class ListedReports(Reports):
    """Reports that tests can read after the request."""

    running: ClassVar[list[Reports]] = []

    def __init__(self, store):
        super().__init__(store)
        self.running.append(self)

    def rest(self):
        """Close the connections to the database."""
        self._store.engine.dispose()


_running: list[uvicorn.Server] = []


@pytest.fixture(autouse=True)
def close_what_a_shared_server_keeps_open():
    """Close connections, and fonts: a server keeps them for its next request."""
    yield
    for server in _running:
        hang_up(server)
    for reports in ListedReports.running:
        reports.rest()
    close_fonts()


@contextmanager
def serving(**values):
    """Run a server in a thread; ``values`` are its settings."""
    settings = ServerSettings(**{"port": 0, **values})
    listening = listen(settings)
    with (
        mock.patch.object(router, "Reports", ListedReports),
        mock.patch.object(app, "_EXPIRE_S", 3600.0),  # tests let leases expire themselves
    ):
        server = uvicorn.Server(build_config(settings))
        thread = threading.Thread(target=server.run, args=([listening.listener],))
        thread.start()
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.005)
    _running.append(server)
    reports = ListedReports.running[-1]
    try:
        yield Server(listening.listener.getsockname()[1], settings)
    finally:
        _running.remove(server)
        ListedReports.running.remove(reports)
        server.should_exit = True
        thread.join(300)
        assert not thread.is_alive()


@pytest.fixture(autouse=True)
def fresh_tokens(monkeypatch):
    """Let servers notice new and revoked tokens at once, and not only after two seconds."""
    monkeypatch.setattr(auth, "_FRESH_S", 0.0)


@pytest.fixture
def logged(monkeypatch):
    """What servers log of changes from now on."""
    lines = []
    monkeypatch.setattr(
        auth.LOG, "info", lambda text, *values: lines.append(text % values), raising=True
    )
    return lines


@pytest.fixture
def start(sqlite_url):
    """Start servers with other settings; they stop at the end of the test."""
    with ExitStack() as stack:
        yield lambda **values: stack.enter_context(
            serving(**{"database_url": sqlite_url, **values})
        )


@pytest.fixture(scope="module")
def shared_server(empty_sqlite, tmp_path_factory):
    """A server that needs no token, for all tests of a module: one costs 0.1 s."""
    path = tmp_path_factory.mktemp("server") / "history.db"
    shutil.copy(empty_sqlite, path)
    with serving(database_url=f"sqlite:///{path}") as server:
        yield server


@pytest.fixture
def server(shared_server):
    """A server with an empty history that needs no token."""
    yield shared_server
    with shared_server.history() as history, writing(history.engine) as connection:
        for table in METADATA.sorted_tables:
            if table.name != "history":
                connection.execute(table.delete())
        start_incarnation(connection)  # what is cached is of another history
