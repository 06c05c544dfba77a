"""What clients can take of a worker process: requests at a time, their rate, their size.

ASGI applications around the whole application, so that a refused request costs next to nothing.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from typing import TYPE_CHECKING

import anyio

from zeusrun.server.refusals import Refusal, overloaded, refusal_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

STREAM = "zeusrun.stream"
"""In the scope of a request whose answer never ends by itself: server-sent events."""
OPEN = "zeusrun.open"
"""In the scope of a request that needs no token: anybody may send it, so its body is small."""
_OPEN_BYTES = 4096  # of its body: the form for a token
_BODIES = 8  # requests of the largest size that are received together
_SLOWEST = 50_000  # bytes a second in which a request must arrive
_BURST_S = 4.0  # for how long a client may be faster than its rate
_MOST_CLIENTS = 10_000  # that are remembered
_NO_LIMIT = frozenset({"/healthz"})


class Rates:
    """Counts the requests of each client: a token bucket for every token and every address."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._most = max(1.0, rate * _BURST_S)
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, requests: float = 1.0) -> None:
        """Count requests of a client; raises ``Refusal`` if there were too many before."""
        now_t = time.monotonic()
        left, since_t = self._left.pop(client, (self._most, now_t))
        left = min(self._most, left + (now_t - since_t) * self._rate)
        refused = left < 1.0
        self._left[client] = (left if refused else left - requests, now_t)
        if len(self._left) > _MOST_CLIENTS:
            self._left.popitem(last=False)
        if refused:
            text = f"too many requests; this server takes {self._rate:g} a second of each client"
            raise overloaded(text, 429, "rate")


class BoundedRequests:
    """Refuses requests while too many are being answered; the outermost application.

    An error that nothing else has caught ends here: it has been logged and answered.

    Attributes:
        now: How many requests are being answered.
        answered: How many were, by status.
        spent_s: How long it took until their answers began, added up.
    """

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app, self._most = app, most
        self.now = 0
        self.answered: Counter[int] = Counter()  # by status
        self.spent_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request; it does not count while its body arrives."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        counted, status, started_t = 0, 0, time.monotonic()
        arrives = _has_body(scope)

        async def received() -> Message:
            nonlocal counted, arrives
            if arrives:
                self.now -= counted
                counted = 0
            message = await receive()
            if arrives and message["type"] == "http.request" and not message.get("more_body"):
                counted, arrives = self._count(scope), False
            return message

        async def watched(message: Message) -> None:
            nonlocal counted, status
            if message["type"] == "http.response.start":
                status = message["status"]
                self.answered[status] += 1
                self.spent_s += time.monotonic() - started_t
                if _is_stream(message):
                    scope[STREAM] = True
                    self.now -= counted  # it waits nearly all the time
                    counted = 0
            await send(message)

        try:
            counted = self._count(scope)
            await self._app(scope, received, watched)
        except Exception as error:  # noqa: BLE001 - the server goes on
            if not status:
                refusal = refusal_of(error, f"{scope['method']}: ")
                await refusal.answer()(scope, receive, watched)
        finally:
            self.now -= counted

    def _count(self, scope: Scope) -> int:
        if self.now >= self._most and scope["path"] not in _NO_LIMIT:
            raise overloaded("the server answers too many requests now; try again")
        self.now += 1
        return 1


class BoundedBodies:
    """Receives a request as a whole before it is answered, if it is not too large or too slow."""

    def __init__(self, app: ASGIApp, most: int, patience_s: float) -> None:
        self._app, self._most, self._patience_s = app, most, patience_s
        self._held = 0  # bytes of all requests that are being received or answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http" or not _has_body(scope):
            await self._app(scope, receive, send)
            return
        held = 0

        def hold(size: int) -> None:
            nonlocal held
            if self._held + size > self._most * _BODIES:
                raise overloaded("the server receives too many large requests now; try again")
            self._held += size
            held += size

        try:
            body = await self._read(scope, receive, hold)
            if body is not None:
                await self._app(scope, _replay(body, receive), send)
        except Refusal as refusal:
            await refusal.answer()(scope, receive, send)
        finally:
            self._held -= held

    async def _read(
        self, scope: Scope, receive: Receive, hold: Callable[[int], None]
    ) -> bytes | None:
        """Return the body; ``None`` if the client has gone before its end."""
        most = _OPEN_BYTES if OPEN in scope else self._most
        size = int(dict(scope["headers"]).get(b"content-length", 0))
        started_t = time.monotonic()
        body = bytearray()
        more = True
        while True:
            if size > most:
                text = f"the request is larger than {most} bytes, the most that is allowed"
                raise Refusal(413, "size", text)
            if not more:
                return bytes(body)
            left_s = started_t + self._patience_s + len(body) / _SLOWEST - time.monotonic()
            with anyio.move_on_after(max(0.0, left_s)) as timer:
                message = await receive()
            if timer.cancelled_caught:
                raise Refusal(408, "slow", "the request did not arrive in time")
            if message["type"] != "http.request":
                return None
            part = message.get("body", b"")
            hold(len(part))
            body += part
            size = max(size, len(body))  # if its length was not declared
            more = message.get("more_body", False)


def _has_body(scope: Scope) -> bool:
    """Whether a request declares a body."""
    return any(name in {b"content-length", b"transfer-encoding"} for name, _ in scope["headers"])


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a ``receive`` for a request that has been received already."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _is_stream(message: Message) -> bool:
    return any(
        name.lower() == b"content-type" and value.startswith(b"text/event-stream")
        for name, value in message.get("headers", ())
    )
