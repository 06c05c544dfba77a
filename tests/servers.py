"""Real servers of a shared history on loopback, and a proxy that disturbs what passes through."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading

from tests.runs import wait_for


class Proxy:
    """Passes connections on to a server, and disturbs them.

    Attributes:
        mode: ``pass``; ``refuse``: connections end at once; ``hang``: nothing passes; ``lose``: the
            request arrives, and the answer does not.
        requests: How many requests have passed.
        target: The port of the server.
    """

    def __init__(self, port):
        self.target = port
        self.mode, self.requests = "pass", 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open, self._threads = set(), []
        self._start(self._accept)

    def _start(self, work, *arguments):
        self._threads.append(threading.Thread(target=work, args=arguments, daemon=True))
        self._threads[-1].start()

    def close(self):
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # its thread waits for a client
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def cut(self):
        """End all connections."""
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                if self.mode == "refuse":
                    client.close()
                    continue
                try:
                    server = socket.create_connection(("127.0.0.1", self.target))
                except OSError:
                    client.close()
                    continue
                self._open |= {client, server}
                self._start(self._pump, client, server, True)
                self._start(self._pump, server, client, False)

    def _pump(self, source, target, is_request):
        with contextlib.suppress(OSError):
            while (data := source.recv(1 << 16)) and self.mode != "refuse":
                if self.mode == "hang":
                    continue
                if self.mode == "lose" and not is_request:
                    break
                self.requests += is_request and data[:5] in {b"GET /", b"POST ", b"PUT /"}
                target.sendall(data)
        for each in (source, target):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        self._open.discard(source)


def hang_up(server):
    """Wait until a server of uvicorn has closed the connections that its clients have closed."""
    wait_for(lambda: not server.server_state.connections)
    loop = server.servers[0].get_loop()
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result()


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
        """Start, unless it runs."""
        if self._thread is not None:
            return
        import uvicorn

        from zeusrun.server.app import build_app
        from zeusrun.server.settings import ServerSettings

        app = build_app(ServerSettings(database_url=self.database_url))
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="critical")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        wait_for(lambda: self._server.started, what="the start of the server")
        while not hasattr(app, "state"):  # the limits stand around it
            app = app._app
        self._app, self._first = app, app.state.history

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

    def rest(self):
        """Close all connections, until the next request."""
        hang_up(self._server)
        for history in (self._first, self.history):  # of the tokens, and of the trials
            history.close()

    def _run(self):
        asyncio.run(self._server.serve())

    def stop(self):
        """Stop as if killed: connections are cut, and nobody listens any more."""
        if self._thread is not None:
            self._server.should_exit = self._server.force_exit = True
            self._thread.join()
            self._thread = None
            for history in (self._first, self.history):  # its lifespan has not ended
                history.close()


@contextlib.contextmanager
def running(database_url):
    """Run a server until the end of the block."""
    server = HistoryServer(database_url)
    server.start()
    try:
        yield server
    finally:
        server.stop()
