"""What Alembic runs before a migration: it uses the connection of ``migrate.py``."""

from __future__ import annotations

from alembic import context

from zeusrun.history.sql.identity import REVISION_TABLE
from zeusrun.history.sql.schema import METADATA

_CONFIG = getattr(context, "config", None)
if _CONFIG is not None:  # it is None where this is imported and not run
    context.configure(
        connection=_CONFIG.attributes["connection"],
        target_metadata=METADATA,
        version_table=REVISION_TABLE,
    )
    context.run_migrations()
