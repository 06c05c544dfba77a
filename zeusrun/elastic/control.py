"""What the launcher does for an elastic training: its agent, and its HTTP endpoint.

The endpoint is KungFu's config server, for one run. ``GET /config`` returns who trains; ``PUT`` or
``POST`` of ``{"size": 3}`` asks for so many ranks; ``DELETE`` asks for as many as at the start;
``POST /stop`` ends the training. Nobody has to sign in, so it belongs on an address that only the
right people reach.
"""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.changes import Changes, Provisioning
from zeusrun.elastic.rank.board import Board
from zeusrun.errors import LaunchError
from zeusrun.launcher.rundir.layout import ask_to_cancel
from zeusrun.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from zeusrun.elastic.section import Elastic
    from zeusrun.launcher.supervision.agent import Agent
    from zeusrun.launcher.supervision.supervised import Supervised

_MAX_BYTES = 4096  # of a request
_TIMEOUT_S = 10.0


@contextlib.contextmanager
def open_agent(elastic: Elastic, run: Supervised) -> Iterator[Agent]:
    """Serve the endpoint of an elastic training, and yield the agent that sets its ranks.

    Raises ``LaunchError`` if the address of ``elastic.listen`` is taken.
    """
    paths, trial = run.begun.paths, run.begun.trial
    board = Board(paths.run_dir, create=True)
    board.clear(orders=True)  # of an earlier part
    with contextlib.ExitStack() as stack:
        stack.callback(board.close)
        if elastic.listen is not None:
            why = ReasonCode.REQUESTED, "stopped by POST /stop at the endpoint (elastic.listen)"
            stop = partial(ask_to_cancel, paths, why)
            stack.enter_context(serve(elastic.listen, board, elastic, trial.world_size, stop))
        agent, section = Changes(elastic, run), elastic.provision
        if section is not None:
            agent = Provisioning(elastic, section, run, board)
        yield agent
        agent.end(board)


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
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server_class = type("Server", (_Server,), {"address_family": family})
    handler = partial(_Handler, board, elastic, first, stop)
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


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """Print nothing if a client has gone: the terminal belongs to the training."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _TIMEOUT_S

    def __init__(
        self,
        board: Board,
        elastic: Elastic,
        first: int,
        stop: Callable[[], None],
        *request: Any,  # noqa: ANN401 - of the standard library
    ) -> None:
        self._board, self._elastic, self._first, self._stop = board, elastic, first, stop
        super().__init__(*request)

    def _respond(self) -> None:
        """Do what is asked for, and say who trains."""
        actions: dict[str, Callable[[], object]] = {
            "GET /config": lambda: None,
            "PUT /config": lambda: self._board.order(self._read_size(), "the endpoint"),
            "PUT /stop": self._stop,
            "DELETE /config": lambda: self._board.order(self._first, "the endpoint"),
        }
        asked = f"{self.command.replace('POST', 'PUT')} {self.path}"
        if self.command != "GET" and "Origin" in self.headers:
            error = "web pages of others may not resize a training"
            self._send(HTTPStatus.FORBIDDEN, {"error": error})
        elif asked not in actions:
            self._send(HTTPStatus.NOT_FOUND, {"error": "there are /config and /stop"})
        else:
            try:
                actions[asked]()
            except (ValueError, RecursionError, OSError) as error:
                self._send(HTTPStatus.BAD_REQUEST, {"error": str(error)})
            else:
                status = HTTPStatus.OK if self.command == "GET" else HTTPStatus.ACCEPTED
                self._send(status, self._describe())

    do_GET = do_PUT = do_POST = do_DELETE = _respond  # noqa: N815 - of the standard library

    def _describe(self) -> dict[str, Any]:
        generation, members = self._board.newest, self._board.members
        orders, wanted, _ = self._board.wanted
        return {
            "generation": generation,
            "size": len(members),
            "wanted": wanted if orders else self._first,
            "min": self._elastic.min,
            "max": self._elastic.max,
            "ranks": [
                {"rank": rank, "process": slot, "pid": self._board.place(slot).pid}
                for rank, slot in enumerate(members)
            ],
        }

    def _read_size(self) -> int:
        """Return the size in the request; raises ``ValueError`` if there cannot be so many."""
        length = int(self.headers.get("Content-Length", "0"))
        if not 0 <= length <= _MAX_BYTES:
            raise ValueError(f"a request may have {_MAX_BYTES} bytes, not {length}")
        try:
            size = json.loads(self.rfile.read(length))["size"]
        except (ValueError, TypeError, LookupError) as error:
            raise ValueError('a request must be JSON, such as {"size": 3}') from error
        least, most = self._elastic.min, self._elastic.max
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
