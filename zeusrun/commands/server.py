"""The verbs about a server: ``serve``, and those of ``db`` and ``token``.

The verbs of ``db`` and ``token`` work on its database directly.
"""

from __future__ import annotations

import contextlib
import os
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from typer import Argument, Option

from zeusrun.commands.options import AsJson, answer
from zeusrun.errors import UsageError
from zeusrun.files.home import trusted_home
from zeusrun.history.http.address import is_loopback
from zeusrun.history.registry import HISTORY_VARIABLE
from zeusrun.job_name import is_job_pattern
from zeusrun.jobfile.validators import duration_s
from zeusrun.plugins import check_extra
from zeusrun.redaction import hide_password
from zeusrun.view.export import print_json
from zeusrun.view.upkeep import token_json, tokens_table, until

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.server.run import Listening
    from zeusrun.server.settings import ServerSettings

_LIBRARIES = ("fastapi", "sqlalchemy", "uvicorn")
_CREATE = "zeusrun token create --job '*' --write"
_UNKNOWN = "ADDRESS"
_LEAST_S = 60.0  # that a token lasts
DatabaseUrl = Annotated[
    str | None,
    Option(
        metavar="URL",
        help="Database of the server, such as postgresql://user@host/name; by default "
        "ZEUSRUN_DATABASE_URL, or a SQLite file in ZEUSRUN_HOME.",
    ),
]


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
        Option(
            metavar="ADDRESSES",
            help="Proxies whose X-Forwarded-For is believed; by default 127.0.0.1.",
        ),
    ] = None,
    access_log: Annotated[bool | None, Option("--access-log", help="Log every request.")] = None,
) -> None:
    """Serve one history to many machines, with a page to look at it.

    Settings can also be set in server.yaml in ZEUSRUN_HOME. The page on the server in the docs has
    all of them.
    """
    given = {name: value for name, value in locals().items() if value is not None}
    typer.echo("zeusrun serve: starting", err=True)  # the imports below take a second
    settings = server_settings(given)
    from zeusrun.history.sql.engine import describe, parse_url  # noqa: PLC0415 - as above

    where = describe(parse_url(settings.database_url))
    typer.echo(f"zeusrun serve: opening the database {where}", err=True)
    from zeusrun.server.run import listen, run  # noqa: PLC0415 - as above

    listening = listen(settings)
    given_url = database_url or ""
    shown = f" --database-url {quote(given_url)}" if hide_password(given_url) == given_url else ""
    typer.echo(_describe(listening, _CREATE + shown * bool(given_url)))
    run(listening)


def _describe(listening: Listening, create: str) -> str:
    """Return what the user of a new server needs to know; ``create`` makes a token."""
    if listening.needs_token:
        tokens = f"needed; {listening.tokens or 'none'} valid (zeusrun token list)"
        if not listening.tokens:
            tokens = f"needed, but none is valid: {create}"
    elif listening.settings.insecure:
        tokens = "none needed: everybody who reaches this server can change all histories"
    else:
        tokens = f"none needed on this machine; to connect another one, run here: {create}"
    settings, people = listening.settings, ""
    if settings.auth_header is not None:
        count = len(settings.people)
        entries = f"{count} {'entry' if count == 1 else 'entries'}"
        people = f"  people    by {settings.auth_header} of {settings.trusted_proxies}; {entries}\n"
    return (
        f"zeusrun serves {listening.url}\n"
        f"  page      {listening.url}/\n"
        f"  a job     history: {listening.url}   in its job file, or {HISTORY_VARIABLE}\n"
        f"  tokens    {tokens}\n"
        f"{people}"
        f"  database  {listening.database}{', a new, empty history' * listening.is_new}\n"
        "Ctrl-C stops it."
    )


def server_settings(
    given: Mapping[str, object], needs: Collection[str] = _LIBRARIES
) -> ServerSettings:
    """Return the settings of a server; ``given`` are those of flags, ``needs`` libraries.

    Raises:
        UsageError: If what a server needs is not installed, or a flag is not usable.
        JobFileError: If ``server.yaml`` is not usable.
    """
    check_extra("a server", "server", *needs)
    from zeusrun.server.settings import load_settings  # noqa: PLC0415 - takes 60 ms

    return load_settings(trusted_home(os.environ), os.environ, given)


@contextlib.contextmanager
def opened_database(url: str | None, *, ready: bool = False) -> Iterator[tuple[SqlHistory, str]]:
    """Open the database of a server; also return its name, for messages.

    ``ready``: raise ``HistoryError`` unless it exists and has the tables of this zeusrun.
    """
    settings = server_settings({"database_url": url}, needs=("sqlalchemy",))
    from zeusrun.history.sql import engine  # noqa: PLC0415 - an extra
    from zeusrun.history.sql.store import SqlHistory  # noqa: PLC0415 - an extra

    with contextlib.closing(SqlHistory(settings.database_url)) as history:
        if ready:
            history.identify()
        yield history, engine.describe(history.engine.url)


def create_database(*, database_url: DatabaseUrl = None) -> None:
    """Create the tables, if they are not there."""
    with opened_database(database_url) as (history, where):
        from zeusrun.history.sql.schema import create_tables  # noqa: PLC0415 - an extra

        is_new = create_tables(history.engine)
    done = "created the tables" if is_new else "nothing to do; the tables are there"
    typer.echo(f"{where}: {done}.")


def restored(*, database_url: DatabaseUrl = None) -> None:
    """Say that the database was restored from a backup.

    Clients then read their copies of the history anew, and runs that go on are not LOST.
    """
    with opened_database(database_url) as (history, where):
        history.start_anew()
    typer.echo(f"{where}: all clients will read this history anew.")


def new_token(
    *,
    job: Annotated[
        str, Option(metavar="PATTERN", help="For jobs whose names match: 'team-*'; all: '*'.")
    ],
    write: Annotated[
        bool | None,
        Option("--write/--read", help="Change histories, or only read them: give one of both."),
    ] = None,
    for_: Annotated[
        Literal["zeus"] | None,
        Option("--for", help="Instead: only the requests of Zeus's clients."),
    ] = None,
    expires: Annotated[
        str | None, Option(metavar="TIME", help="Valid for so long: 90d, 12h; by default for ever.")
    ] = None,
    note: Annotated[str | None, Option(metavar="TEXT", help="What it is for.")] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, and print it: nobody can read it later.

    It also prints a command that connects another machine.
    """
    if for_ is None and write is None:
        raise UsageError("say what the token permits: --read, or --write to change histories, too")
    if for_ is not None and write is not None:
        raise UsageError(
            "--for zeus permits the requests of Zeus's clients, which change histories, and "
            "nothing else: leave out --read and --write"
        )
    if not is_job_pattern(job):
        raise UsageError(f"--job {job!r} is not the name of a job, nor a pattern such as 'team-*'")
    try:
        lasts_s = None if expires is None else duration_s(expires)
    except ValueError as error:
        raise UsageError(f"--expires {error}") from None
    if lasts_s is not None and lasts_s < _LEAST_S:
        raise UsageError(f"--expires {expires}: give a minute at least, such as 90d or 12h")
    with opened_database(database_url, ready=True) as (history, where):
        from zeusrun.history.sql import tokens  # noqa: PLC0415 - an extra

        text, token = tokens.create_token(
            history.engine,
            job,
            can_write=for_ is not None or bool(write),
            for_zeus=for_ is not None,
            lasts_s=lasts_s,
            note=note,
        )
        code = None if token.for_zeus else tokens.create_code(history.engine, token.id)
    address = _find_address(database_url)
    connect = None if code is None else f"zeusrun connect {address} {code}"
    if as_json:
        print_json({**token_json(token), "secret": text, "connect": connect})
        return
    may = {"read": "may read", "write": "may read and change", "zeus": "is for Zeus's clients of"}
    jobs = "all jobs" if job == "*" else f"jobs called {job}"
    how = (
        f"To connect another machine, run this on it within an hour; it works once:\n  {connect}\n"
        "It gets a token of its own with the same rights. Or: export ZEUSRUN_TOKEN=TOKEN"
    )
    if token.for_zeus:
        how = f'Zeus\'s clients have it in their address: server_url="{address}/zeus/TOKEN"'
    hint = "If that machine reaches the server at another address, as by a proxy, use that"
    if address == _UNKNOWN:
        hint = "Replace ADDRESS by the address of the server, such as https://zeus.example.org"
    typer.echo(
        f"Token {token.id} {may[token.may]} {jobs}, {until(token)}, on the server of {where}. "
        f"It is shown only now.\n{how}\n{hint}",
        err=True,
    )
    typer.echo(text)


def _find_address(database_url: str | None) -> str:
    """Return the address of the server, if its settings say one that others can reach."""
    settings = server_settings({"database_url": database_url}, needs=())
    if is_loopback(settings.host) or not settings.port:
        return _UNKNOWN
    return settings.build_url(settings.host, settings.port)


def list_(*, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List all tokens: what each permits, and when it was last used."""
    with opened_database(database_url, ready=True) as (history, where):
        from zeusrun.history.sql import tokens  # noqa: PLC0415 - an extra

        found = tokens.list_tokens(history.engine)
    records = [token_json(token) for token in found]
    answer(records, lambda width: tokens_table(found, where, width), as_json=as_json)


def revoke(
    token: Annotated[str, Argument(metavar="TOKEN", help="Its id, or the whole token.")],
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Make a token invalid for ever. A server notices within two seconds."""
    with opened_database(database_url, ready=True) as (history, where):
        from zeusrun.history.sql import tokens  # noqa: PLC0415 - an extra

        whole = tokens.TOKEN.fullmatch(token)
        own_id = whole[1] if whole else token
        if not tokens.revoke_token(history.engine, own_id):
            known = ", ".join(each.id for each in tokens.list_tokens(history.engine)) or "none yet"
            raise UsageError(f"{where} has no token {own_id[:20]!r}; tokens: {known}")
        passed_on = [each.id for each in tokens.list_tokens(history.engine) if each.is_of(own_id)]
    typer.echo(f"Token {own_id} is revoked.")
    if passed_on:
        which = ", ".join(passed_on)
        typer.echo(f"Machines connected by its codes keep their own tokens: {which}.")
