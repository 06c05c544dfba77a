"""Connections that end: a client that sends or reads too slowly does not hold one for ever."""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from zeusrun.server.limits import STREAM

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

_STALLED_S = 30.0  # in which a client must read something of a large answer
_SPARE = 128  # file descriptors for everything but connections


class _Timer:
    """Does something later, unless it is stopped before."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._handle: asyncio.TimerHandle | None = None

    def start(self, delay_s: float, action: Callable[[], object]) -> None:
        """Begin to wait, if it does not already."""
        if self._handle is None:
            self._handle = self._loop.call_later(delay_s, action)

    def stop(self) -> None:
        """Wait no longer."""
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None


class Connection(H11Protocol):
    """A connection of uvicorn with the timeouts that it lacks."""

    patience_s = 15.0
    most = 10_000

    @classmethod
    def bound(cls, patience_s: float) -> None:
        """Set what all connections of this process can take.

        They may use as many file descriptors as the process can have.
        """
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        except (ValueError, OSError):
            hard = soft
        cls.patience_s = patience_s
        if hard != resource.RLIM_INFINITY:
            cls.most = max(8, min(cls.most, hard - _SPARE))

    def __init__(self, *arguments: Any, **options: Any) -> None:  # noqa: ANN401 - uvicorn's
        super().__init__(*arguments, **options)
        self._idle = _Timer(self.loop)
        self._stalled = _Timer(self.loop)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the connection if there are too many, else wait for its first request."""
        super().connection_made(transport)
        if len(self.connections) > self.most:
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        super().connection_lost(exc)
        self._idle.stop()
        self._stalled.stop()

    def data_received(self, data: bytes) -> None:
        """Take bytes; those of half a request buy no time."""
        super().data_received(data)
        self._watch()

    def pause_writing(self) -> None:
        """Wait until the client has read something."""
        super().pause_writing()
        self._stalled.start(_STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on sending."""
        super().resume_writing()
        self._stalled.stop()

    def timeout_keep_alive_handler(self) -> None:
        """Close an idle connection, even if its client never reads the rest of an answer."""
        super().timeout_keep_alive_handler()
        self._stalled.start(_STALLED_S, self.transport.abort)

    def shutdown(self) -> None:
        """Stop; but do not wait for the rest of a request, or of an answer without an end."""
        super().shutdown()
        is_answering = self.cycle is not None and not self.cycle.response_complete
        if is_answering and (self.cycle.more_body or STREAM in self.scope):
            self.transport.close()

    def _watch(self) -> None:
        """Give up soon unless a request is being answered."""
        if self.cycle is not None and not self.cycle.response_complete:
            self._idle.stop()
        else:
            self._idle.start(self.patience_s, self.transport.abort)
