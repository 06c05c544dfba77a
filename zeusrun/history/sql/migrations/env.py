"""What Alembic runs before a migration: it uses the connection of ``migrate.py``."""

from __future__ import annotations

from alembic import context

from zeusrun.history.sql.identity import REVISION_TABLE
from zeusrun.history.sql.schema import METADATA

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=METADATA,
    version_table=REVISION_TABLE,
)
context.run_migrations()
