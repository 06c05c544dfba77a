"""Who sends a request, what it may read and write, and how large and how frequent it may be.

A token comes in the header ``Authorization``, in the page's cookie or, as Zeus's clients send no
header, in the path: ``/zeus/<token>/jobs`` is ``/jobs`` with that token.

``connections.py`` limits slow clients, and a proxy the rate of requests.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, cast
from urllib.parse import quote

import anyio.to_thread
from starlette.requests import HTTPConnection

from zeusrun.errors import HistoryError
from zeusrun.history.http.address import is_loopback
from zeusrun.history.sql.tokens import find_token, list_tokens, mark_used
from zeusrun.server.refusals import LOG, OF_ZEUS, Refusal, overloaded, refusal_of

if TYPE_CHECKING:
    from starlette.datastructures import Headers
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.history.sql.tokens import Token
    from zeusrun.server.settings import ServerSettings

COOKIE = "zeusrun_token"
ZEUS_ROUTES = re.compile(r"(?:/migrate)?/(?:jobs|jobs/batch_size|report|trials)")
_OPEN = re.compile(r"/(?:healthz|readyz|login|logout|static/.*|api/v1/connect)")  # without a token
_CANCEL = re.compile(r"/run/[^/]+/cancel")  # what a page changes
_PAGES = re.compile(r"/|/(?:job|run)/.*|/(?:machines|version|runs)")
_IN_PATH = re.compile(r"/zeus/([^/]*)(/.*)?")
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]/@:?#\\\s]*)(:\d*)?")  # the header
_BY_PROXY = re.compile(r"forwarded|via|x-real-ip|x-forwarded-.*")  # headers that proxies add
_ACCESS = "zeusrun.access"
_ARRIVED_T = "zeusrun.arrived_t"
_MOST_AT_ONCE = 500  # requests; they have threads for a few of them
_FRESH_S = 2.0  # how old the list of tokens may be: a revoked one is valid for so long
_FOR_ZEUS = (
    "this token is for Zeus's clients only; other requests need a token that was made without "
    "--for zeus"
)
_HOW = "send one as 'Authorization: Bearer <token>'; `zeusrun token create` on the server makes one"


@dataclass(frozen=True)
class Access:
    """What a request may do; without tokens, everything.

    Attributes:
        jobs: A pattern for the names of jobs, such as ``team-*``.
        can_write: Whether it may change their histories, too.
        token: The id of its token; ``None`` without one.
        client: The address that it comes from.
        by_cookie: Whether the token came in the page's cookie.
    """

    jobs: str = "*"
    can_write: bool = True
    token: str | None = None
    client: str | None = None
    by_cookie: bool = False

    def covers(self, job: str) -> bool:
        """Whether the request may read about a job."""
        return fnmatchcase(job, self.jobs)

    def check_read(self, job: str | None) -> None:
        """Raise ``Refusal`` if the request may not read about a job; ``None``: any."""
        if job is not None and not self.covers(job):
            raise _forbidden(f"this token is for jobs called {self.jobs}, not for {job}")

    def check_write(self, job: str | None = None) -> None:
        """Raise ``Refusal`` if the request may not change a job; ``None``: what is of no job."""
        self.check_read(job)
        if not self.can_write:
            raise _forbidden("this token may only read; a change needs one made with --write")

    def log(self, action: str, subject: str) -> None:
        """Log a change: who has made which."""
        LOG.info("%s %s: token %s from %s", action, subject, self.token or "none", self.client)


def access_of(request: HTTPConnection) -> Access:
    """Return what a request may do."""
    return cast("Access", request.scope[_ACCESS])


def arrived_t(request: HTTPConnection) -> float:
    """Return when a request arrived, by the monotonic clock."""
    return cast("float", request.scope[_ARRIVED_T])


class KnownTokens:
    """The tokens of the database, read at most every two seconds."""

    def __init__(self, history: SqlHistory) -> None:
        self._engine = history.engine
        self._tokens: list[Token] = []
        self._read_t: float | None = None
        self._used: set[str] = set()

    async def any(self) -> bool:
        """Whether a token was ever made: then the server is closed, and stays so."""
        return bool(await self._read())

    async def find(self, text: str, *, anew: bool = False) -> Token | None:
        """Return the token that a text is, if any; ``anew``: perhaps it was made just now."""
        if anew:
            self._read_t = None
        found = find_token(await self._read(), text)
        if found is not None and found.valid:
            self._used.add(found.id)
        return found

    def write_uses(self) -> None:
        """Record which tokens have been used since the last call."""
        used, self._used = self._used, set()
        if used:
            mark_used(self._engine, used)

    async def _read(self) -> list[Token]:
        now_t = time.monotonic()
        if self._read_t is None or now_t > self._read_t + _FRESH_S:
            self._tokens = await anyio.to_thread.run_sync(list_tokens, self._engine)
            self._read_t = now_t
        return self._tokens


class Authentication:
    """Finds the token of each request, and refuses those that need one and have none."""

    def __init__(self, app: ASGIApp, tokens: KnownTokens, settings: ServerSettings) -> None:
        self._app, self._tokens, self._settings = app, tokens, settings
        self._present = 0  # requests that are being answered

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        self._present += 1
        try:
            await self._answer(scope, receive, send)
        finally:
            self._present -= 1

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        prefix = self._settings.path_prefix
        scope = {**scope, "root_path": prefix, _ARRIVED_T: time.monotonic()}
        path = path_of(scope, prefix)
        if _IN_PATH.fullmatch(path) or ZEUS_ROUTES.fullmatch(path):
            scope[OF_ZEUS] = True
        try:
            if self._present > _MOST_AT_ONCE and path != "/healthz":
                raise overloaded(f"the server answers {_MOST_AT_ONCE} other requests")
            scope = await self._admit(scope, path)
        except (Refusal, HistoryError) as error:
            refusal = refusal_of(error, f"{scope['method']}: ")
            await refusal.answer(scope)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    async def _admit(self, scope: Scope, path: str) -> Scope:
        """Return the scope with what the request may do; raises ``Refusal``."""
        request = HTTPConnection(scope)
        client = request.client.host if request.client else ""
        if not _HOST.fullmatch(request.headers.get("host", "")):
            raise Refusal(400, "invalid", "the header Host is no name of a server")
        if _OPEN.fullmatch(path):
            return {**scope, OPEN: True}
        reads = scope["method"] in {"GET", "HEAD"}
        is_page = reads and _PAGES.fullmatch(path) is not None
        if not is_page:
            check_origin(request.headers)
        in_path = _IN_PATH.fullmatch(path)
        if in_path is not None:
            path = in_path[2] or "/"
            if not ZEUS_ROUTES.fullmatch(path):
                raise Refusal(404, "unknown", "only Zeus's routes are under /zeus/<token>")
            whole = self._settings.path_prefix + path
            scope = {**scope, "path": whole, "raw_path": whole.encode()}
        # A link on another site can make a browser send a GET, and a GET of Zeus's begins a run.
        by_page = (reads and OF_ZEUS not in scope) or _CANCEL.fullmatch(path)
        cookie = request.cookies.get(COOKIE) if by_page else None
        text = in_path[1] if in_path else _bearer(request.headers) or cookie
        by_cookie = text is not None and text is cookie
        try:  # a cookie is for the page: with a token for Zeus's clients, it opens nothing
            access = await self._find(text, client, request, "" if by_cookie else path)
        except Refusal as refusal:
            wants_page = is_page and "text/html" in request.headers.get("accept", "")
            if refusal.status != 401 or not wants_page:
                raise
            prefix = self._settings.path_prefix
            here = quote(prefix + path + "?" * bool(request.url.query) + request.url.query)
            to = {"Location": f"{prefix}/login?next={here}", "Cache-Control": "no-store"}
            raise Refusal(303, "token", refusal.message, to) from None
        return {**scope, _ACCESS: replace(access, by_cookie=by_cookie)}

    async def _find(
        self, text: str | None, client: str, request: HTTPConnection, path: str
    ) -> Access:
        if not (self._settings.require_token or await self._tokens.any()):
            if not self._settings.insecure and not is_local(request):
                raise _needs_token("this server answers other machines only with a token")
            return Access(client=client)
        if not text:
            raise _needs_token("this server needs a token")
        return await self.check_token(text, client, path)

    async def check_token(self, text: str, client: str, path: str) -> Access:
        """Return what a token permits; raises ``Refusal`` for a wrong one.

        One for Zeus's clients is in their URLs, which logs may contain: it opens no other path.
        """
        token = await self._tokens.find(text) or await self._tokens.find(text, anew=True)
        if token is None:
            raise _needs_token("this token is not known to the server")
        if not token.valid:
            ended = "has" if token.state == "expired" else "was"
            raise _needs_token(f"the token {token.id} {ended} {token.state}")
        if token.for_zeus and not ZEUS_ROUTES.fullmatch(path):
            raise _forbidden(_FOR_ZEUS)
        return Access(token.jobs, token.can_write, token.id, client)


def path_of(scope: Scope, prefix: str) -> str:
    """Return the path of a request without the server's prefix, which a proxy may have removed."""
    path = str(scope["path"])
    inside = prefix and (path == prefix or path.startswith(f"{prefix}/"))
    return (path[len(prefix) :] or "/") if inside else path


def check_origin(headers: Headers) -> None:
    """Raise ``Refusal`` for what a page of another site had a browser send.

    An own page may have the origin ``null``, too, where a proxy forbids its browser to name it; a
    page of another site may not call itself ``same-origin``.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    own = {None, "null"} if site == "same-origin" else {None}
    foreign = origin not in own and str(origin).partition("://")[2] != headers.get("host")
    if foreign or site not in {None, "none", "same-origin"}:
        raise _forbidden("a page of another site may not send this")


def is_local(request: HTTPConnection) -> bool:
    """Whether a request comes from this machine.

    It does not if a foreign page in its browser sent it: such a page could point its own name to
    this machine, and then the request has that name. Nor if a proxy sent it that does not say for
    whom it asks, or that is not trusted: only uvicorn replaces the address, and with it the port.
    """
    headers, client = request.headers, request.client
    host = _HOST.match(headers.get("host", ""))
    named = host[1].lower() if host else ""
    by_proxy = any(map(_BY_PROXY.fullmatch, headers.keys()))
    return (
        client is not None
        and is_loopback(client.host)
        and (not named or is_loopback(named))
        and (not by_proxy or client.port == 0)
    )


def _bearer(headers: Headers) -> str | None:
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else None


def _forbidden(why: str) -> Refusal:
    return Refusal(403, "forbidden", why)


def _needs_token(why: str) -> Refusal:
    return Refusal(401, "token", why, {"WWW-Authenticate": "Bearer"}, _HOW)


OPEN = "zeusrun.open"
"""In the scope of a request that needs no token: anybody may send it, so its body is small."""
_BODY_BYTES = 32 << 20
_OPEN_BYTES = 4096  # of its body: the form for a token, or a code


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
                await refusal.answer(scope)(scope, receive, send)
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
