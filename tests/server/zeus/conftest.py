"""Zeus's routes over a real history in SQLite, asked as the released client asks."""

from __future__ import annotations

import json

import pytest

pytest.importorskip("sqlalchemy")
pytest.importorskip("fastapi")
pytest.importorskip("httpx")

from fastapi import FastAPI, HTTPException
from fastapi.testclient import TestClient

from zeusrun.bandit.registry import create_policy
from zeusrun.server.zeus.messages import Settings
from zeusrun.server.zeus.routes import build_router

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


def build_settings(**changes) -> Settings:
    return Settings.model_validate({**JOB, **changes})


@pytest.fixture
def history(sql_history):
    return sql_history


class ZeusClient:
    """Sends what Zeus's client sends: JSON without a content type, cumulative time and energy."""

    def __init__(self, history, policy="auto", prefix=""):
        self.prefix, self.denied, self.audit = prefix, set(), []
        router = build_router(
            history,
            create_policy(policy),
            authorize=self._authorize,
            audit=lambda _, action, subject: self.audit.append((action, subject)),
        )
        app = FastAPI()
        app.include_router(router)
        app.include_router(router, prefix="/zeus/{token}", include_in_schema=False)
        self.http = TestClient(app, raise_server_exceptions=False)

    def _authorize(self, request, job, write):
        self.token = request.path_params.get("token")
        if job in self.denied:
            raise HTTPException(403, "this token is not valid for that job")

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
def zeus(history):
    return ZeusClient(history)
