"""What a server logs has no secrets and no traceback."""

from __future__ import annotations

import logging
import socket

import pytest

pytest.importorskip("fastapi")

from zeusrun.server.run import Redacted, _open_port, hide_secrets
from zeusrun.server.settings import ServerSettings

TOKEN = "zeusrun_0123abcd_" + "A-_z" * 10 + "xyz"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f'"POST /zeus/{TOKEN}/jobs HTTP/1.1" 200', '"POST /zeus/***/jobs HTTP/1.1" 200'),
        ('"GET /zeus/guess?x=1 HTTP/1.1" 404', '"GET /zeus/***?x=1 HTTP/1.1" 404'),
        ("GET /prefix/zeus//guess/report", "GET /prefix/zeus/***/report"),
        (f"Bearer {TOKEN}; more", "Bearer ***; more"),
        (f"GET /login?token={TOKEN}", "GET /login?token=***"),
        ("postgresql://me:hunter2@host/x", "postgresql://me:***@host/x"),
        ("nothing secret in /jobs/zeus", "nothing secret in /jobs/zeus"),
    ],
)
def test_secrets_are_hidden(text, shown):
    assert hide_secrets(text) == shown


def test_connections_of_clients_that_vanished_end():
    with (
        _open_port(ServerSettings(database_url="sqlite://", port=0)) as listener,
        socket.create_connection(listener.getsockname()),
        listener.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_an_error_is_one_line_without_its_traceback():
    failure = RuntimeError(f"a\nb {TOKEN}")
    error = (RuntimeError, failure, None)
    record = logging.LogRecord("zeusrun", logging.ERROR, "x.py", 1, "it failed:", (), error)
    assert Redacted().format(record) == "error: it failed: RuntimeError: a b ***"
