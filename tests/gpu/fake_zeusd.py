"""A ``zeusd`` of our own: real HTTP over a real Unix socket, from a thread."""

from __future__ import annotations

import contextlib
import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from urllib.parse import parse_qs, urlsplit


class FakeZeusd(socketserver.ThreadingUnixStreamServer):
    """Sets limits by ``set_limit(gpu, milliwatts)``, which returns whether the value is allowed.

    Attributes:
        version: ``today``, which discovers GPUs with their PCI addresses; ``0.5.0``, with their
            names; ``0.4``, their numbers alone; ``0.2``, without ``/discover``.
        gpu_ids: Those that it discovers.
        buses: Their PCI buses.
        token: What requests must bring, but for ``/discover``; ``None`` for none.
        answer: A status that it answers every request for a limit with; 0 for the true one.
        discovered: What ``/discover`` answers instead of its GPUs, or ``None``.
        asked: Every request so far.
    """

    daemon_threads = True

    def __init__(self, address, set_limit, version="today", gpu_ids=(0, 1), token=None):
        super().__init__(address, _Handler)
        self.set_limit = set_limit
        self.version = version
        self.gpu_ids = gpu_ids
        self.buses = {gpu: gpu + 1 for gpu in range(8)}
        self.token = token
        self.answer = 0
        self.discovered = None
        self.asked = []
        self.hang = threading.Event()
        self.hang.set()

    def discover(self):
        if self.discovered is not None:
            return self.discovered
        if self.version == "0.4":
            return json.dumps({"gpu_ids": self.gpu_ids, "cpu_ids": []})
        gpus = [{"id": gpu, "name": "Fake A100"} for gpu in self.gpu_ids]
        if self.version == "today":
            for gpu in gpus:
                gpu["pci_address"] = f"0000:{self.buses[gpu['id']]:02x}:00.0"
        return json.dumps({"gpus": gpus, "cpus": [], "auth_required": self.token is not None})


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def address_string(self):
        return "somewhere"

    def do_GET(self):
        self._begin()
        if self.path == "/discover" and self.server.version != "0.2":
            self._answer(200, self.server.discover())
        else:
            self._answer(404, "")

    def do_POST(self):
        self._begin()
        address = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(address.query).items()}
        known = address.path == "/gpu/set_power_limit" and query["block"] == "true"
        gpu, milliwatts = query.get("gpu_ids"), query.get("power_limit_mw")
        if not known:
            self._answer(404, "")
        elif self.server.token and self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._answer(401, "Missing token")
        elif self.server.answer:
            self._answer(self.server.answer, "as it was told")
        elif self.server.set_limit(int(gpu), int(milliwatts)):
            self._answer(200, "")
        else:
            self._answer(400, f"Invalid power limit {milliwatts}")

    def _begin(self):
        self.server.asked.append(f"{self.command} {self.path}")
        self.server.hang.wait()

    def _answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        with contextlib.suppress(BrokenPipeError):
            self.wfile.write(text.encode())


@contextlib.contextmanager
def running_zeusd(path, set_limit, **settings):
    """Run one on a socket."""
    with FakeZeusd(str(path), set_limit, **settings) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.hang.set()
            server.shutdown()
            thread.join()
