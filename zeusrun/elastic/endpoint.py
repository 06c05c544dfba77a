"""The HTTP endpoint of an elastic training: KungFu's config server, for one run.

``GET /config`` returns who trains; ``PUT`` or ``POST`` of ``{"size": 3}`` asks for so many ranks;
``DELETE`` asks for as many as at the start; ``POST /stop`` ends the training. Nobody has to sign
in, so it belongs on an address that only the right people reach.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from zeusrun.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeusrun.elastic.rank.board import Board
    from zeusrun.elastic.section import Elastic

_MAX_BYTES = 4096
_TIMEOUT_S = 10.0


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing if a client has gone: the terminal belongs to the training."""


@contextlib.contextmanager
def serve(
    listen: str, board: Board, elastic: Elastic, first: int, stop: Callable[[], None]
) -> Iterator[None]:
    """Answer until the context is left; raises ``LaunchError`` if the address is taken.

    Args:
        listen: Where, as ``127.0.0.1:9100``.
        board: Of the run.
        elastic: The section of the job file.
        first: The number of ranks at the start.
        stop: Cancels the run, as a user does.
    """
    host, _, port = listen.rpartition(":")
    handler = type(
        "Handler",
        (_Handler,),
        {"board": board, "elastic": elastic, "first": first, "stop": staticmethod(stop)},
    )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server_class = type("Server", (_Server,), {"address_family": family})
    try:
        server = server_class((host.strip("[]"), int(port)), handler)
    except OSError as error:
        raise LaunchError(
            f"elastic.listen: {listen}: {error.strerror}; choose another port"
        ) from error
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    board: Board
    elastic: Elastic
    first: int
    stop: Callable[[], None]
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        self._answer({"/config": lambda: None}, HTTPStatus.OK)

    def do_PUT(self) -> None:
        if "Origin" in self.headers:
            error = "web pages of others may not resize a training"
            self._send(HTTPStatus.FORBIDDEN, {"error": error})
        else:
            self._answer({"/config": lambda: self._order(self._read_size()), "/stop": self.stop})

    do_POST = do_PUT  # noqa: N815 - of the standard library

    def do_DELETE(self) -> None:
        self._answer({"/config": lambda: self._order(self.first)})

    def _order(self, size: int) -> None:
        self.board.order(size, "the endpoint")

    def _answer(
        self, known: dict[str, Callable[[], None]], status: HTTPStatus = HTTPStatus.ACCEPTED
    ) -> None:
        """Do what is asked for by the path, and say who trains."""
        if self.path not in known:
            self._send(
                HTTPStatus.NOT_FOUND,
                {"error": "there are /config and /stop"},
            )
            return
        try:
            known[self.path]()
        except (ValueError, RecursionError, OSError) as error:
            self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
        else:
            self._send(status, self._describe())

    def _describe(self) -> dict[str, Any]:
        generation, members = self.board.newest, self.board.members
        orders, wanted, _ = self.board.wanted
        return {
            "generation": generation,
            "size": len(members),
            "wanted": wanted if orders else self.first,
            "min": self.elastic.min,
            "max": self.elastic.max,
            "ranks": [
                {"rank": rank, "process": slot, "pid": self.board.place(slot).pid}
                for rank, slot in enumerate(members)
            ],
        }

    def _read_size(self) -> int:
        """Return the size in the request; raises ``ValueError`` if there cannot be so many."""
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= _MAX_BYTES:
            raise ValueError(f"a request may have {_MAX_BYTES} bytes, not {length}")
        try:
            content = json.loads(self.rfile.read(length))
        except ValueError as error:
            raise ValueError(f'a request must be JSON, such as {{"size": 3}}: {error}') from error
        if not isinstance(content, dict):
            raise ValueError('a request must be an object, such as {"size": 3}')  # noqa: TRY004
        size, least, most = content.get("size"), self.elastic.min, self.elastic.max
        if type(size) is not int or not least <= size <= most:
            raise ValueError(f"size must be a number from {least} to {most}, not {size!r}")
        return size

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal belongs to the training."""
