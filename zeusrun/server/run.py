"""Runs a server: checks what it is asked for, listens, logs without secrets, stops cleanly."""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import signal
import socket
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import uvicorn

from zeusrun.errors import LaunchError, UsageError
from zeusrun.history.http.address import is_loopback
from zeusrun.history.sql.engine import describe
from zeusrun.history.sql.schema import create_tables, has_tables
from zeusrun.history.sql.store import SqlHistory
from zeusrun.history.sql.tokens import list_tokens
from zeusrun.redaction import MASK, hide_password
from zeusrun.server.app import build_app
from zeusrun.server.connections import Connection

if TYPE_CHECKING:
    from zeusrun.server.settings import ServerSettings

_STOP_S = 10  # for the requests that are being answered
_KEEP_ALIVE_S = 75  # longer than the heartbeat of launchers, so that their connections stay open
_BACKLOG = 2048
_HEAD_BYTES = 32 << 10  # of the first line and the headers of a request
# A token, and what stands where a token belongs in the path of Zeus's clients.
_TOKENS = re.compile(r"zeusrun_[0-9a-f]{8}_[A-Za-z0-9_-]*|(?<=/zeus/)/*[^/\s\"'?]+")


@dataclass(frozen=True)
class Listening:
    """A server that is ready to run, and what its user should know."""

    settings: ServerSettings
    listener: socket.socket
    url: str
    database: str  # without its password
    is_new: bool  # whether the database was created just now
    tokens: int  # how many are valid
    needs_token: bool


def listen(settings: ServerSettings) -> Listening:
    """Check the settings, open the port, and then the database, which is created if need be.

    If it raises, it has created nothing, unless the database itself fails.

    Raises:
        UsageError: If other machines could connect without tokens or in the clear, or a file of
            the certificate is not usable.
        HistoryError: If the database cannot be used.
        LaunchError: If the address is not free.
    """
    _check_certificate(settings)
    with (
        contextlib.closing(SqlHistory(settings.database_url)) as history,
        contextlib.ExitStack() as undone,
    ):
        tokens = list_tokens(history.engine) if has_tables(history.engine) else []
        needs_token = settings.require_token or bool(tokens)
        if not is_loopback(settings.host) and not settings.insecure:
            _check_exposed(settings, needs_token=needs_token)
        listener = undone.enter_context(_open_port(settings))
        is_new = create_tables(history.engine)
        database = describe(history.engine.url)
        undone.pop_all()
    host, port = listener.getsockname()[:2]
    if not host.strip("0.:"):  # it listens on all addresses
        host = socket.gethostname()
    scheme = "http" if settings.ssl_certfile is None else "https"
    url = f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}{settings.path_prefix}"
    valid = sum(token.valid for token in tokens)
    return Listening(settings, listener, url, database, is_new, valid, needs_token)


def run(listening: Listening) -> None:
    """Answer requests until SIGTERM or SIGINT; those that are being answered finish first."""
    config = build_config(listening.settings)
    # uvicorn raises the signal again once it has stopped: a clean end would look like a death.
    ends = (signal.SIGTERM, signal.SIGINT)
    before = {each: signal.signal(each, lambda *_: None) for each in ends}
    try:
        uvicorn.Server(config).run(sockets=[listening.listener])
    finally:
        listening.listener.close()
        for each, handler in before.items():
            signal.signal(each, handler)


def build_config(settings: ServerSettings) -> uvicorn.Config:
    """Return how uvicorn runs the application."""
    return uvicorn.Config(
        functools.partial(build_app, settings),
        factory=True,
        ws="none",
        lifespan="on",
        log_config=log_config(access_log=settings.access_log),
        access_log=settings.access_log,
        forwarded_allow_ips=settings.trusted_proxies,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=_KEEP_ALIVE_S,
        timeout_graceful_shutdown=_STOP_S,
        http=Connection,
        h11_max_incomplete_event_size=_HEAD_BYTES,
        ssl_certfile=settings.ssl_certfile,
        ssl_keyfile=settings.ssl_keyfile,
    )


def _check_exposed(settings: ServerSettings, *, needs_token: bool) -> None:
    """Raise ``UsageError`` if other machines could connect without tokens or in the clear."""
    needs = []
    if not needs_token:
        needs.append(
            "tokens: `zeusrun db create` and `zeusrun token create --job '*' --write` make the "
            "first one, or give --require-token"
        )
    if settings.ssl_certfile is None:
        needs.append(
            "HTTPS, or tokens are sent in the clear: give --ssl-certfile and --ssl-keyfile, or "
            "listen on 127.0.0.1 behind a proxy that has a certificate"
        )
    if needs:
        raise UsageError(
            f"to listen on {settings.host} for other machines, the server needs "
            f"{'; and '.join(needs)}. --insecure accepts less, as in a private network"
        )


def _check_certificate(settings: ServerSettings) -> None:
    if settings.ssl_certfile is None:
        return
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # Without a terminal, an encrypted key would wait for a password for ever.
        context.load_cert_chain(settings.ssl_certfile, settings.ssl_keyfile, _no_password)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or error
        raise UsageError(
            f"the certificate {settings.ssl_certfile} with the key {settings.ssl_keyfile} cannot "
            f"be used: {what}"
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password; remove it with `openssl pkey`")


def _open_port(settings: ServerSettings) -> socket.socket:
    where = f"{settings.host} port {settings.port}"
    try:
        found = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        family, *_, address = found[0]
        listener = socket.create_server(address, family=family, backlog=_BACKLOG)
        # asyncio leaves this to us for a socket that it did not open. Without it, Nagle's algorithm
        # keeps the second packet of an answer until the client acknowledges the first: 40 ms.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client that has vanished, as by a power cut, would keep its connection for ever.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LaunchError(
            f"the server cannot listen on {where}: {reason}; choose another --port or "
            "--host, or end what listens there"
        ) from None
    return listener


class Redacted(logging.Formatter):
    """Formats a record without secrets, and without the lines of a traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line."""
        text = f"{record.levelname.lower()}: {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            error = record.exc_info[1]
            text += f" {type(error).__name__}: {error}"
        return hide_secrets(" ".join(text.split()))


def hide_secrets(text: str) -> str:
    """Return a text without tokens and without the passwords of URLs."""
    return hide_password(_TOKENS.sub(MASK, text))


def log_config(*, access_log: bool) -> dict[str, Any]:
    """Return the configuration of Python's logging for a server process."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"line": {"()": Redacted}},
        "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "line"}},
        "loggers": {
            name: {"level": level, "handlers": ["stderr"], "propagate": False}
            for name, level in (
                ("zeusrun", "INFO"),
                ("uvicorn", "WARNING"),
                ("uvicorn.access", "INFO" if access_log else "WARNING"),
            )
        },
    }
