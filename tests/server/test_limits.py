"""Too much, and half a request: refused."""

from __future__ import annotations

import json
from contextlib import closing
from types import SimpleNamespace

import pytest

from tests.factories import build_trial
from zeusrun.history.sql.store import SqlHistory
from zeusrun.server import limits
from zeusrun.server.limits import Guesses
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


def test_a_body_without_a_length_is_refused_at_the_limit(server, monkeypatch):
    monkeypatch.setattr("zeusrun.server.limits._BODY_BYTES", 100_000)
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


def test_guesses_are_counted_for_each_address_and_forgotten(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(limits, "time", SimpleNamespace(monotonic=lambda: now[0]))
    guesses = Guesses()
    for _ in range(40):
        guesses.take("a")
    with pytest.raises(Refusal):
        guesses.take("a", 0)
    guesses.take("b")
    now[0] = 0.5
    for _ in range(5):
        guesses.take("a")
    with pytest.raises(Refusal):
        guesses.take("a")
    for number in range(10_001):
        guesses.take(str(number))
    guesses.take("a")


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
