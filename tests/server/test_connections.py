"""Clients that send slowly, or open many connections, lock out nobody."""

from __future__ import annotations

import asyncio
import socket
import time
from contextlib import ExitStack

import pytest

pytest.importorskip("fastapi")

from zeusrun.server import auth, connections

HALF = b"GET /healthz HTTP/1.1\r\nHost: a\r\n"
WHOLE = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


@pytest.fixture
def opened(server):
    """Open connections from addresses of this machine."""
    with ExitStack() as stack:

        def open_one(sent=HALF, address="127.0.0.1"):
            line = stack.enter_context(
                socket.create_connection(
                    ("127.0.0.1", server.port), timeout=60, source_address=(address, 0)
                )
            )
            line.sendall(sent)
            return line

        yield open_one


def is_well(line):
    """Read the answer to a request for /healthz, which may come in parts."""
    answer = b""
    while not answer.endswith(b'{"status":"ok"}'):
        part = line.recv(1 << 16)
        assert part
        answer += part
    return answer.startswith(b"HTTP/1.1 200")


def is_over(line):
    """Whether the server ends a connection without an answer; else it answers."""
    try:
        return line.recv(1 << 16) == b""
    except ConnectionResetError:
        return True


def is_open(line):
    line.settimeout(0.0)
    try:
        return line.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


POST = b"POST /login HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 4000\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", b"G", HALF, POST, POST + b"token=", WHOLE + HALF])
def test_a_half_sent_request_ends(opened, monkeypatch, sent):
    monkeypatch.setattr(connections, "_WAIT_S", 0.3)
    line = opened(sent)
    if sent.startswith(WHOLE):
        assert is_well(line)
    if sent == WHOLE + HALF:
        line.sendall(b"A: b\r\n")
    assert is_over(line)


def test_a_body_that_goes_on_coming_is_received_to_its_end(opened, monkeypatch):
    monkeypatch.setattr(connections, "_WAIT_S", 0.2)
    monkeypatch.setattr(connections, "_LEAST_BYTES", 10)
    line = opened(POST)
    for _ in range(20):
        line.sendall(b"x" * 200)
        time.sleep(0.03)
    assert line.recv(100).startswith(b"HTTP/1.1 ")


def test_a_connection_may_rest_between_two_requests(opened, monkeypatch):
    monkeypatch.setattr(connections, "_WAIT_S", 0.1)
    line = opened(WHOLE)
    for _ in range(3):
        assert is_well(line)
        time.sleep(0.25)
        line.sendall(WHOLE)


def test_an_answer_may_take_longer(server, opened, monkeypatch):
    """The server itself is slow, not its client."""
    token = server.create_token()
    monkeypatch.setattr(connections, "_WAIT_S", 0.1)
    find = auth.KnownTokens.find

    async def find_slowly(tokens, text, **options):
        await asyncio.sleep(0.5)
        return await find(tokens, text, **options)

    monkeypatch.setattr(auth.KnownTokens, "find", find_slowly)
    body = {"trials": ["x" * (1 << 20)]}  # more than is received before somebody reads it
    assert server.ask("POST", "/api/v1/jobs/digits/imports", body, token).status == 422


def test_half_open_connections_of_one_address_lock_out_nobody(server, opened, monkeypatch):
    monkeypatch.setattr(connections, "_MOST", 20)
    monkeypatch.setattr(connections, "_MOST_OF_ADDRESS", 10)
    other = opened(WHOLE, "127.0.0.3")
    assert is_well(other)
    many = [opened(address="127.0.0.2") for _ in range(40)]
    assert server.get("/healthz").status == 200
    assert server.get("/api/v1/jobs").status == 200
    assert is_over(many[0])
    assert sum(map(is_open, many)) <= 10
    other.sendall(WHOLE)  # of another address: it has kept its place
    assert is_well(other)


def test_half_open_connections_of_many_addresses_lock_out_nobody(server, opened, monkeypatch):
    monkeypatch.setattr(connections, "_MOST", 20)
    monkeypatch.setattr(connections, "_MOST_OF_ADDRESS", 10)
    many = [opened(address=f"127.0.0.{2 + number % 5}") for number in range(60)]
    for _ in range(3):
        assert server.get("/healthz").status == 200
    assert sum(map(is_open, many)) <= 20


def test_a_busy_server_still_says_that_it_is_well(server, monkeypatch):
    monkeypatch.setattr(auth, "_MOST_AT_ONCE", 0)
    assert server.get("/healthz").status == 200
    busy = server.get("/api/v1/jobs")
    assert (busy.status, busy.code, busy.headers["retry-after"]) == (503, "overloaded", "2")
