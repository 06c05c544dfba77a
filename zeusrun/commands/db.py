"""The verbs of ``db``: the tables of the database of a server."""

from __future__ import annotations

import typer

from zeusrun.commands.options import DatabaseUrl, opened_database


def create(*, database_url: DatabaseUrl = None) -> None:
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
