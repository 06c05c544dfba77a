"""What clients can take of a server: the size of a request, and guesses of tokens.

Proxies and uvicorn limit the rest: the rate of requests, their number, and slow clients.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from zeusrun.server.refusals import Refusal, overloaded

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN = "zeusrun.open"
"""In the scope of a request that needs no token: anybody may send it, so its body is small."""
_BODY_BYTES = 32 << 20
_OPEN_BYTES = 4096  # of its body: the form for a token
_GUESSES = 40.0  # wrong tokens of one address, before others are refused
_A_SECOND = 10.0  # how many are allowed again
_MAX_CLIENTS = 10_000  # that are remembered


class Guesses:
    """Counts wrong tokens: a token bucket for every address."""

    def __init__(self) -> None:
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, client: str, guesses: float = 1.0) -> None:
        """Count guesses of a client; raises ``Refusal`` if there were too many before."""
        now_t = time.monotonic()
        left, since_t = self._left.pop(client, (_GUESSES, now_t))
        left = min(_GUESSES, left + (now_t - since_t) * _A_SECOND)
        refused = left < 1.0
        self._left[client] = (left if refused else left - guesses, now_t)
        if len(self._left) > _MAX_CLIENTS:
            self._left.popitem(last=False)
        if refused:
            raise overloaded("too many wrong tokens; try again later", 429, "rate")


class BoundedBodies:
    """Receives a request as a whole before it is answered, if it is not too large."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            try:
                body = await self._read(scope, receive)
            except Refusal as refusal:
                await refusal.answer()(scope, receive, send)
                return
            if body is None:
                return
            messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
            rest = receive

            async def receive() -> Message:
                return messages.pop() if messages else await rest()

        await self._app(scope, receive, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        """Return the body; ``None`` if the client has gone before its end."""
        limit = _OPEN_BYTES if OPEN in scope else _BODY_BYTES
        size = int(dict(scope["headers"]).get(b"content-length", 0))
        body = bytearray()
        more = True
        while True:
            if size > limit:
                text = f"the request is larger than {limit} bytes, the most that is allowed"
                raise Refusal(413, "size", text)
            if not more:
                return bytes(body)
            message = await receive()
            if message["type"] != "http.request":
                return None
            body += message.get("body", b"")
            size = max(size, len(body))  # if its length was not declared
            more = message.get("more_body", False)
