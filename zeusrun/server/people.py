"""People: whom a proxy has signed in, and which jobs they may read.

The proxy names them in a header. Anybody can send such a header, so it counts only if the TCP peer
of the request is a trusted proxy.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from starlette.responses import HTMLResponse
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from zeusrun.server.pages.document import HEADERS, Links, Page, build_document, links_of
from zeusrun.server.refusals import LOG, Refusal
from zeusrun.view.report.markup import join, tag

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response
    from starlette.types import ASGIApp, Receive, Scope, Send

    from zeusrun.server.settings import ServerSettings

_BY_PROXY = "zeusrun.by_proxy"
_LONGEST = 200  # characters of a name
_MAX_SEEN = 10_000  # people that are remembered


class TrustedProxies:
    """Notes whether a trusted proxy sent a request, then lets uvicorn replace the peer.

    It stands around everything else: afterwards, the peer is the client that the proxy named.
    """

    def __init__(self, app: ASGIApp, addresses: str) -> None:
        self._app = ProxyHeadersMiddleware(app, addresses)  # type: ignore[arg-type] # its own types

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        peer = scope.get("client")
        scope[_BY_PROXY] = peer is not None and peer[0] in self._app.trusted_hosts
        await self._app(scope, receive, send)  # type: ignore[arg-type] # its own types


class Person(NamedTuple):
    """A person whom a proxy has signed in, and the patterns of the jobs that they may read."""

    name: str
    jobs: str


class People:
    """Finds the person who sends a request, and what the settings let them read."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._seen: set[Person] = set()

    def find(self, request: HTTPConnection) -> Person | None:
        """Return who sends a request; ``None`` if no trusted proxy says so.

        Raises:
            Refusal: If the proxy names nobody clearly, or somebody who may read nothing.
        """
        header, entries = self._settings.auth_header, self._settings.people
        if header is None or not request.scope.get(_BY_PROXY):
            return None
        name = _read(request, header)
        if not name:
            return None
        if len(name) > _LONGEST:
            raise _refuse(request, 400, f"a name in {header} has more than {_LONGEST} characters")
        groups = _read(request, self._settings.groups_header or "").split(",")
        own = {"*", *(f"@{group.strip()}" for group in groups)}
        if not name.startswith("@"):  # it would be a group
            own.add(name)
        found = dict.fromkeys(jobs for entry, jobs in entries.items() if entry in own)
        if not found:
            line = f'{json.dumps(name, ensure_ascii=False)}: "team-*"'
            why = "is signed in, but may read no job here. The administrator can add"
            text = f"{name} {why} {line} to `people` in server.yaml, and restart it"
            raise _refuse(request, 403, text, name)
        person = Person(name, "*" if "*" in found else ", ".join(found))
        if person not in self._seen:
            self._seen = self._seen if len(self._seen) < _MAX_SEEN else set()
            self._seen.add(person)
            LOG.info(
                "person %s from %s may read jobs called %s", name, _client(request), person.jobs
            )
        return person


class PersonRefusal(Refusal):
    """A refusal that a person reads in a browser, not a program."""

    links = Links()
    """Those of the page that they asked for."""

    def answer(self, *_scope: object) -> Response:
        """Return a page that says why."""
        text = f"The server refuses this request: {self.message}."
        content = join((tag("h1", "No access"), tag("p", text, class_="lead")))
        document = build_document(Page("No access", content), self.links)
        return HTMLResponse(document, self.status, {**HEADERS, "Cache-Control": "no-store"})


def _read(request: HTTPConnection, header: str) -> str:
    """Return what a header contains; empty if it is absent."""
    values = request.headers.getlist(header)
    if len(values) > 1:
        raise _refuse(request, 400, f"the header {header} came {len(values)} times, not once")
    try:
        text = "".join(values).encode("latin-1").decode().strip(" ")
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        raise _refuse(request, 400, f"the header {header} contains characters that no name has")
    return text


def _refuse(request: HTTPConnection, status: int, why: str, name: str = "") -> Refusal:
    """Return a refusal, for a browser or a program, and log it."""
    LOG.info("refused: person %s from %s: %s", name or "unknown", _client(request), why)
    code = "forbidden" if status == 403 else "invalid"
    if "text/html" not in request.headers.get("accept", ""):
        return Refusal(status, code, why)
    refusal = PersonRefusal(status, code, why)
    refusal.links = links_of(request)
    return refusal


def _client(request: HTTPConnection) -> str:
    return request.client.host if request.client else ""
