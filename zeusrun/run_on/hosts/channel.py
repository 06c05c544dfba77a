"""Messages between the head and a node launcher: length-prefixed JSON over pipes or one socket.

A message is a JSON object with ``kind``, and ``node``: the number of the node that it is for or
from. Some fan-outs, such as srun, give their standard input to every node. Pipes have been
authenticated by the fan-out. A socket has not: there, each message carries an HMAC (RFC 2104) by
the token of the run, over its direction and number as well, so it cannot be forged or replayed.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import math
import os
import secrets
import select
import struct
import threading
import time
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.errors import LaunchError

if TYPE_CHECKING:
    from collections.abc import Callable

Message: TypeAlias = "dict[str, Any]"

PREAMBLE = b"\nzeusrun node: messages follow\n"
"""What a node launcher writes first. A login shell may have written something before."""

_LENGTH = struct.Struct(">I")
_MAX_BYTES = 16 << 20
_MAX_NOISE_BYTES = 64 << 10
_NONCE_BYTES = 16
_MAC_BYTES = hashlib.sha256().digest_size
_JOIN_S = 5.0


class ChannelError(LaunchError):
    """The other end sent what is no message of the run."""


class Authenticator:
    """The HMACs of one socket. Both ends draw a nonce, so no two connections have the same key."""

    def __init__(self, token: str, nonce: bytes, other: bytes, *, head: bool) -> None:
        nonces = nonce + other if head else other + nonce
        self._key = hmac.digest(token.encode(), nonces, "sha256")
        self._directions = (b"h", b"n") if head else (b"n", b"h")
        self._sent = self._received = 0

    def sign(self, payload: bytes) -> bytes:
        """Return a payload with its HMAC."""
        self._sent += 1
        return self._digest(self._directions[0], self._sent, payload) + payload

    def verify(self, signed: bytes) -> bytes:
        """Return the payload; raises ``ChannelError`` if the HMAC is wrong."""
        self._received += 1
        mac, payload = signed[:_MAC_BYTES], signed[_MAC_BYTES:]
        expected = self._digest(self._directions[1], self._received, payload)
        if not hmac.compare_digest(mac, expected):
            raise ChannelError("the tokens of the two ends differ")
        return payload

    def _digest(self, direction: bytes, number: int, payload: bytes) -> bytes:
        return hmac.digest(self._key, direction + struct.pack(">Q", number) + payload, "sha256")


class Channel:
    """One end of a connection. ``send`` never waits: a thread writes, in order.

    The descriptors belong to the channel. ``close`` closes them, also while another thread
    receives: that thread gets the end.
    """

    def __init__(
        self, reading: int, writing: int, node: int = 0, auth: Authenticator | None = None
    ) -> None:
        self.node = node
        self._reading, self._writing, self._auth = reading, writing, auth
        self._unsent: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)  # readable once nobody may wait any more
        self._receiving = threading.Lock()
        self.backlog = 0  # bytes that are not written yet
        self.broken = False  # whether the other end is known to be gone
        self._thread = threading.Thread(target=self._write, name="zeusrun-channel", daemon=True)
        self._thread.start()

    @property
    def is_private(self) -> bool:
        """Whether the fan-out's pipes carry it; a socket is not encrypted."""
        return self._auth is None

    def send(self, kind: str, **fields: Any) -> None:  # noqa: ANN401 - of a message
        """Send a message; if the other end is gone, do nothing: ``receive`` shows it."""
        # A fan-out such as srun passes on whole lines.
        payload = json.dumps({"kind": kind, "node": self.node, **fields}).encode() + b"\n"
        with self._changed:
            if self._auth is not None:
                payload = self._auth.sign(payload)
            self._unsent.append(_LENGTH.pack(len(payload)) + payload)
            self.backlog += len(payload)
            self._changed.notify()

    def receive(self) -> Message | None:
        """Wait for the next message; ``None`` at the end. Raises ``ChannelError`` for others."""
        with self._receiving:
            payload = None if self._closing else receive_frame(self._reading, self._stop)
        if payload is None:
            self.broken = True
            return None
        if self._auth is not None:
            payload = self._auth.verify(payload)
        try:
            message = json.loads(payload)
            if isinstance(message["kind"], str) and isinstance(message["node"], int):
                return dict(message)
        except (ValueError, TypeError, LookupError, RecursionError):
            pass
        raise ChannelError("the data received is not a zeusrun message")

    def skip_noise(self) -> bool:
        """Read up to the mark of a node launcher; return false if the connection ends before."""
        seen = b""
        with self._receiving:
            while not (self._closing or seen.endswith(PREAMBLE)):
                part = _read_exactly(self._reading, 1, self._stop)
                if part is None or len(seen) > _MAX_NOISE_BYTES:
                    return False
                seen += part
        return seen.endswith(PREAMBLE)

    def close(self) -> None:
        """Write what is not written yet, for a few seconds at most, and close the descriptors.

        Both threads leave them first: the next file that is opened could get the number of a
        closed one, and a thread that still used it would read or write the bytes of that file.
        """
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify()
        self._thread.join(_JOIN_S)
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        with self._receiving:
            for descriptor in {self._reading, self._writing, self._stop}:
                os.close(descriptor)

    def _write(self) -> None:
        with contextlib.suppress(OSError):  # the other end is gone
            while True:
                with self._changed:
                    self._changed.wait_for(lambda: self._unsent or self._closing)
                    if not self._unsent:
                        return
                    frame = self._unsent.popleft()
                if not _write_until(self._writing, frame, self._stop):
                    return
                with self._changed:
                    self.backlog -= len(frame) - _LENGTH.size


def write_all(descriptor: int, data: bytes) -> None:
    """Write all bytes; raises ``OSError``."""
    while data:
        data = data[os.write(descriptor, data) :]


def _write_until(descriptor: int, data: bytes, stop: int) -> bool:
    """Write all bytes, and return true; false if ``stop`` becomes readable before."""
    left = memoryview(data)
    while left:
        if not _wait_for(descriptor, select.POLLOUT, stop):
            return False
        # A pipe or socket that is ready takes so many bytes without a wait.
        left = left[os.write(descriptor, left[: select.PIPE_BUF]) :]
    return True


def _wait_for(descriptor: int, event: int, stop: int | None, until_t: float = math.inf) -> bool:
    """Wait until a descriptor is ready, or ended; false if ``stop`` is readable, or it is late."""
    poll = select.poll()  # select would refuse descriptors from 1024 on
    poll.register(descriptor, event)
    if stop is not None:
        poll.register(stop, select.POLLIN)
    left_s = until_t - time.monotonic()
    ready = poll.poll(None if left_s == math.inf else max(0.0, left_s) * 1000)
    return bool(ready) and stop not in dict(ready)


def receive_frame(descriptor: int, stop: int | None = None) -> bytes | None:
    """Return the payload of the next frame.

    ``None`` at the end of the connection, or once ``stop`` becomes readable.
    """
    head = _read_exactly(descriptor, _LENGTH.size, stop)
    if head is None:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _MAX_BYTES:
        raise ChannelError("the data received is not a zeusrun message")
    return _read_exactly(descriptor, length, stop)


def _read_exactly(
    descriptor: int, size: int, stop: int | None = None, until_t: float = math.inf
) -> bytes | None:
    parts, left = [], size
    while left:
        if not _wait_for(descriptor, select.POLLIN, stop, until_t):
            return None
        try:
            part = os.read(descriptor, left)
        except OSError:  # reset
            return None
        if not part:
            return None
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def authenticate(
    descriptor: int, token: str, *, head: bool, timeout_s: float = math.inf
) -> Authenticator:
    """Exchange nonces over a new socket; raises ``ChannelError`` if no zeusrun answers."""
    nonce = secrets.token_bytes(_NONCE_BYTES)
    write_all(descriptor, PREAMBLE + nonce)
    size, until_t = len(PREAMBLE) + _NONCE_BYTES, time.monotonic() + timeout_s
    received = _read_exactly(descriptor, size, until_t=until_t) or b""
    if not received.startswith(PREAMBLE):
        raise ChannelError("the other end is not zeusrun")
    return Authenticator(token, nonce, received[len(PREAMBLE) :], head=head)


def receive_all(channel: Channel, take: Callable[[Message], None]) -> str | None:
    """Give each message to ``take`` until the connection ends; return what was wrong, if it was."""
    try:
        while (message := channel.receive()) is not None:
            take(message)
    except ChannelError as error:
        return str(error)
    return None
