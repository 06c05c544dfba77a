"""How Zeus's routes refuse: as Zeus's own server does, and as ours, in one answer."""

from __future__ import annotations

import pytest

from tests.server.zeus.conftest import JOB
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server import auth
from zeusrun.server.zeus import routes

WRONG = "zeusrun_00000000_" + "x" * 43
REPORT = {"job_id": "mnist", "batch_size": 64, "trial_number": 1, "time": 1.0, "energy": 1.0}


@pytest.fixture
def token(server):
    return server.create_token("mnist*", for_zeus=True)


def check(answer, status, code):
    """Check that a refusal has all three parts, and that they say the same."""
    content = answer.json
    assert (answer.status, answer.code) == (status, code)
    assert content.keys() == {"error", "message", "detail"}
    assert content["message"] == answer.message
    return content["detail"]


def test_a_refusal_has_the_message_and_the_detail_of_zeus(server, token, monkeypatch):
    path = f"/zeus/{token}"
    assert server.ask("POST", f"{path}/jobs", JOB).status == 201
    refused = [
        (server.ask("POST", "/jobs", JOB), 401, "token"),
        (server.ask("POST", f"/zeus/{WRONG}/jobs", JOB), 401, "token"),
        (server.ask("POST", "/jobs", JOB, Origin="https://evil.example"), 403, "forbidden"),
        (server.ask("POST", f"{path}/jobs", {**JOB, "job_id_prefix": "m"}), 409, "conflict"),
        (server.get(f"{path}/jobs/batch_size?job_id=mnist-b"), 400, "unknown"),
        (server.ask("DELETE", f"{path}/jobs?job_id=mnist-b"), 404, "unknown"),
        (server.ask("DELETE", f"{path}/jobs?job_id=other"), 403, "forbidden"),
        (server.get(f"{path}/nope"), 404, "unknown"),
        (server.ask("PUT", f"{path}/report", {}), 405, "method"),
        (server.get("/jobs/batch_size?job_id=a", Host="["), 400, "invalid"),
    ]
    monkeypatch.setattr(auth, "_BODY_BYTES", 10)
    refused.append((server.ask("POST", f"{path}/report", REPORT), 413, "size"))
    monkeypatch.setattr(routes, "PATIENCE_S", 0.0)
    refused.append((server.get(f"{path}/jobs/batch_size?job_id=mnist"), 503, "overloaded"))
    monkeypatch.setattr(SqlHistory, "snapshot", lambda *_: 1 / 0)
    monkeypatch.setattr(routes, "PATIENCE_S", 4.0)
    refused.append((server.get(f"{path}/jobs/batch_size?job_id=mnist"), 500, "bug"))
    for answer, status, code in refused:
        assert check(answer, status, code) == answer.message


def test_an_invalid_request_has_all_faults_in_its_detail_as_fastapi_gives_them(server, token):
    wrong = {**REPORT, "time": -1, "metric": float("nan"), "current_epoch": "x"}
    answer = server.ask("POST", f"/zeus/{token}/migrate/report", wrong)
    detail = check(answer, 422, "invalid")
    assert [each["loc"] for each in detail] == [["body", "time"], ["body", "current_epoch"]]
    assert all(each.keys() == {"loc", "msg", "type"} for each in detail)
    assert answer.message == f"body.time: {detail[0]['msg']}"


def test_behind_a_path_prefix_they_have_it_too(start):
    server = start(path_prefix="/team", require_token=True)
    for path in ("/team/jobs", "/jobs", f"/team/zeus/{WRONG}/report"):
        check(server.ask("POST", path, JOB), 401, "token")


def test_no_other_route_has_it(server, token):
    for method, path in (
        ("GET", "/api/v1/jobs"),
        ("GET", "/"),
        ("PUT", "/nope"),
        ("GET", "/x/jobs"),
    ):
        for given in (None, token):
            assert server.ask(method, path, token=given).json.keys() == {"error"}, path
    everything = server.create_token()
    assert server.ask("PUT", "/api/v1/hosts/a", [], everything).json.keys() == {"error"}
