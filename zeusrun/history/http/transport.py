"""Sends requests to one server with urllib3: open connections, a deadline, proxies, TLS."""

from __future__ import annotations

import base64
import ssl
import time
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import unquote_to_bytes
from urllib.request import getproxies, proxy_bypass

import urllib3
from urllib3 import exceptions

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import UnavailableError
from zeusrun.history.http.address import check_url, hide_login, is_loopback

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from urllib.parse import SplitResult

_CONNECT_S = 5.0
_MAX_CONNECTIONS = 8  # that stay open
_MAX_BYTES = 1 << 30  # of an answer; 100,000 trials take about 200 MB
_PIECE_BYTES = 1 << 20
_SENT_BYTES = 64 << 10  # at a time: urllib3 gives each piece of a request the connect timeout
_NO_TLS = {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}  # of OpenSSL


class Answer(NamedTuple):
    """What a server has answered."""

    status: int
    headers: Mapping[str, str]  # in any case
    body: bytes


class Transport:
    """Connections to one server, which stay open; safe for threads.

    A proxy is taken from ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy`` of the
    environment, but never for a server on this machine. Redirects are not followed.
    """

    def __init__(self, url: str, source: str = "") -> None:
        """Prepare; nothing is sent yet. ``source`` is what messages add to the address."""
        self._base = url.rstrip("/")
        self._server = check_url(self._base)
        self.url = self._base + source  # for messages
        self._proxy = _find_proxy(self._server)
        # Python's context uses the authorities of the system, and SSL_CERT_FILE.
        tls = ssl.create_default_context() if self._server.scheme == "https" else None
        if self._proxy is None:
            self._pool = urllib3.PoolManager(maxsize=_MAX_CONNECTIONS, ssl_context=tls)
        else:
            login = urllib3.util.parse_url(self._proxy).auth
            code = base64.b64encode(unquote_to_bytes(login or "")).decode()  # in UTF-8
            self._pool = urllib3.ProxyManager(
                self._proxy,
                maxsize=_MAX_CONNECTIONS,
                ssl_context=tls,
                proxy_headers={"Proxy-Authorization": f"Basic {code}"} if login else {},
            )

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, limit_s: float
    ) -> Answer:
        """Send a request, and return the answer within ``limit_s`` after the name is resolved.

        Only the head of an answer may take longer, if it comes in pieces: the limit then holds for
        each of them.

        The request is sent again if the server has closed the connection, which may have stayed
        open for too long; so it must be idempotent.

        Raises:
            UnavailableError: If the server cannot be reached, or does not answer in time.
            HistoryError: If it speaks http, not https; its certificate is not valid; or the answer
                is too large.
        """
        if body is not None:
            headers = {**headers, "Content-Length": str(len(body))}
        until_t = time.monotonic() + limit_s
        try:
            try:
                return self._exchange(method, path, headers, body, until_t)
            except exceptions.ProtocolError:
                return self._exchange(method, path, headers, body, until_t)
        except exceptions.HTTPError as error:
            explained = self._explain(error)
        # Raised outside the handler: as its context, the other error would keep the socket open.
        raise explained

    def _exchange(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, until_t: float
    ) -> Answer:
        left_s = until_t - time.monotonic()
        if left_s <= 0:
            raise exceptions.TimeoutError
        response = self._pool.request(
            method,
            self._base + path,
            headers=headers,
            body=None if body is None else _in_pieces(body, until_t),
            timeout=urllib3.Timeout(total=left_s, connect=min(_CONNECT_S, left_s)),
            retries=False,  # and no redirect is followed
            preload_content=False,
        )
        pieces = bytearray()
        with response:  # one that was read to its end has given its connection back
            while True:
                if time.monotonic() > until_t:
                    raise exceptions.TimeoutError
                if not (piece := response.read1(_PIECE_BYTES)):
                    break
                pieces += piece
                if len(pieces) > _MAX_BYTES:
                    raise HistoryError(
                        f"the answer of {self.url} is longer than {_MAX_BYTES >> 20} MiB"
                    )
        return Answer(response.status, response.headers, bytes(pieces))

    def _explain(self, error: exceptions.HTTPError) -> HistoryError:
        causes = list(_causes(error))
        tls = next((each for each in causes if isinstance(each, ssl.SSLError)), None)
        if isinstance(tls, ssl.SSLCertVerificationError):
            return HistoryError(
                f"the certificate of {self.url} is not valid: {tls.verify_message}; if the "
                "server has one of its own authority, name that in SSL_CERT_FILE"
            )
        code = None if tls is None else tls.reason  # of OpenSSL
        if code in _NO_TLS:  # no retry would repair that
            return HistoryError(
                f"the server {self.url} answers http, not https: correct its address"
            )
        why = next((text for each in causes if (text := getattr(each, "strerror", None))), "")
        why = why or str(causes[-1]) or type(error).__name__
        # Of urllib3, a refused connection is a timeout, too.
        refused = isinstance(error, exceptions.NewConnectionError)
        timed_out = isinstance(error, exceptions.TimeoutError) and not refused
        if timed_out or any(isinstance(each, TimeoutError) for each in causes):
            why = "it took too long"
        elif isinstance(error, exceptions.ProtocolError) and self._server.scheme == "http":
            why += "; if it is an https address, correct its address"
        by = f" (by the proxy {hide_login(self._proxy)})" if self._proxy else ""
        return UnavailableError(f"the server {self.url} does not respond{by}: {why}")


def _find_proxy(server: SplitResult) -> str | None:
    """Return the proxy for a server; ``None`` to connect to it directly.

    Raises:
        UsageError: If it is of a kind that urllib3 cannot use.
    """
    host, known = server.hostname or "", getproxies()
    proxy = known.get(server.scheme) or known.get("all")
    known["no"] = known.get("no", "").replace("*.", ".")  # as other programs read no_proxy
    if not proxy or is_loopback(host) or proxy_bypass(host, known):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    try:
        usable = urllib3.util.parse_url(proxy).scheme in {"http", "https"}
    except exceptions.LocationParseError:
        usable = False
    if not usable:
        raise UsageError(
            f"the proxy {hide_login(proxy)} cannot be used for {host}: zeusrun knows only proxies "
            "with http:// or https://; correct https_proxy, or add the host to no_proxy"
        )
    return proxy


def _in_pieces(body: bytes, until_t: float) -> Iterator[bytes]:
    for at in range(0, len(body), _SENT_BYTES):
        if time.monotonic() > until_t:
            raise exceptions.TimeoutError
        yield body[at : at + _SENT_BYTES]


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
