"""A server in a thread, over an SQLite file, and what asks it for pages."""

from __future__ import annotations

import http.client
import shutil
import time
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.databases import opened
from tests.server.conftest import serving


@contextmanager
def open_store(empty, path):
    """Open a new database in a file: a copy of an empty one."""
    shutil.copy(empty, path)
    yield from opened(f"sqlite:///{path}")


@contextmanager
def serve(store, **settings):
    """Serve the history of a store on loopback; yield the port, by default any that is free."""
    url = store.engine.url.render_as_string(hide_password=False)
    with serving(database_url=url, **settings) as server:
        yield server.port


def fetch(port, path, method="GET", **headers):
    """Request a path; return the status, the headers and the text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request(
            method, path, headers={name.replace("_", "-"): text for name, text in headers.items()}
        )
        answer = connection.getresponse()
        return SimpleNamespace(
            status=answer.status, headers=answer.headers, text=answer.read().decode()
        )
    finally:
        connection.close()


def fetch_whole(port):
    """Return the first page once everything on it has been computed."""
    while "data-pending" in (text := fetch(port, "/").text):
        time.sleep(0.02)
    return text


@pytest.fixture
def store(sql_history):
    return sql_history
