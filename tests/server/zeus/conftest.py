"""Zeus's routes over a real history in SQLite, asked as the released client asks."""

from __future__ import annotations

import contextlib
import json
import threading
import time

import pytest

from tests.databases import opened
from zeusrun.server.zeus.messages import ZeusSettings

JOB = {
    "job_id": "mnist",
    "job_id_prefix": "mnist",
    "batch_sizes": [32, 64, 128],
    "default_batch_size": 64,
    "target_metric": 0.9,
    "max_epochs": 10,
    "max_power": 300.0,
    "number_of_gpus": 1,
    "gpu_model": "Fake A100",
}


def build_settings(**changes) -> ZeusSettings:
    return ZeusSettings.model_validate({**JOB, **changes})


@pytest.fixture
def database_url(sqlite_url):
    return sqlite_url


@pytest.fixture
def history(database_url):
    pytest.importorskip("fastapi")
    pytest.importorskip("httpx")
    yield from opened(database_url)


class ZeusClient:
    """Sends what Zeus's client sends: JSON without a content type, cumulative time and energy."""

    def __init__(self, database_url, prefix=""):
        from fastapi.testclient import TestClient

        from zeusrun.server.app import build_app
        from zeusrun.server.settings import ServerSettings

        app = build_app(ServerSettings(database_url=database_url))
        self.prefix = prefix
        self.http = TestClient(
            app, "http://127.0.0.1", raise_server_exceptions=False, client=("127.0.0.1", 50000)
        )

    def send(self, method, path, body=None, **params):
        content = None if body is None else body if isinstance(body, str) else json.dumps(body)
        return self.http.request(method, self.prefix + path, content=content, params=params)

    def register(self, **changes):
        return self.send("POST", "/jobs", {**JOB, **changes})

    def begin(self, job_id="mnist"):
        answer = self.send("GET", "/jobs/batch_size", job_id=job_id)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def report(self, trial, epoch, metric, energy=None, time=None):
        time = epoch * 10.0 if time is None else time
        energy = time * 200 if energy is None else energy
        taken = {"time": time, "energy": energy, "metric": metric, "current_epoch": epoch}
        answer = self.send("POST", "/report", {**trial, **taken})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def end(self, trial):
        return self.send("PATCH", "/trials", trial)

    def train(self, trial, epochs, joules=2000.0, target=0.9):
        """Report epochs until the server stops the training; the last one reaches the target."""
        for epoch in range(1, epochs + 1):
            metric = target * epoch / epochs
            answer = self.report(trial, epoch, metric, epoch * joules, epoch * joules / 200)
            if answer["stop_train"]:
                break
        self.end(trial)
        return answer


@pytest.fixture
def connect(history, database_url):
    """Make clients, each of a server of its own with the same database."""
    with contextlib.ExitStack() as stack:

        def open_client(prefix=""):
            client = ZeusClient(database_url, prefix)
            stack.enter_context(client.http)  # one event loop for all of its requests
            return client

        yield open_client


@pytest.fixture
def zeus(connect):
    return connect()


@pytest.fixture
def url(history, database_url):
    import uvicorn

    from zeusrun.server.app import build_app
    from zeusrun.server.settings import ServerSettings

    app = build_app(ServerSettings(database_url=database_url))
    config = uvicorn.Config(app, host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    server.should_exit = True
    thread.join()
