"""Sends requests to one server: open connections, a deadline for each request, proxies, TLS."""

from __future__ import annotations

import base64
import contextlib
import http.client
import io
import ssl
import threading
import time
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import SplitResult, unquote, urlsplit

from zeusrun.errors import HistoryError, UsageError
from zeusrun.history.base import UnavailableError
from zeusrun.redaction import hide_password

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

_CONNECT_S = 5.0  # name resolution, TCP, proxy and TLS together
_MOST_BYTES = 1 << 30  # of an answer; 100,000 trials take about 200 MB
_PIECE_BYTES = 1 << 20
_LOOPBACK = ("localhost", "127.", "::1")


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

    def __init__(self, url: str, environment: Mapping[str, str]) -> None:
        self.url = url.rstrip("/")
        self._server = check_url(self.url)
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
            HistoryError: If its certificate is not valid, or the answer is too large.
        """
        until_t = time.monotonic() + limit_s
        while True:
            connection, fresh = self._connection(until_t)
            try:
                return self._exchange(connection, method, path, headers, body)
            except HistoryError:
                self._drop(connection)
                raise
            except (OSError, http.client.HTTPException) as error:
                self._drop(connection)
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
        connection.limit_socket()
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
        if known is not None and known.sock is not None:
            known.until_t = until_t
            return known, False
        connection = _Connection(self._server, self._proxy, self._tls)
        connection.until_t = until_t
        connect_s = min(_CONNECT_S, until_t - time.monotonic())
        try:
            connection.connect_within(connect_s)
        except ssl.SSLCertVerificationError as error:
            raise HistoryError(
                f"the certificate of {self.url} is not valid: {error.verify_message}; if the "
                "server has one of its own authority, name that in SSL_CERT_FILE"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise self._unavailable(error) from None
        self._own.connection = connection
        self._open.add(connection)
        return connection, True

    def _drop(self, connection: _Connection) -> None:
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
    """A connection whose requests end by ``until_t``, however slowly the server answers."""

    until_t = 0.0

    def __init__(
        self, server: SplitResult, proxy: SplitResult | None, tls: ssl.SSLContext | None
    ) -> None:
        """Prepare a connection; nothing is opened yet."""
        host, port = server.hostname or "", server.port or (443 if tls else 80)
        if proxy is None:
            super().__init__(host, port)
        else:
            super().__init__(proxy.hostname or "", proxy.port or 80)
            if tls is not None:
                self.set_tunnel(host, port, _proxy_headers(proxy))
        self._server_name, self._tls = host, tls
        self.response_class = self._respond  # type: ignore[assignment] # any callable will do

    def connect(self) -> None:
        """Open the connection, with TLS if the server has it."""
        super().connect()
        if self._tls is not None:
            self.sock = self._tls.wrap_socket(self.sock, server_hostname=self._server_name)

    def connect_within(self, limit_s: float) -> None:
        """Open the connection within ``limit_s``.

        No timeout limits the resolution of a name. So a thread connects; if it takes too long, it
        is left behind, and closes what it opens.
        """
        self.timeout = max(limit_s, 0.001)
        failed: list[BaseException] = []
        given_up = threading.Event()

        def connect() -> None:
            try:
                self.connect()
            except BaseException as error:  # noqa: BLE001 - raised by the caller
                failed.append(error)
            if given_up.is_set():
                self.close()

        thread = threading.Thread(target=connect, name="zeusrun-connect", daemon=True)
        thread.start()
        thread.join(self.timeout)
        if thread.is_alive():
            given_up.set()
            raise TimeoutError
        if failed:
            self.close()
            raise failed[0]

    def limit_socket(self) -> None:
        """Let each operation of the socket end by ``until_t``."""
        self.sock.settimeout(left_s(self.until_t))

    def _respond(self, sock: socket.socket, *args: Any, **kwargs: Any) -> http.client.HTTPResponse:  # noqa: ANN401 - http.client's
        return http.client.HTTPResponse(_Timed(sock, self.until_t), *args, **kwargs)  # type: ignore[arg-type] # it needs makefile alone


class _Timed:
    """A socket to read an answer from, as a whole within a deadline."""

    def __init__(self, sock: socket.socket, until_t: float) -> None:
        self._sock, self._until_t = sock, until_t

    def makefile(self, _mode: str) -> io.BufferedReader:
        """Return the file that ``http.client`` reads."""
        return io.BufferedReader(_TimedReader(self._sock, self._until_t))


class _TimedReader(io.RawIOBase):
    def __init__(self, sock: socket.socket, until_t: float) -> None:
        super().__init__()
        self._sock, self._until_t = sock, until_t
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:  # noqa: ANN401 - a writable buffer
        self._sock.settimeout(left_s(self._until_t))
        return self._file.readinto(buffer)

    def close(self) -> None:
        if not self.closed:
            with contextlib.suppress(OSError):
                self._file.close()
        super().close()


def left_s(until_t: float) -> float:
    """Return the seconds until a deadline; raises ``TimeoutError`` after it."""
    left = until_t - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def check_url(url: str) -> SplitResult:
    """Return the parts of a server's address; raises ``UsageError`` if it is not usable."""
    shown = hide_password(url)
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
    if not text or host.startswith(_LOOPBACK):
        return None
    if _is_direct(host, known.get("no_proxy", "")):
        return None
    try:
        proxy = urlsplit(text if "://" in text else f"http://{text}")
        usable = proxy.scheme == "http" and proxy.hostname and proxy.port != 0
    except ValueError:
        usable = None
    if not usable:
        raise UsageError(
            f"the proxy {hide_password(text)} cannot be used for {host}: zeusrun knows only "
            "proxies with http://; correct https_proxy, or add the host to no_proxy"
        )
    return proxy


def _is_direct(host: str, no_proxy: str) -> bool:
    """Whether ``no_proxy`` names a host, or a domain that it belongs to."""
    names = (name.strip().lower().removeprefix("*").lstrip(".") for name in no_proxy.split(","))
    return no_proxy.strip() == "*" or any(
        name and (host == name or host.endswith(f".{name}")) for name in names
    )


def _proxy_headers(proxy: SplitResult) -> dict[str, str]:
    if proxy.username is None:
        return {}
    pair = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
