"""The verbs of ``token``: who may use a server. They work on its database directly."""

from __future__ import annotations

import re
from typing import Annotated

import typer
from typer import Argument, Option

from zeusrun.commands.options import AsJson, DatabaseUrl, console, opened_database
from zeusrun.errors import UsageError
from zeusrun.jobfile.validators import duration_s
from zeusrun.view.export import print_json

_PATTERN = re.compile(r"(?=.{1,200}\Z)(?:[A-Za-z0-9._*?-]|\[!?[A-Za-z0-9._-]+\])+")


def create(
    *,
    job: Annotated[
        str, Option(metavar="PATTERN", help="For jobs whose names match: 'team-*'; all: '*'.")
    ],
    write: Annotated[
        bool | None,
        Option("--write/--read", help="Change histories, or only read them: give one of both."),
    ] = None,
    expires: Annotated[
        str | None, Option(metavar="TIME", help="Valid for so long: 90d, 12h; by default for ever.")
    ] = None,
    note: Annotated[str | None, Option(metavar="TEXT", help="What it is for.")] = None,
    database_url: DatabaseUrl = None,
    as_json: AsJson = False,
) -> None:
    """Create a token, and print it: nobody can read it later."""
    if write is None:
        raise UsageError("say what the token permits: --read, or --write to change histories, too")
    if not _PATTERN.fullmatch(job):
        raise UsageError(f"--job {job!r} is no name of a job and no pattern such as 'team-*'")
    try:
        lasts_s = None if expires is None else duration_s(expires)
    except ValueError as error:
        raise UsageError(f"--expires {error}") from None
    with opened_database(database_url, ready=True) as (history, where):
        from zeusrun.history.sql.tokens import create_token  # noqa: PLC0415 - an extra
        from zeusrun.view.tokens import token_json, until  # noqa: PLC0415 - takes 40 ms

        text, token = create_token(history.engine, job, can_write=write, lasts_s=lasts_s, note=note)
    if as_json:
        print_json({**token_json(token), "secret": text})
        return
    typer.echo(
        f"Token {token.id} may {'read and change' if write else 'read'} "
        f"{'all jobs' if job == '*' else f'jobs called {job}'}, "
        f"{until(token)}, on the server of {where}. It is shown only now. "
        "On the machines that use it: export ZEUSRUN_TOKEN=...",
        err=True,
    )
    typer.echo(text)


def list_(*, database_url: DatabaseUrl = None, as_json: AsJson = False) -> None:
    """List all tokens: what each permits, and when it was last used."""
    with opened_database(database_url, ready=True) as (history, where):
        from zeusrun.history.sql.tokens import list_tokens  # noqa: PLC0415 - an extra
        from zeusrun.view.tokens import token_json, tokens_table  # noqa: PLC0415 - takes 40 ms

        tokens = list_tokens(history.engine)
    if as_json:
        print_json([token_json(token) for token in tokens])
    else:
        console().print(tokens_table(tokens, where))


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
    typer.echo(f"Token {own_id} is revoked.")
