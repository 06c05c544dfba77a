"""Too much, too fast, too slow, half a request: refused, and nothing is held for ever."""

from __future__ import annotations

import json
import select
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.factories import build_trial
from tests.server.conftest import serving
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server import limits
from zeusrun.server.limits import Rates
from zeusrun.server.refusals import Refusal

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


def test_a_body_without_a_length_is_refused_at_the_limit(start):
    server = start(limits={"body": "100 kB"})
    with closing(server.connect()) as line:
        line.sendall(HEAD + JSON + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(5):
            line.sendall(b"8000\r\n" + b" " * 0x8000 + b"\r\n")
        assert read_answer(line)[0] == 413


def test_all_bodies_together_are_bounded(start):
    server = start(limits={"body": "1 MB"})
    lines = [server.connect() for _ in range(9)]
    for line in lines:
        line.sendall(HEAD + JSON + b"Content-Length: 1000000\r\n\r\n" + b" " * 1000)
    # What is declared and does not arrive takes no place.
    assert server.ask("POST", "/api/v1/jobs/job/imports", raw=b" " * 900_000).status == 422
    for line in lines:
        line.sendall(b" " * 998_000)
    refused = select.select(lines, [], [], 10)[0][0]  # the other eight hold 8 MB
    status, error = read_answer(refused)
    assert (status, error["code"]) == (503, "overloaded")
    for line in lines:
        line.close()
    deadline = time.monotonic() + 10
    while server.ask("POST", "/api/v1/jobs/job/imports", raw=b" " * 900_000).status == 503:
        assert time.monotonic() < deadline


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


def test_slow_requests_end_and_others_are_answered_meanwhile(start):
    server = start(limits={"patience_s": 0.3, "requests": 1})
    starts = {
        "nothing": b"",
        "half a head": HEAD,
        "no body": HEAD + JSON + b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
        "half a body": HEAD + JSON + b"Content-Length: 1000\r\nExpect: 100-continue\r\n\r\n",
    }
    lines = {name: server.connect() for name in starts}
    for name, content in starts.items():
        lines[name].sendall(content)
        if b"100-continue" in content:
            assert b"100 Continue" in lines[name].recv(100)  # the server waits for the body
    assert server.get("/api/v1/jobs").status == 200
    lines["half a body"].sendall(b"[")
    assert read_all(lines["nothing"]) == b""
    assert read_all(lines["half a head"]) == b""
    for name in ("no body", "half a body"):
        status, error = read_answer(lines[name])
        assert (status, error["code"]) == (408, "slow")
        lines[name].close()


def test_one_byte_now_and_then_buys_no_time(start):
    server = start(limits={"patience_s": 0.3})
    with closing(server.connect()) as line:
        line.settimeout(0.05)
        line.sendall(HEAD)
        started_t = time.monotonic()
        ended = False
        while not ended and time.monotonic() < started_t + 10:
            try:
                line.sendall(b"X")
                ended = line.recv(1) == b""
            except TimeoutError:
                pass
            except OSError:
                ended = True
        assert ended


def test_a_connection_that_waits_between_requests_stays(start):
    server = start(limits={"patience_s": 0.2})
    with closing(server.connect()) as line:
        for _ in range(2):
            line.sendall(b"GET /nope HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert read_answer(line)[0] == 404
            time.sleep(0.5)  # longer than a request may take


def test_a_large_head_is_refused(server):
    for line in (b"GET /" + b"x" * 100_000, b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000):
        with closing(server.connect()) as connection:
            connection.sendall(line)
            assert connection.recv(12) == b"HTTP/1.1 400"


def test_too_many_requests_of_one_client_are_refused_for_a_while(start):
    server = start(limits={"rate": 5})
    answers = [server.get("/api/v1/jobs") for _ in range(20)]
    assert [each.status for each in answers] == [200] * 20
    asked = (server.get("/api/v1/jobs") for _ in range(1000))  # more than 5 a second
    refused = next(each for each in asked if each.status != 200)
    assert (refused.status, refused.code) == (429, "rate")
    assert int(refused.headers["retry-after"]) >= 1
    assert server.get("/healthz", X_Forwarded_For="127.0.0.2").status == 200  # another client


def test_rates_recover_and_forget(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    rates = Rates(10)
    for _ in range(40):
        rates.take("a")
    with pytest.raises(Refusal):
        rates.take("a")
    rates.take("b")
    now[0] = 0.5
    for _ in range(5):
        rates.take("a")
    with pytest.raises(Refusal):
        rates.take("a")
    for number in range(10_001):
        rates.take(str(number))
    rates.take("a")


def test_more_requests_at_a_time_than_allowed_are_refused_and_health_is_not(start, monkeypatch):
    server = start(limits={"requests": 2})
    begun, goes_on = threading.Semaphore(0), threading.Event()

    def wait(_self, _trial):
        begun.release()
        assert goes_on.wait(10)

    monkeypatch.setattr(SqlHistory, "find", wait)
    path = f"/api/v1/trials/{'0' * 32}"
    with ThreadPoolExecutor(2) as pool:
        held = [pool.submit(server.get, path) for _ in range(2)]
        for _ in held:
            assert begun.acquire(timeout=10)
        for answer in (server.get(path), server.ask("PUT", f"{path}/lease", {})):
            assert (answer.status, answer.code) == (503, "overloaded")
            assert int(answer.headers["retry-after"]) >= 1
        assert server.get("/healthz").status == 200
        assert server.ask("POST", "/healthz", {}).status == 405
        goes_on.set()
        assert [each.result().status for each in held] == [404, 404]
    assert server.get(path).status == 404


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


@pytest.mark.long
def test_a_thousand_connections_that_send_nothing_hold_no_worker(start):
    server = start(limits={"patience_s": 3})
    lines = [server.connect() for _ in range(900)]
    answers = []
    asking = [
        threading.Thread(target=lambda: answers.append(server.get("/api/v1/jobs").status))
        for _ in range(20)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    assert answers == [200] * 20
    for line in lines:
        assert read_all(line) == b""


def test_a_server_that_stops_does_not_wait_for_the_rest_of_a_request(sqlite_url):
    with serving(database_url=sqlite_url) as server:
        line = server.connect()
        line.sendall(HEAD + JSON + b"Content-Length: 1000\r\n\r\n[")
        assert server.get("/healthz").status == 200
        stopped_t = time.monotonic()
    assert time.monotonic() - stopped_t < 5
    assert read_all(line) == b""
