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
from zeusrun.history.registry import HISTORY_VARIABLE
from zeusrun.job_name import is_job_pattern
from zeusrun.jobfile.validators import duration_s
from zeusrun.plugins import check_extra
from zeusrun.redaction import hide_password
from zeusrun.view.export import print_json
from zeusrun.view.upkeep import token_json, tokens_table, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from zeusrun.history.sql.store import SqlHistory
    from zeusrun.server.run import Listening

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
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(help="Port to listen on.", min=0, max=65535)] = 8787,
    database_url: DatabaseUrl = None,
    path_prefix: Annotated[
        str, Option(metavar="/PATH", help="The path of the server behind a proxy.")
    ] = "",
    ssl_certfile: Annotated[
        str | None, Option(metavar="FILE", help="Certificate, for HTTPS.")
    ] = None,
    ssl_keyfile: Annotated[str | None, Option(metavar="FILE", help="Its private key.")] = None,
    require_token: Annotated[
        bool,
        Option("--require-token", help="Answer nobody without a token, even before one exists."),
    ] = False,
    insecure: Annotated[
        bool,
        Option("--insecure", help="Listen to other machines without HTTPS, or without tokens."),
    ] = False,
    trusted_proxies: Annotated[
        str, Option(metavar="ADDRESSES", help="Proxies whose X-Forwarded-For is believed.")
    ] = "127.0.0.1",
    access_log: Annotated[bool, Option("--access-log", help="Log every request.")] = False,
) -> None:
    """Serve one history to many machines, with a page to look at it."""
    given = locals()
    typer.echo("zeusrun serve: starting", err=True)  # the imports below take a second
    check_extra("a server", "server", "fastapi", "prometheus_client", "sqlalchemy", "uvicorn")
    from zeusrun.history.sql.engine import describe, parse_url  # noqa: PLC0415 - as above
    from zeusrun.server.settings import ServerSettings, find_database  # noqa: PLC0415 - as above

    url = find_database(trusted_home(os.environ), os.environ, database_url)
    settings = ServerSettings(**{**given, "database_url": url})
    typer.echo(f"zeusrun serve: opening the database {describe(parse_url(url))}", err=True)
    from zeusrun.server.run import listen, run  # noqa: PLC0415 - as above

    listening = listen(settings)
    create = "zeusrun token create --job '*' --write"
    if database_url and hide_password(database_url) == database_url:
        create += f" --database-url {quote(database_url)}"
    typer.echo(_describe(listening, create))
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
    return (
        f"zeusrun serves {listening.url}\n"
        f"  page      {listening.url}/\n"
        f"  a job     history: {listening.url}   in its job file, or {HISTORY_VARIABLE}\n"
        f"  tokens    {tokens}\n"
        f"  database  {listening.database}{', a new, empty history' * listening.is_new}\n"
        "Ctrl-C stops it."
    )


@contextlib.contextmanager
def opened_database(given: str | None, *, ready: bool = False) -> Iterator[tuple[SqlHistory, str]]:
    """Open the database of a server; also return its name, for messages.

    ``given`` is the URL of an option. ``ready``: raise ``HistoryError`` unless the database exists
    and has the tables of this zeusrun.
    """
    check_extra("a server", "server", "sqlalchemy")
    from zeusrun.history.sql.engine import describe  # noqa: PLC0415 - an extra
    from zeusrun.history.sql.store import SqlHistory  # noqa: PLC0415 - an extra
    from zeusrun.server.settings import find_database  # noqa: PLC0415 - an extra

    url = find_database(trusted_home(os.environ), os.environ, given)
    with contextlib.closing(SqlHistory(url)) as history:
        if ready:
            history.identify()
        yield history, describe(history.engine.url)


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
    if (for_ is None) == (write is None):
        raise UsageError(
            "say what the token permits by one of --read, --write, which changes histories, too, "
            "and --for zeus"
        )
    if not is_job_pattern(job):
        raise UsageError(f"--job {job!r} is not the name of a job, nor a pattern such as 'team-*'")
    try:
        lasts_s = None if expires is None else duration_s(expires)
    except ValueError as error:
        raise UsageError(f"--expires {error}") from None
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
    connect = None if code is None else f"zeusrun connect ADDRESS {code}"
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
        how = 'Zeus\'s clients have it in their address: server_url="ADDRESS/zeus/TOKEN"'
    typer.echo(
        f"Token {token.id} {may[token.may]} {jobs}, {until(token)}, on the server of {where}. "
        f"It is shown only now.\n{how}\n"
        "Replace ADDRESS by the address of the server, such as https://zeus.example.org",
        err=True,
    )
    typer.echo(text)


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
