"""Sends requests to one server: open connections, a deadline for each request, proxies, TLS."""

from __future__ import annotations

import base64
import contextlib
import errno
import http.client
import ipaddress
import re
import socket
import ssl
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import proxy_bypass_environment  # type: ignore[attr-defined] # typeshed lacks it

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import UnavailableError
from zeusrun.redaction import MASK, hide_password

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_Result = TypeVar("_Result")
_CONNECT_S = 5.0  # name resolution, TCP, proxy and TLS together
_MOST_BYTES = 1 << 30  # of an answer; 100,000 trials take about 200 MB
_PIECE_BYTES = 1 << 20
_NO_TLS = {"WRONG_VERSION_NUMBER", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST"}  # of OpenSSL


class Answer(NamedTuple):
    """What a server has answered."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes


class Transport:
    """Connections to one server, one for each thread, which stay open.

    A proxy is taken from ``https_proxy``, ``http_proxy``, ``all_proxy`` and ``no_proxy`` of the
    environment, in lower or upper case, but never for a server on this machine.
    """

    def __init__(self, url: str, environment: Mapping[str, str], source: str = "") -> None:
        self._server = check_url(url.rstrip("/"))
        self.url = url.rstrip("/") + source  # for messages
        self._tls = ssl.create_default_context() if self._server.scheme == "https" else None
        self._proxy = find_proxy(self._server, environment)
        self._own = threading.local()
        self._open: set[_Connection] = set()

    def close(self) -> None:
        """Close the connections of all threads."""
        for connection in list(self._open):
            self._drop(connection)

    def send(
        self, method: str, path: str, headers: Mapping[str, str], body: bytes | None, limit_s: float
    ) -> Answer:
        """Send a request, and return the answer within ``limit_s``.

        The request is sent again if the server has closed a connection that had stayed open, so
        it must be idempotent.

        Raises:
            UnavailableError: If the server cannot be reached, or does not answer in time.
            HistoryError: If it speaks http, not https, or the reverse; its certificate is not
                valid; or the answer is too large.
        """
        until_t = time.monotonic() + limit_s
        while True:
            connection, fresh = self._connection(until_t)
            call = partial(self._exchange, connection, method, path, headers, body)
            try:
                return connection.run_within(until_t - time.monotonic(), call)
            except HistoryError:
                self._drop(connection)
                raise
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
                if fresh and not isinstance(error, TimeoutError) and self._speaks_tls(until_t):
                    raise HistoryError(
                        f"the server {self.url} speaks https, not http: correct its address"
                    ) from None
                if fresh or isinstance(error, TimeoutError):
                    raise self._unavailable(error) from None

    def _exchange(
        self,
        connection: _Connection,
        method: str,
        path: str,
        headers: Mapping[str, str],
        body: bytes | None,
    ) -> Answer:
        target = self._server.path + path
        if self._proxy is not None and self._tls is None:  # a proxy wants the whole address
            target = f"{self._server.scheme}://{self._server.netloc}{target}"
            headers = {**headers, **_proxy_headers(self._proxy)}
        connection.request(method, target, body, dict(headers))
        response = connection.getresponse()
        pieces = bytearray()
        while piece := response.read(_PIECE_BYTES):
            pieces += piece
            if len(pieces) > _MOST_BYTES:
                raise HistoryError(
                    f"the answer of {self.url} is longer than {_MOST_BYTES >> 20} MiB"
                )
        if response.length:  # the connection ended in the middle
            raise http.client.IncompleteRead(bytes(pieces), response.length)
        if response.will_close:
            self._drop(connection)
        return Answer(response.status, response.headers, bytes(pieces))

    def _connection(self, until_t: float) -> tuple[_Connection, bool]:
        """Return the connection of this thread, and whether it is new."""
        known: _Connection | None = getattr(self._own, "connection", None)
        if known is not None and known.sock is not None and not known.left:
            return known, False
        connection = _Connection(self._server, self._proxy, self._tls)
        connect_s = min(_CONNECT_S, until_t - time.monotonic())
        try:
            connection.run_within(connect_s, connection.connect)
        except ssl.SSLCertVerificationError as error:
            raise HistoryError(
                f"the certificate of {self.url} is not valid: {error.verify_message}; if the "
                "server has one of its own authority, name that in SSL_CERT_FILE"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            if getattr(error, "reason", None) in _NO_TLS:  # no retry would repair that
                raise HistoryError(
                    f"the server {self.url} speaks http, not https: correct its address"
                ) from None
            raise self._unavailable(error) from None
        self._own.connection = connection
        self._open.add(connection)
        return connection, True

    def _speaks_tls(self, until_t: float) -> bool:
        """Whether a server that hangs up on http would speak https; nothing is sent to it."""
        if self._server.scheme == "https" or not self._server.port or self._proxy is not None:
            return False
        tls = ssl.create_default_context()
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        connection = _Connection(self._server, None, tls)
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection.run_within(min(_CONNECT_S, until_t - time.monotonic()), connection.connect)
            self._drop(connection)
            return True
        return False

    def _drop(self, connection: _Connection) -> None:
        if not connection.left:
            connection.close()
        self._open.discard(connection)

    def _unavailable(self, error: Exception) -> UnavailableError:
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        if isinstance(error, TimeoutError):
            why = "it took too long"
        by = ""
        if self._proxy is not None:
            by = f" (by the proxy {self._proxy.hostname}:{self._proxy.port or 80})"
        return UnavailableError(f"the server {self.url} does not respond{by}: {why}")


class _Connection(http.client.HTTPConnection):
    """A connection on which everything ends in time.

    Attributes:
        left: Whether something took too long; its thread then closes the connection.
    """

    def __init__(
        self, server: SplitResult, proxy: SplitResult | None, tls: ssl.SSLContext | None
    ) -> None:
        """Prepare a connection; nothing is opened yet."""
        host, port = server.hostname or "", server.port or (443 if tls else 80)
        if proxy is None:
            super().__init__(host, port, timeout=_CONNECT_S)
        else:
            super().__init__(proxy.hostname or "", proxy.port or 80, timeout=_CONNECT_S)
            if tls is not None:
                self.set_tunnel(host, port, _proxy_headers(proxy))
        self._server_name, self._tls = host, tls
        self.left = False

    def connect(self) -> None:
        """Open the connection, with TLS if the server has it."""
        super().connect()
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)
        self.sock.settimeout(None)

    def run_within(self, limit_s: float, call: Callable[[], _Result]) -> _Result:
        """Return what ``call`` returns; raise ``TimeoutError`` after ``limit_s``.

        The timeout of a socket limits neither the resolution of a name nor an answer that comes in
        small pieces. So a thread makes the call; if that takes too long, it is left behind.
        """
        done: list[_Result] = []
        failed: list[BaseException] = []

        def run() -> None:
            try:
                done.append(call())
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                failed.append(error)
            if self.left:
                self.close()

        thread = threading.Thread(target=run, name="zeusrun-request", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            raise OSError(errno.EAGAIN, "no thread can be started") from error
        try:
            thread.join(max(limit_s, 0.001))
        finally:  # also if a signal ends the wait
            if thread.is_alive():
                self.left = True
                with contextlib.suppress(OSError, TypeError):  # it has no socket yet
                    # The thread waits no longer. TLS's own shutdown would first let it go on
                    # in the clear.
                    socket.socket.shutdown(self.sock, socket.SHUT_RDWR)
        if self.left:
            raise TimeoutError
        if failed:
            raise failed[0]
        return done[0]


def check_url(url: str) -> SplitResult:
    """Return the parts of a server's address; raises ``UsageError`` if it is not usable."""
    shown = _shown(url)
    try:
        parts = urlsplit(url)
        usable = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, or a wrong IPv6 address
        usable = None
    if not usable:
        raise UsageError(
            f"{shown!r} is not the address of a zeusrun server, such as https://zeus.example.org"
        )
    if "@" in parts.netloc:
        raise UsageError(
            f"{shown}: the address of a server must not contain a user name or a password; "
            "remove it, and give the token in ZEUSRUN_TOKEN or in the file 'token' of ZEUSRUN_HOME"
        )
    if parts.query or parts.fragment:
        raise UsageError(f"{shown}: the address of a server must not contain '?' or '#'")
    return parts


def find_proxy(server: SplitResult, environment: Mapping[str, str]) -> SplitResult | None:
    """Return the proxy for a server; ``None`` to connect to it directly.

    Raises:
        UsageError: If it is of a kind that zeusrun cannot use.
    """
    host = server.hostname or ""
    known = {name.lower(): value for name, value in environment.items() if value}
    known |= {name: value for name, value in environment.items() if value and name.islower()}
    text = known.get(f"{server.scheme}_proxy") or known.get("all_proxy")
    if not text or is_loopback(host):
        return None
    if proxy_bypass_environment(host, {"no": known.get("no_proxy", "").replace("*.", ".")}):
        return None
    text = text if "://" in text else f"http://{text}"
    try:
        proxy = urlsplit(text)
        usable = proxy.scheme == "http" and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = None
    if not usable:
        raise UsageError(
            f"the proxy {_shown(text)} cannot be used for {host}: zeusrun knows only "
            "proxies with http://; correct https_proxy, or add the host to no_proxy"
        )
    return proxy


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _shown(url: str) -> str:
    """Return a URL without what may be a password or a token."""
    return hide_password(re.sub(r"//\S*@", f"//{MASK}@", url))


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
