"""A server of the pages alone, in a thread, over an SQLite file."""

from __future__ import annotations

import asyncio
import http.client
import shutil
import socket
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from tests.databases import opened


@contextmanager
def open_store(empty, path):
    """Open a new database in a file: a copy of an empty one."""
    shutil.copy(empty, path)
    yield from opened(f"sqlite:///{path}")


@contextmanager
def serve(store, port=0, **options):
    """Serve pages on loopback; yield the port, by default any that is free."""
    import uvicorn
    from fastapi import FastAPI

    from zeusrun.server.pages.router import build_router

    app = FastAPI()
    app.include_router(build_router(store, **options))
    config = uvicorn.Config(
        app, "127.0.0.1", port, log_level="critical", timeout_graceful_shutdown=1
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()))
    thread.start()
    while not server.started:
        threading.Event().wait(0.01)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        thread.join()


def fetch(port, path, method="GET", **headers):
    """Request a path; return the status, the headers and the text."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
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


@pytest.fixture
def store(sql_history):
    return sql_history


@pytest.fixture
def unused_port():
    """Return a port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
