"""Connections of clients: a slow client, or one with many connections, locks out nobody.

Who has no token can do no more than wait: for a head, for a body, or between two requests. So a new
connection takes the place of one that waits.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

if TYPE_CHECKING:
    import asyncio

_WAIT_S = 10.0  # for the head of a request, and for so much of its body:
_LEAST_BYTES = 10 << 10
_MOST, _MOST_OF_ADDRESS = 900, 450  # a process may usually open 1024 files


class Connection(H11Protocol):
    """A connection that ends if its client sends too slowly, or if others need its place.

    Behind a proxy, all have the address of the proxy.

    Attributes:
        active_t: When the client last sent something, by the clock of the loop.
    """

    def __init__(self, *args: Any, **options: Any) -> None:  # noqa: ANN401 - those of uvicorn
        """Prepare, as uvicorn does."""
        super().__init__(*args, **options)
        self._timer: asyncio.TimerHandle | None = None
        self._received = 0  # bytes since the timer was started
        self.active_t: float = self.loop.time()

    @property
    def waits(self) -> bool:
        """Whether the client has not sent a whole request that is not answered yet."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    @property
    def address(self) -> str:
        """The address of the client."""
        return self.client[0] if self.client else ""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, and make room for it."""
        super().connection_made(transport)
        self._start_timer()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        """Take in a part of a request."""
        self.active_t = self.loop.time()
        self._received += len(data)
        super().data_received(data)
        if not self.waits:
            self._stop_timer()
        elif self._timer is None:
            self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        """End."""
        self._stop_timer()
        super().connection_lost(exc)

    def _start_timer(self) -> None:
        self._received = 0
        self._timer = self.loop.call_later(_WAIT_S, self._check_progress)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check_progress(self) -> None:
        """End the connection if its request has come too slowly."""
        of_body = self.cycle is not None and not self.cycle.response_complete
        if of_body and (self.flow.read_paused or self._received >= _LEAST_BYTES):
            self._start_timer()
        else:
            self.transport.abort()

    def _make_room(self) -> None:
        """If there are too many, end the one that waits longest, of the address with most."""
        present = [each for each in self.connections if isinstance(each, Connection)]
        present = [each for each in present if not each.transport.is_closing()]
        count = Counter(each.address for each in present)
        if count[self.address] > _MOST_OF_ADDRESS:
            present = [each for each in present if each.address == self.address]
        elif len(present) <= _MOST:
            return
        waiting = [each for each in present if each.waits and each is not self]
        longest = min(waiting, key=lambda each: (-count[each.address], each.active_t), default=self)
        longest.transport.abort()
