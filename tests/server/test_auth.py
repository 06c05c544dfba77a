"""Tokens: who is answered, and for which jobs."""

from __future__ import annotations

import asyncio
import json
import re
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories import DONE, PREEMPTED, build_trial
from zeusrun.history.sql import tokens as token_store
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import list_tokens, revoke_token
from zeusrun.server.app import build_app
from zeusrun.server.auth import ZEUS_ROUTES, KnownTokens

WRONG = "zeusrun_00000000_" + "x" * 43
ZEUS_JOB = {
    "job_id": "mnist",
    "job_id_prefix": "mnist",
    "batch_sizes": [32, 64],
    "default_batch_size": 32,
    "max_power": 300.0,
    "number_of_gpus": 1,
    "gpu_model": "Fake A100",
}


def test_as_soon_as_a_token_exists_every_request_needs_one(server):
    assert server.get("/api/v1/jobs").status == 200
    token = server.create_token()
    for path in ("/api/v1/jobs", "/metrics", "/jobs/batch_size?job_id=job", "/nope"):
        answer = server.get(path)
        assert (answer.status, answer.code) == (401, "token"), path
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "zeusrun token create" in answer.json["error"]["advice"]
    assert server.get("/api/v1/jobs", token).status == 200
    for path in ("/healthz", "/readyz"):
        assert server.get(path).status == 200


def test_a_token_that_is_wrong_expired_or_revoked_is_refused_with_the_reason(server):
    good, late, gone = (server.create_token(lasts_s=lasts_s) for lasts_s in (60, -1, None))
    with server.history() as history:
        assert revoke_token(history.engine, gone.split("_")[1])
    reasons = {
        WRONG: "not known",
        good[:-1] + ("a" if good[-1] != "a" else "b"): "not known",
        late: "has expired",
        gone: "was revoked",
        "Basic": "not known",
    }
    for token, reason in reasons.items():
        answer = server.get("/api/v1/jobs", token)
        assert (answer.status, answer.code) == (401, "token")
        assert reason in answer.message
        assert token[20:] not in answer.message or len(token) < 20
    assert server.get("/api/v1/jobs", Authorization=f"Basic {good}").status == 401
    assert server.get("/api/v1/jobs", Authorization=f"bearer  {good} ").status == 200


def test_once_the_last_token_is_revoked_the_server_stays_closed(server):
    token = server.create_token()
    with server.history() as history:
        revoke_token(history.engine, token.split("_")[1])
    assert server.get("/api/v1/jobs").status == 401


def test_require_token_closes_a_server_without_any_token(start):
    assert start(require_token=True).get("/api/v1/jobs").status == 401


def test_a_token_is_for_its_jobs_only(server):
    everything = server.create_token()
    for job in ("team-a", "other"):
        assert server.begin(build_trial(job=job), everything).status == 201
    token = server.create_token("team-*")
    assert server.get("/api/v1/jobs", token).json == {"jobs": ["team-a"]}
    assert server.get("/api/v1/jobs/team-a/trials", token).json["total"] == 1
    assert server.begin(build_trial(job="team-b"), token).status == 201
    for method, path, body in (
        ("GET", "/jobs/other/trials", None),
        ("GET", "/jobs/other/unfinished", None),
        ("GET", "/trials/other-1-1", None),
        ("GET", "/trials/other-9-9/lease", None),  # whether it exists is not said
        ("POST", "/trials/other-1-1/outcome", DONE.to_json()),
        ("PUT", "/trials/other-1-1/lease", {}),
        ("PUT", "/jobs/other/settings", {"settings": ""}),
        ("POST", "/jobs/other/imports", {"trials": []}),
    ):
        answer = server.ask(method, f"/api/v1{path}", body, token)
        assert (answer.status, answer.code) == (403, "forbidden"), path
        assert answer.message == "this token is for jobs called team-*, not for other"


def test_the_uuid_of_a_foreign_trial_opens_nothing(server):
    everything, token = server.create_token(), server.create_token("team-*")
    trial = build_trial(job="other", uuid="e" * 32)
    server.begin(trial, everything)
    path = f"/api/v1/trials/{trial.uuid}"
    unknown = server.get(f"/api/v1/trials/{'f' * 32}", token)
    assert server.get(path, token).message == unknown.message.replace("f" * 32, trial.uuid)
    assert server.ask("POST", f"{path}/outcome", DONE.to_json(), token).code == "unknown"
    server.ask("POST", f"{path}/outcome", PREEMPTED.to_json(), everything)
    preempted = server.get(path, everything)
    resumed = trial.finish(PREEMPTED).resume("2025-06-02T12:00:00.000+00:00")
    moved = replace(resumed, job="team-a", trial="team-a-1-1")
    assert server.begin(moved, token).code == "invalid"
    assert server.get(path, everything).json == preempted.json
    assert server.begin(resumed, everything).status == 201


def test_a_token_that_reads_changes_nothing(server):
    server.begin(build_trial())
    token = server.create_token(write=False)
    assert server.get("/api/v1/trials/job-1-1", token).status == 200
    for method, path, body in (
        ("POST", "/trials/job-1-1/outcome", DONE.to_json()),
        ("PUT", "/hosts/gpu1", {}),
        ("PUT", "/trials/job-1-1/lease", {}),
    ):
        answer = server.ask(method, f"/api/v1{path}", body, token)
        assert (answer.status, answer.code) == (403, "forbidden")
        assert "--write" in answer.message


def test_zeus_clients_have_their_token_in_the_path(server, logged):
    token, job = server.create_token("mnist"), ZEUS_JOB
    other = {"job_id": "other", "job_id_prefix": "other"}
    assert server.ask("POST", "/jobs", job).status == 401
    assert server.ask("POST", f"/zeus/{WRONG}/jobs", job).status == 401
    assert server.ask("POST", f"/zeus/{token}/jobs", job).status == 201
    assert server.get(f"/zeus/{token}/jobs/batch_size?job_id=mnist").json["batch_size"] == 32
    assert server.ask("POST", f"/zeus/{token}/jobs", {**job, **other}).status == 403
    for path in ("/api/v1/jobs", "/", "/metrics", "/zeus/x/jobs", ""):
        assert server.get(f"/zeus/{token}{path}").status == 404
    assert f"begin mnist-1-1: token {token.split('_')[1]} from 127.0.0.1" in logged


def list_routes(settings):
    """Return the method and the path of every route of the application."""
    import fastapi.routing

    app = build_app(settings)._app._app  # the limits stand around it
    # FastAPI keeps the routers that were included apart since 0.137.
    walk = getattr(fastapi.routing, "iter_route_contexts", iter)
    found = [
        (method, re.sub(r"\{\w+\}", "a-1-1", route.path))
        for route in walk(app.routes)
        for method in sorted(route.methods)
    ]
    app.state.history.close()
    return found


def test_a_token_for_zeus_opens_the_routes_of_zeus_alone(start):
    server = start(require_token=True)
    token = server.create_token(for_zeus=True)
    own = {"Authorization": f"Bearer {token}"}, {"Cookie": f"zeusrun_token={token}"}
    routes = list_routes(server.settings)
    assert len(routes) > 30
    opened = set()
    for method, path in routes:
        without = server.ask(method, path)
        by_header, by_cookie = (server.ask(method, path, **headers) for headers in own)
        by_path = server.ask(method, f"/zeus/{token}{path}")
        if (
            "www-authenticate" not in without.headers
        ):  # it needs no token, and gets no more than anybody
            assert by_header.status == by_cookie.status == without.status, path
            assert by_path.status == 404, path
        elif ZEUS_ROUTES.fullmatch(path):
            assert {by_header.status, by_path.status} <= {400, 404, 422}, path
            assert by_cookie.status in {401, 403}, path
            opened.add((method, path))
        else:
            assert (by_header.status, by_path.status) == (403, 404), path
            assert by_cookie.status in {401, 403}, path
            if method != "HEAD":
                assert "for Zeus's clients only" in by_header.message
    assert len(opened) == 10
    form = server.submit_form("/login", {"token": token})
    assert (form.status, "set-cookie" in form.headers) == (403, False)
    assert b"This token is for Zeus&#x27;s clients only" in form.body


def test_a_token_for_zeus_trains_its_own_jobs_only(server):
    token = server.create_token("mnist*", for_zeus=True)
    for job_id, status in (("mnist-a", 201), ("other", 403)):
        job = {**ZEUS_JOB, "job_id": job_id, "job_id_prefix": job_id}
        assert server.ask("POST", f"/zeus/{token}/jobs", job).status == status
    assert server.get("/jobs/batch_size?job_id=mnist-a", token).json["batch_size"] == 32


def test_other_machines_need_a_token_even_if_there_is_none_yet(start):
    """A proxy on this machine says for whom it asks."""
    server = start()
    far = server.get("/api/v1/jobs", X_Forwarded_For="192.0.2.7")
    assert (far.status, far.code) == (401, "token")
    assert "other machines" in far.message
    assert server.get("/api/v1/jobs", X_Forwarded_For="127.0.0.1").status == 200
    for headers in ({"Via": "1.1 proxy"}, {"Forwarded": "for=192.0.2.7"}, {"X_Real_Ip": "::1"}):
        assert server.get("/api/v1/jobs", **headers).status == 401  # a proxy that says less
    untrusted = start(trusted_proxies="192.0.2.1")
    assert untrusted.get("/api/v1/jobs", X_Forwarded_For="127.0.0.1").status == 401
    open_to_all = start(insecure=True)
    assert open_to_all.get("/api/v1/jobs", X_Forwarded_For="192.0.2.7").status == 200


def test_a_foreign_page_in_a_browser_of_this_machine_reaches_nothing(server):
    """By a form, by an image, or by giving this machine a name of its own."""
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        for method, path in (("POST", "/report"), ("GET", "/jobs/batch_size?job_id=a")):
            answer = server.ask(method, path, **headers)
            assert (answer.status, answer.code) == (403, "forbidden"), headers
    assert server.get("/api/v1/jobs", Host="evil.example").status == 401
    for path in ("/api/v1/jobs", "/healthz", "/"):
        assert server.get(path, Host="[").code == "invalid"
    assert server.get("/api/v1/jobs", Host="[::1]:80").status == 200
    own = f"http://127.0.0.1:{server.port}"
    assert server.get("/api/v1/jobs", Origin=own, Sec_Fetch_Site="same-origin").status == 200


def test_the_log_says_who_changed_what(server, logged):
    server.begin(build_trial(1))
    token = server.create_token()
    second = build_trial(2, uuid="e" * 32)
    assert server.begin(second, token).status == 201
    server.ask("POST", f"/api/v1/trials/{second.uuid}/outcome", DONE.to_json(), token)
    server.ask("PUT", "/api/v1/jobs/job/settings", {"settings": "name: job"}, token)
    server.begin(build_trial(2), token, after="old")  # refused
    server.ask("PUT", "/api/v1/trials/job-1-1/lease", {}, token)  # no change of the history
    own_id = token.split("_")[1]
    assert logged == [
        "begin job-1-1: token none from 127.0.0.1",
        f"begin job-2-1: token {own_id} from 127.0.0.1",
        f"finish job-2-1: token {own_id} from 127.0.0.1",
        f"settings job: token {own_id} from 127.0.0.1",
    ]


def test_the_database_has_no_token_only_its_hash_and_its_last_use(server):
    token = server.create_token()
    folder = Path(server.settings.database_url.removeprefix("sqlite:///")).parent
    content = b"".join(path.read_bytes() for path in folder.glob("history.db*"))
    assert b"tokens" in content
    assert token.split("_", 2)[2].encode() not in content
    with server.history() as history:
        assert list_tokens(history.engine)[0].used_at is None
        known = KnownTokens(history)
        asyncio.run(known.find(token))
        known.write_uses()
        assert list_tokens(history.engine)[0].used_at == pytest.approx(time.time(), abs=60)


def test_a_token_is_compared_in_constant_time(monkeypatch, server):
    compared = []
    real = token_store.hmac.compare_digest
    monkeypatch.setattr(
        token_store.hmac, "compare_digest", lambda a, b: compared.append((a, b)) or real(a, b)
    )
    token = server.create_token()
    server.get("/api/v1/jobs", token[:-3] + "xxx")
    assert compared
    assert all(len(a) == len(b) == 64 for a, b in compared)


def test_no_page_has_a_path_of_zeus(sqlite_url):
    from fastapi import FastAPI

    from zeusrun.bandit.auto.policy import Auto
    from zeusrun.server.pages import router as pages
    from zeusrun.server.zeus import routes as zeus

    history = SqlHistory(sqlite_url)
    app = FastAPI()
    app.include_router(zeus.build_router(history, Auto()))
    of_zeus = set(app.openapi()["paths"])
    assert len(of_zeus) == 4
    assert all(ZEUS_ROUTES.fullmatch(path) for path in of_zeus)
    of_pages = {getattr(route, "path", "") for route in pages.build_router(history).routes}
    assert "/job/{job}" in of_pages
    assert not any(ZEUS_ROUTES.fullmatch(path) or path.startswith("/zeus") for path in of_pages)
    history.close()


HEAD = b"POST /api/v1/jobs/job/imports HTTP/1.1\r\nHost: localhost\r\n"
JSON = b"Content-Type: application/json\r\n"


def read_all(line):
    """Return what a server sends until it closes the connection."""
    parts = []
    with line:
        while part := line.recv(1 << 16):
            parts.append(part)
    return b"".join(parts)


def read_answer(line):
    """Return the status and the error of one answer."""
    received = b""
    while b"\r\n\r\n" not in received:
        received += line.recv(1 << 16)
    head, _, body = received.partition(b"\r\n\r\n")
    size = next(int(row.split(b":")[1]) for row in head.split(b"\r\n") if b"content-length" in row)
    while len(body) < size:
        body += line.recv(1 << 16)
    return int(head.split()[1]), json.loads(body)["error"]


def test_a_body_of_100_mb_is_refused_before_it_is_sent(server):
    with closing(server.connect()) as line:
        line.sendall(HEAD + JSON + b"Content-Length: 100000000\r\nExpect: 100-continue\r\n\r\n")
        status, error = read_answer(line)
    assert (status, error["code"]) == (413, "size")
    assert "33554432 bytes" in error["message"]


def test_a_body_of_100_mb_that_is_sent_all_the_same_is_not_kept(server):
    import resource

    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answer = server.ask("POST", "/api/v1/jobs/job/imports", raw=b" " * 100_000_000)
    assert answer.status == 413
    # This process also holds the body that it sends: 100 MB, once.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 160 << 10
    assert server.get("/healthz").status == 200


def test_a_body_without_a_length_is_refused_at_the_limit(server, monkeypatch):
    monkeypatch.setattr("zeusrun.server.auth._BODY_BYTES", 100_000)
    with closing(server.connect()) as line:
        line.sendall(HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            line.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        assert read_answer(line)[0] == 413


def test_who_has_no_token_sends_little(server):
    for path in ("/login", "/healthz"):
        answer = server.ask("POST", path, raw=b"a" * 5000)
        assert (answer.status, answer.code) == (413, "size")
        assert "4096 bytes" in answer.message


def test_half_a_request_changes_nothing(server):
    version = server.version("job")
    body = json.dumps({"trial": build_trial().to_json(), "after": version}).encode()
    head = b"POST /api/v1/jobs/job/trials HTTP/1.1\r\nHost: localhost\r\n" + JSON
    whole = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    for cut in (10, len(head), len(whole) - 1):
        with closing(server.connect()) as line:
            line.sendall(whole[:cut])
    assert server.version("job") == version
    with closing(server.connect()) as line:
        line.sendall(whole)  # the whole one does
        assert line.recv(12) == b"HTTP/1.1 201"


def test_a_large_head_is_refused(server):
    for line in (b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000):
        with closing(server.connect()) as connection:
            connection.sendall(line)
            assert connection.recv(12) == b"HTTP/1.1 400"


def test_an_error_of_the_server_says_nothing_of_its_inside(start, monkeypatch, capfd):
    server = start()

    def fail(_self):
        raise RuntimeError("SELECT secret FROM tokens; postgresql://me:hunter2@host/x")

    monkeypatch.setattr(SqlHistory, "jobs", fail)
    answer = server.get("/api/v1/jobs")
    assert (answer.status, answer.code) == (500, "bug")
    assert answer.message == "this is a bug in zeusrun; the server's log contains more"
    log = capfd.readouterr().err
    assert "this is a bug in zeusrun: RuntimeError: SELECT" in log
    assert "hunter2" not in log
    assert server.get("/healthz").status == 200
