"""The verbs of ``db``: the tables of the database of a server."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Argument

from zeusrun.commands.options import DatabaseUrl, opened_database


def upgrade(*, database_url: DatabaseUrl = None) -> None:
    """Create the tables, or change them to those of this zeusrun.

    First stop the servers that use the database, and back it up.
    """
    with opened_database(database_url) as (history, where):
        from zeusrun.history.sql import migrate, schema  # noqa: PLC0415 - an extra

        before = migrate.upgrade(history.engine)
        now = schema.REVISIONS[-1]
    if before is None:
        typer.echo(f"{where}: created the tables (revision {now}).")
    elif before == now:
        typer.echo(f"{where}: nothing to do; the tables are at revision {now}.")
    else:
        typer.echo(f"{where}: changed the tables from revision {before} to {now}.")


def downgrade(
    revision: Annotated[str, Argument(metavar="REVISION", help="Such as 0001.")],
    *,
    database_url: DatabaseUrl = None,
) -> None:
    """Change the tables back to those of an older zeusrun.

    First stop the servers that use the database, and back it up.
    """
    with opened_database(database_url) as (history, where):
        from zeusrun.history.sql import migrate  # noqa: PLC0415 - an extra

        before = migrate.downgrade(history.engine, revision)
    if before == revision:
        typer.echo(f"{where}: nothing to do; the tables are at revision {revision}.")
    else:
        typer.echo(f"{where}: changed the tables from revision {before} back to {revision}.")


def current(*, database_url: DatabaseUrl = None) -> None:
    """Say whether the tables are those of this zeusrun. The exit code is 6 if not."""
    with opened_database(database_url) as (history, where):
        from zeusrun.history.sql.identity import check_revision  # noqa: PLC0415 - an extra

        revision = check_revision(history.engine)
    typer.echo(f"{where}: revision {revision}, which is that of this zeusrun.")


def restored(*, database_url: DatabaseUrl = None) -> None:
    """Say that the database was restored from a backup.

    Clients then read their copies of the history anew, and runs that go on are not LOST.
    """
    with opened_database(database_url) as (history, where):
        from zeusrun.history.sql.audit import AuditEntry, audited  # noqa: PLC0415 - an extra

        with audited(AuditEntry("db restored", "history")):
            history.start_anew()
    typer.echo(f"{where}: all clients will read this history anew.")
