"""Real servers of a shared history on loopback, and a proxy that disturbs what passes through."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

from tests.runs import wait_for


class HistoryServer:
    """``zeusrun serve`` in a thread, on a port that stays the same when it starts again."""

    def __init__(self, database_url):
        self.database_url = database_url
        with socket.create_server(("127.0.0.1", 0)) as any_port:
            self.port = any_port.getsockname()[1]
        self._thread = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        import uvicorn

        from zeusrun.server.app import build_app
        from zeusrun.server.settings import Limits, Settings

        app = build_app(Settings(database_url=self.database_url, limits=Limits(rate=1e6)))
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started, what="the start of the server")
        while not hasattr(app, "state"):  # the limits stand around it
            app = app._app
        self._app = app

    @property
    def history(self):
        """The ``SqlHistory`` of the server."""
        return self._app.state.history

    def use(self, database_url):
        """Let the running server use another database."""
        from zeusrun.history.sql.store import SqlHistory

        self.history.close()
        self.database_url = database_url
        self._app.state.history = SqlHistory(database_url)

    def _run(self):
        asyncio.run(self._server.serve())

    def stop(self):
        """Stop as if killed: connections are cut, and nobody listens any more."""
        if self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._thread = None


@contextlib.contextmanager
def running(database_url):
    """Run a server until the end of the block."""
    server = HistoryServer(database_url)
    server.start()
    try:
        yield server
    finally:
        server.stop()
