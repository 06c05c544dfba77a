"""The verb ``serve``: one history for many machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from zeusrun.commands.options import DatabaseUrl, server_settings
from zeusrun.history.registry import HISTORY_VARIABLE

if TYPE_CHECKING:
    from zeusrun.server.run import Listening

_CREATE = "zeusrun token create --job '*' --write"


def serve(
    *,
    host: Annotated[str | None, Option(help="Address to listen on; by default 127.0.0.1.")] = None,
    port: Annotated[int | None, Option(help="Port to listen on; by default 8787.")] = None,
    database_url: DatabaseUrl = None,
    workers: Annotated[int | None, Option(metavar="N", help="Processes; by default 1.")] = None,
    path_prefix: Annotated[
        str | None, Option(metavar="/PATH", help="The path of the server behind a proxy.")
    ] = None,
    ssl_certfile: Annotated[
        str | None, Option(metavar="FILE", help="Certificate, for HTTPS.")
    ] = None,
    ssl_keyfile: Annotated[str | None, Option(metavar="FILE", help="Its private key.")] = None,
    require_token: Annotated[
        bool | None,
        Option("--require-token", help="Answer nobody without a token, even before one exists."),
    ] = None,
    insecure: Annotated[
        bool | None,
        Option("--insecure", help="Listen to other machines without HTTPS, or without tokens."),
    ] = None,
    trusted_proxies: Annotated[
        str | None,
        Option(metavar="ADDRESSES", help="Proxies that say for whom they ask; 127.0.0.1."),
    ] = None,
    access_log: Annotated[bool | None, Option("--access-log", help="Log every request.")] = None,
) -> None:
    """Serve one history to many machines, with a page to look at it.

    Settings may also stand in server.yaml in ZEUSRUN_HOME. The page on the server in the docs has
    all of them.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    settings = server_settings(given)
    from zeusrun.server.run import listen, run  # noqa: PLC0415 - takes half a second

    listening = listen(settings)
    typer.echo(_describe(listening))
    run(listening)


def _describe(listening: Listening) -> str:
    """Return what the user of a new server needs to know."""
    if listening.needs_token:
        tokens = f"needed; {listening.tokens or 'none'} valid (zeusrun token list)"
        if not listening.tokens:
            tokens = f"needed, but none is valid: {_CREATE}"
    elif listening.settings.insecure:
        tokens = "none needed: everybody who reaches this server can change all histories"
    else:
        tokens = f"none needed on this machine; others need one: {_CREATE}"
    return (
        f"zeusrun serves {listening.url}\n"
        f"  page      {listening.url}/\n"
        f"  a job     history: {listening.url}   in its job file, or {HISTORY_VARIABLE}\n"
        f"  tokens    {tokens}\n"
        f"  database  {listening.database}{', a new, empty history' * listening.is_new}\n"
        "Ctrl-C stops it."
    )
