"""What the launcher does for an elastic training: its HTTP endpoint, and provisioning.

The endpoint is KungFu's config server, for one run. ``GET /config`` returns who trains; ``PUT`` or
``POST`` of ``{"size": 3}`` asks for so many ranks; ``DELETE`` asks for as many as at the start;
``POST /stop`` ends the training. Nobody has to sign in, so it belongs on an address that only the
right people reach.

Provisioning adds one rank after the other while the training gains by it. By throughput, the rule
is that of KungFu (Mai et al., OSDI 2020): a rank stays if the throughput T(n) is at least
(1 + 1/(3n)) T(n - 1). By joules, it stays if a sample takes less.
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

from zeusrun.elastic.rank.board import FOLDER, Board
from zeusrun.errors import LaunchError
from zeusrun.files.private import replace_file
from zeusrun.launcher.rundir.layout import ask_to_cancel
from zeusrun.launcher.supervision.agent import Agent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.elastic.section import Elastic, Provision
    from zeusrun.launcher.supervision.supervised import Supervised
    from zeusrun.metrics.progress import Progress
    from zeusrun.sidecar.step_clock import StepCount

_SKIPPED = 2  # steps after each change
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
            stop = partial(ask_to_cancel, paths)
            stack.enter_context(serve(elastic.listen, board, elastic, trial.world_size, stop))
        section = elastic.provision
        yield Agent() if section is None else _Provisioning(elastic, section, run, board)


class _Provisioning(Agent):
    """Orders one rank more or one rank less, by what they cost."""

    def __init__(self, elastic: Elastic, section: Provision, run: Supervised, board: Board) -> None:
        trial = run.begun.trial
        is_scaled = elastic.batch_size == "scaled"

        def samples(ranks: int) -> float:
            return trial.global_batch_size * (ranks / trial.world_size if is_scaled else 1.0)

        path = run.begun.paths.run_dir / FOLDER / "provision.csv"
        table, energy_between = _open_table(path, section.by), run.meter.energy_between
        self._board, self._count = board, run.ranks.count
        self._provisioner = Provisioner(section, elastic.max, energy_between, samples, table)

    def advance(self, progress: Progress) -> None:
        """Order another number of ranks, if a change is due."""
        ranks, count = progress.ranks, self._count()
        if count is None:
            return
        size = self._provisioner.advance(len(ranks.changes), ranks.world_size, count)
        if size is not None:
            self._board.order(size, "provisioning")

    def conclude(self, progress: Progress) -> None:
        """Do nothing: all ranks have ended, and the board is closed."""


def _open_table(path: Path, by: str) -> Callable[[int, float], None]:
    """Return a function that adds a row to a new table of what was measured."""
    unit = "joule" if by == "joules" else "second"
    lines = [f"ranks,samples_per_{unit}"]

    def note(ranks: int, rate: float) -> None:
        lines.append(f"{ranks},{rate:.6g}")
        with contextlib.suppress(OSError):  # a full disk
            replace_file(path, "\n".join([*lines, ""]).encode(), durable=False)

    return note


class Provisioner:
    """Measures each number of ranks for some steps, and decides on the next.

    Args:
        section: By what it decides, and how long it measures.
        most: Ranks.
        energy_between: Returns joules between two monotonic seconds; ``None``: unknown.
        samples: Returns those of a step over so many ranks.
        note: Called with each number of ranks that was measured, and its samples a second or a
            joule.
    """

    def __init__(
        self,
        section: Provision,
        most: int,
        energy_between: Callable[[float, float], float | None],
        samples: Callable[[int], float],
        note: Callable[[int, float], None],
    ) -> None:
        self._samples, self._note = samples, note
        self._by, self._every, self._most = section.by, section.every, most
        self._energy_between = energy_between
        self._generation: int | None = None  # that is measured
        self._begin = 0  # the step after which it is
        self._since: StepCount | None = None  # as the clock was by then
        self._has_asked = False
        self._known: dict[int, float] = {}  # samples a second, or a joule, by ranks
        self.has_ended = False

    def advance(self, generation: int, size: int, count: StepCount) -> int | None:
        """Take in the step clock of rank 0; return another number of ranks, if that is due.

        ``generation``: the number of the present one; another one is measured from its start.
        """
        if self._generation != generation:
            self._generation, self._begin = generation, count.steps + _SKIPPED
            self._since, self._has_asked = None, False
        elif self._since is None and count.steps >= self._begin:
            self._since = count
        if self.has_ended or self._has_asked or self._since is None:
            return None  # newcomers that start would slow these ranks down
        steps, since_t = count.steps - self._since.steps, self._since.last_step_t
        if steps < self._every:
            return None
        spent = count.last_step_t - since_t  # seconds, or joules
        if self._by == "joules":
            spent = self._energy_between(since_t, count.last_step_t) or 0.0
        if spent <= 0:
            return None
        self._known[size] = steps * self._samples(size) / spent
        self._note(size, self._known[size])
        self._has_asked = True
        return self._choose(size)

    def _choose(self, size: int) -> int | None:
        before, gain = self._known.get(size - 1), 1.0
        if self._by == "throughput":
            gain += 1 / (3 * size)
        if before is not None and self._known[size] < gain * before:
            self.has_ended = True
            return size - 1
        self.has_ended = size >= self._most
        return None if self.has_ended else size + 1


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
