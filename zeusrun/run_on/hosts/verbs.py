"""The verbs of a node: ``node``, which a fan-out starts, and ``join``, which a person does."""

from __future__ import annotations

import os
import socket
import time
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument

from zeusrun.errors import LaunchError, UsageError
from zeusrun.run_on.hosts.channel import PREAMBLE, Channel, ChannelError, write_all
from zeusrun.run_on.hosts.cluster import TOKEN_VARIABLE, open_channel
from zeusrun.run_on.hosts.node_launcher import NodeLauncher

if TYPE_CHECKING:
    from collections.abc import Callable

_CONNECT_S = 600.0
_AGAIN_S = 1.0


def node(number: Annotated[int, Argument(help="Of this node; the head is 0.")]) -> None:
    """Run the ranks of a job on this host, for the zeusrun at the other end of the pipes."""
    # What anything here prints must not be taken for messages.
    reading, writing = os.dup(0), os.dup(1)
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    write_all(writing, PREAMBLE)
    NodeLauncher(Channel(reading, writing, number)).serve()


def _connect(host: str, port: int, check: Callable[[], None] | None) -> socket.socket:
    """Connect to a submit, which may start later; raises ``OSError``.

    With ``check``, which is called while it waits, its host may start later, too.
    """
    until_t, waits = time.monotonic() + _CONNECT_S * (1 if check is None else 3), False
    while True:
        try:
            sock = socket.create_connection((host, port), timeout=_CONNECT_S)
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            if time.monotonic() > until_t or (check is None and not refused):
                raise
            if check is not None:
                check()
            if not waits:
                waits = True
                typer.echo(f"nobody listens on {host}:{port} yet; waiting")
            time.sleep(_AGAIN_S)
        else:
            return sock


def join(
    endpoint: Annotated[
        str, Argument(metavar="HOST:PORT", help="As the waiting `zeusrun submit` shows it.")
    ],
) -> None:
    """Give this host to a job that waits for it."""
    join_head(endpoint)


def join_head(endpoint: str, check: Callable[[], None] | None = None) -> None:
    """Give this host to the job whose head listens there; raises ``LaunchError``.

    With ``check``, the head may start later; ``check`` is called while this waits.
    """
    host, _, port = endpoint.rpartition(":")
    if not host or not port.isdecimal():
        raise UsageError(f"{endpoint} is not HOST:PORT, such as 10.0.0.1:29400")
    token = os.environ.get(TOKEN_VARIABLE)
    if not token:
        raise UsageError(f"set {TOKEN_VARIABLE} to the token of the run, as the submit shows it")
    try:
        sock = _connect(host.strip("[]"), int(port), check)
        channel = open_channel(sock, token, 0, head=False)
    except (OSError, OverflowError, UnicodeError) as error:
        raise LaunchError(f"{endpoint} cannot be reached: {error}") from error
    except ChannelError as error:
        raise LaunchError(f"{endpoint}: {error}") from error
    typer.echo(f"connected to {endpoint}")
    if not NodeLauncher(channel).serve():
        raise LaunchError(f"{endpoint} refused this host: the token is wrong, or the run has ended")
