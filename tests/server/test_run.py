"""What a server logs has no secrets and no traceback."""

from __future__ import annotations

import logging
import socket

import pytest

pytest.importorskip("fastapi")

from zeusrun.errors import HistoryError, LaunchError, UsageError
from zeusrun.server.run import Redacted, _open_port, hide_secrets, listen
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


@pytest.fixture
def port_in_use():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        yield taken.getsockname()[1]


@pytest.mark.parametrize("case", ["no tokens", "no HTTPS", "port", "host", "certificate"])
def test_a_refused_start_leaves_no_database(tmp_path, port_in_use, case):
    values, error, message = {
        "no tokens": ({"host": "0.0.0.0"}, UsageError, "needs tokens"),
        "no HTTPS": ({"host": "::", "require_token": True}, UsageError, "in the clear"),
        "port": ({"port": port_in_use}, LaunchError, "Address already in use"),
        "host": ({"host": "192.0.2.1", "insecure": True}, LaunchError, "cannot listen on 192.0.2."),
        "certificate": (
            {"ssl_certfile": "/nope.pem", "ssl_keyfile": "/nope.key"},
            UsageError,
            "cannot be used: No such file",
        ),
    }[case]
    url = f"sqlite:///{tmp_path}/server/history.db"
    with pytest.raises(error, match=message):
        listen(ServerSettings(**{"database_url": url, "port": 0, **values}))
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_cannot_be_created_frees_the_port(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (tmp_path / "server").touch()
    with pytest.raises(HistoryError):
        listen(ServerSettings(database_url=f"sqlite:///{tmp_path}/server/x.db", port=port))
    socket.create_server(("127.0.0.1", port)).close()


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
