"""A connection between the agents of two hosts, over which parts of a board are copied.

Messages are lines of JSON over TCP. Each end proves by an HMAC of a nonce that it knows the token
of the run. After that, nothing is signed or encrypted, as in gloo, which sends the gradients.
"""

from __future__ import annotations

import contextlib
import hmac
import json
import secrets
import socket
import time
from typing import TYPE_CHECKING, Any

from zeusrun.elastic.rank.board import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from zeusrun.elastic.rank.board import Board

TICK_S = 0.002  # an agent reads its board so often: a change of the ranks takes a few messages
_PING_S = 1.0
_STOPPED_S = 5.0  # between two reads: this process was stopped, perhaps with the other end
_MAX_LINE_BYTES = 4 << 20
_READ_BYTES = 1 << 16
_EMPTY = (0,) * len(Place.__annotations__)


class Link:
    """One end of a connection. Nothing waits: ``exchange`` writes and reads what is possible.

    Attributes:
        nonce: What the other end must sign.
        is_open: Whether the other end has not closed it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._sock, self._unsent, self._unread = sock, b"", b""
        self._came: list[dict[str, Any]] = []
        self._heard_t = self._sent_t = self._read_t = time.monotonic()
        self.nonce, self.is_open = secrets.token_hex(16), True

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - of a message
        """Send a message with the next ``exchange``."""
        self._unsent += json.dumps({"kind": kind, **fields}).encode() + b"\n"

    def exchange(self) -> list[dict[str, Any]]:
        """Write what is unsent, sometimes a ping; return the messages that have arrived.

        If the other end sends anything but JSON, the connection counts as closed.
        """
        try:
            self._write()
            self._read()
        except (OSError, ValueError, TypeError, LookupError, RecursionError):
            self.is_open = False
        came, self._came = self._came, []
        return came

    def wait_for_one(self, limit_s: float) -> dict[str, Any] | None:
        """Return the next message; ``None`` if none arrives in time."""
        until_t = time.monotonic() + limit_s
        while self.is_open and time.monotonic() < until_t:
            if came := self.exchange():
                self._came = came[1:]
                return came[0]
            time.sleep(TICK_S)
        return None

    def _write(self) -> None:
        now_t = time.monotonic()
        if not self._unsent and now_t > self._sent_t + _PING_S:
            self.send("ping")
        if self._unsent:
            self._sent_t = now_t
            with contextlib.suppress(BlockingIOError):
                self._unsent = self._unsent[self._sock.send(self._unsent) :]

    def _read(self) -> None:
        now_t = time.monotonic()
        if now_t > self._read_t + _STOPPED_S:
            self._heard_t = now_t
        self._read_t = now_t
        with contextlib.suppress(BlockingIOError):
            while data := self._sock.recv(_READ_BYTES):
                self._heard_t = time.monotonic()
                self._unread += data
            self.is_open = False
        *lines, self._unread = self._unread.split(b"\n")
        if len(self._unread) > _MAX_LINE_BYTES:
            self.is_open = False
        messages = ({**json.loads(line)} for line in lines)
        self._came += [each for each in messages if each["kind"] != "ping"]

    @property
    def silent_s(self) -> float:
        """Seconds since something arrived."""
        return time.monotonic() - self._heard_t

    def flush(self, limit_s: float) -> None:
        """Wait until all is sent, the other end has closed the connection, or the time is over."""
        until_t = time.monotonic() + limit_s
        while self._unsent and self.is_open and time.monotonic() < until_t:
            self.exchange()
            time.sleep(TICK_S)

    def close(self) -> None:
        """Close this end."""
        self.is_open = False
        self._sock.close()


def sign(token: str, nonce: str) -> str:
    """Return the proof that whoever got ``nonce`` knows the token."""
    return hmac.new(token.encode(), nonce.encode(), "sha256").hexdigest()


def verify(token: str, nonce: str, proof: str) -> bool:
    """Whether somebody who was sent ``nonce`` has proved to know the token."""
    return hmac.compare_digest(sign(token, nonce).encode(), proof.encode())


class Replica:
    """What another host already has of this host's board.

    Args:
        board: Of this host.
    """

    def __init__(self, board: Board) -> None:
        self._board = board
        self._numbers: dict[int, int] = {}
        self._places: dict[int, tuple[int, ...]] = {}

    def find_changes(self, slots: Iterable[int]) -> dict[str, Any]:
        """Return what the other host lacks, as fields of a message.

        ``slots``: the processes whose places this host sends.
        """
        shared = self._board.read_shared()
        numbers = {n: value for n, value in shared.items() if value != self._numbers.get(n, 0)}
        read = {slot: self._board.place(slot).read() for slot in slots}
        places = {slot: its for slot, its in read.items() if its != self._places.get(slot, _EMPTY)}
        self._numbers |= numbers
        self._places |= places
        return {name: each for name, each in (("numbers", numbers), ("places", places)) if each}

    def take(self, message: Mapping[str, Any], slots: Iterable[int] | None = None) -> None:
        """Write what the other host has sent; of the places, those of ``slots``; ``None``: all."""
        numbers = {int(n): int(value) for n, value in message.get("numbers", {}).items()}
        self._board.write_shared(numbers)
        self._numbers |= numbers
        for slot, values in message.get("places", {}).items():
            if slots is None or int(slot) in slots:
                self._board.place(int(slot)).write(values)

    def forget(self, slots: Iterable[int]) -> None:
        """Forget what was sent of places that other processes get."""
        for slot in slots:
            self._places.pop(slot, None)
