"""The HTTP endpoint of an elastic training: KungFu's config server, for one run.

``GET /config`` returns who trains; ``PUT`` or ``POST`` of ``{"size": 3}`` asks for so many ranks;
``DELETE`` asks for as many as at the start; ``POST /stop`` ends the training. Nobody has to sign
in, so it belongs on an address that only the right people reach.
"""

from __future__ import annotations

import json
import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from zeusrun.errors import LaunchError

if TYPE_CHECKING:
    from typing_extensions import Self

    from zeusrun.jobfile.elastic_section import Elastic
    from zeusrun.sidecar.board import Board

_MAX_BYTES = 4096
_TIMEOUT_S = 10.0
_BY = "the endpoint"


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing if a client has gone: the terminal belongs to the training."""


class Endpoint:
    """A context manager: answers until it is left.

    Args:
        listen: Where, as ``127.0.0.1:9100``.
        board: Of the run.
        elastic: The section of the job file.
        first: The number of ranks at the start.
    """

    def __init__(self, listen: str, board: Board, elastic: Elastic, first: int) -> None:
        self._listen, self._board, self._elastic, self._first = listen, board, elastic, first

    def __enter__(self) -> Self:
        """Listen; raises ``LaunchError`` if the address is taken."""
        host, _, port = self._listen.rpartition(":")
        handler = type("Handler", (_Handler,), {"endpoint": self})
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        server = type("Server", (_Server,), {"address_family": family})
        try:
            self._server = server((host.strip("[]"), int(port)), handler)
        except OSError as error:
            raise LaunchError(
                f"elastic.listen: {self._listen}: {error.strerror}; choose another port"
            ) from error
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def describe(self) -> dict[str, Any]:
        """Return who trains."""
        board, elastic = self._board, self._elastic
        number = board.newest  # 0 until the agent has begun
        members = board.read_generation(number).members if number else ()
        orders, wanted, _ = board.wanted
        ranks = [
            {"rank": rank, "process": slot, "pid": board.place(slot).pid}
            for rank, slot in enumerate(members)
        ]
        return {
            "generation": number,
            "size": len(ranks),
            "wanted": wanted if orders else self._first,
            "min": elastic.min,
            "max": elastic.max,
            "ranks": ranks,
        }

    def order(self, size: int | None) -> None:
        """Ask for a number of ranks; ``None``: that of the start."""
        self._board.order(self._first if size is None else size, _BY)

    def check(self, size: object) -> int:
        """Return a size; raises ``ValueError`` if there cannot be so many ranks."""
        least, most = self._elastic.min, self._elastic.max
        if type(size) is not int or not least <= size <= most:
            raise ValueError(f"size must be a number from {least} to {most}, not {size!r}")
        return size


class _Handler(BaseHTTPRequestHandler):
    endpoint: Endpoint
    timeout = _TIMEOUT_S

    def do_GET(self) -> None:
        if self.path == "/config":
            self._answer(HTTPStatus.OK)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /config and /stop")

    def do_PUT(self) -> None:
        if "Origin" in self.headers:
            self._refuse(HTTPStatus.FORBIDDEN, "web pages of others may not resize a training")
            return
        if self.path == "/stop":
            self.endpoint.order(0)
            self._answer(HTTPStatus.ACCEPTED)
            return
        if self.path != "/config":
            self._refuse(HTTPStatus.NOT_FOUND, "there are /config and /stop")
            return
        try:
            size = self.endpoint.check(self._read().get("size"))
        except (ValueError, RecursionError) as error:
            self._refuse(HTTPStatus.BAD_REQUEST, str(error))
            return
        self.endpoint.order(size)
        self._answer(HTTPStatus.ACCEPTED)

    do_POST = do_PUT  # noqa: N815 - of the standard library

    def do_DELETE(self) -> None:
        if self.path == "/config":
            self.endpoint.order(None)
            self._answer(HTTPStatus.ACCEPTED)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there are /config and /stop")

    def _read(self) -> dict[str, Any]:
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= _MAX_BYTES:
            raise ValueError(f"a request may have {_MAX_BYTES} bytes, not {length}")
        content = json.loads(self.rfile.read(length))
        if not isinstance(content, dict):
            raise ValueError('a request must be an object, such as {"size": 3}')  # noqa: TRY004
        return content

    def _answer(self, status: HTTPStatus) -> None:
        self._send(status, self.endpoint.describe())

    def _refuse(self, status: HTTPStatus, message: str) -> None:
        self._send(status, {"error": message})

    def _send(self, status: HTTPStatus, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode() + b"\n"
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing: the terminal belongs to the training."""
