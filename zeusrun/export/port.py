"""The port at which Prometheus reads the running training of a submit."""

from __future__ import annotations

import socket
import sys
import threading
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING

from zeusrun.errors import UsageError
from zeusrun.export.prometheus import CONTENT_TYPE, live_text
from zeusrun.launcher.events import TrialEnded, TrialStarts
from zeusrun.launcher.rundir.layout import RunPaths
from zeusrun.launcher.rundir.record import read_live

if TYPE_CHECKING:
    from typing_extensions import Self

    from zeusrun.launcher.events import SubmitEvent
    from zeusrun.launcher.rundir.record import Live

LOOPBACK = "127.0.0.1"
_POLL_S = 0.1  # the end of a submit waits that long at most
_CLIENT_TIMEOUT_S = 2.0  # of a client that connects and sends nothing
_COUNTED = ("energy_j", "cost_j", "time_s", "steps")  # what is served as counters


class MetricsPort:
    """Serves ``/metrics`` from a thread while the ``with`` block runs.

    A bug of the thread is raised again on leaving the block, unless another exception leaves it.

    Attributes:
        url: Where the metrics are.
    """

    def __init__(self, job: str, address: str) -> None:
        """Bind the port: ``9400`` of loopback, or ``HOST:9400``.

        Raises:
            UsageError: If the address is none, or cannot be bound.
        """
        host, port = parse_address(address)
        self._job = job
        self._paths: RunPaths | None = None
        self._highest: dict[str, float] = {}  # of the counters of this run
        self._lock = threading.Lock()
        try:
            self._server = server = _Server(host, port, self)
        except (OSError, UnicodeError) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise UsageError(
                f"--metrics-port {address} cannot be opened: {why}; choose another one"
            ) from error
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{server.server_address[1]}/metrics"
        self._thread = threading.Thread(
            target=server.serve_forever, args=(_POLL_S,), name="zeusrun-metrics", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, exception: object, traceback: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        if self._server.bug is not None and exception is None:
            raise self._server.bug

    def take(self, event: SubmitEvent) -> None:
        """Take an event of the submit: serve a run from its start to its end."""
        if isinstance(event, TrialStarts):
            with self._lock:
                self._highest.clear()
                self._paths = RunPaths(Path(event.trial.run_dir))
        elif isinstance(event, TrialEnded):
            self._paths = None

    def text(self) -> str:
        """Return the metrics now. The threads of clients call it."""
        with self._lock:
            live = None if self._paths is None else read_live(self._paths)
            return live_text(self._job, None if live is None else self._never_falling(live))

    def _never_falling(self, live: Live) -> Live:
        """Keep each counter at its highest value: early energy is extrapolated, then corrected."""
        values = {name: getattr(live.trial, name) for name in _COUNTED}
        known = {name: value for name, value in values.items() if value is not None}
        highest = {
            name: max(value, self._highest.get(name, value)) for name, value in known.items()
        }
        self._highest |= highest
        return replace(live, trial=replace(live.trial, **highest))


def parse_address(text: str) -> tuple[str, int]:
    """Return the host and the port of ``9400``, ``HOST:9400`` or ``[::1]:9400``.

    Raises:
        UsageError: If the text is no such address.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]") or LOOPBACK
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and int(port) < 1 << 16):
        raise UsageError(
            f"--metrics-port {text}: not a port; write a number such as 9400, or HOST:9400"
        )
    return host, int(port)


class _Server(ThreadingTCPServer):
    """A daemon thread for each client: a slow one delays neither the others nor the end.

    ``http.server.HTTPServer`` would look up the host's name at its start.

    Attributes:
        bug: The first exception of a request that is not the client's.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False

    def __init__(self, host: str, port: int, metrics: MetricsPort) -> None:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        self.metrics = metrics
        self.bug: BaseException | None = None
        super().__init__((str(place[0]), int(place[1])), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:  # noqa: ARG002
        """Keep a bug for the main thread; a client that hangs up is none."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            self.bug = self.bug or error


class _Handler(BaseHTTPRequestHandler):
    """Answers GET and HEAD."""

    timeout = _CLIENT_TIMEOUT_S
    server_version = "zeusrun"
    sys_version = ""
    server: _Server

    def do_GET(self) -> None:
        """Answer with the metrics, to HEAD with the headers alone."""
        found = self.path.partition("?")[0] == "/metrics"
        text = self.server.metrics.text() if found else "The metrics are at /metrics\n"
        content = text.encode()
        self.send_response(200 if found else 404)
        self.send_header("Content-Type", CONTENT_TYPE if found else "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server calls

    def log_message(self, *_: object) -> None:
        """Print nothing."""
