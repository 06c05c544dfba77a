"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.mysql import LONGTEXT

revision = "0001"
down_revision = None

_NUMBER = sa.BigInteger().with_variant(sa.Integer, "sqlite")
_JSON = sa.Text().with_variant(LONGTEXT, "mysql", "mariadb")
_MYSQL: dict[str, Any] = {
    "mysql_engine": "InnoDB",
    "mysql_charset": "utf8mb4",
    "mysql_collate": "utf8mb4_bin",
    "mariadb_engine": "InnoDB",
    "mariadb_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_bin",
}


def upgrade() -> None:
    """Create all tables; the history in them gets its random id from ``migrate.py``."""
    op.create_table(
        "history",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("incarnation", sa.String(32), nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "jobs",
        sa.Column("name", sa.String(100), primary_key=True),
        sa.Column("changes", sa.BigInteger, nullable=False),
        sa.Column("trials", sa.BigInteger, nullable=False),
        sa.Column("recurrences", sa.BigInteger, nullable=False),
        sa.Column("settings", _JSON),
        **_MYSQL,
    )
    sums = ["time_s", "energy_j", "cost_j", "price", "carbon_g"]
    op.create_table(
        "trials",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("trial", sa.String(150), nullable=False, unique=True),
        sa.Column("uuid", sa.String(32), unique=True),
        sa.Column("job", sa.String(100), nullable=False),
        sa.Column("recurrence", sa.BigInteger, nullable=False),
        sa.Column("attempt", sa.BigInteger, nullable=False),
        sa.Column("changed", sa.BigInteger, nullable=False),
        sa.Column("status", sa.String(16), nullable=False),
        sa.Column("trained", sa.Boolean, nullable=False),
        sa.Column("energy_source", sa.String(16)),
        sa.Column("currency", sa.String(64)),
        *(sa.Column(name, sa.Double) for name in sums),
        sa.Column("record", _JSON, nullable=False),
        sa.Column("live", _JSON),
        sa.Column("trace", _JSON),
        **_MYSQL,
    )
    op.create_index("trials_order", "trials", ["job", "recurrence", "attempt"])
    op.create_index("trials_job_changed", "trials", ["job", "changed"])
    keys = ["job", "currency", "energy_source", "status", "trained"]
    op.create_index("trials_sums", "trials", keys + sums)
    op.create_table(
        "leases",
        sa.Column("number", _NUMBER, primary_key=True, autoincrement=False),
        sa.Column("job", sa.String(100), nullable=False),
        sa.Column("expires_at", sa.Double, nullable=False),
        sa.Column("live", _JSON),
        **_MYSQL,
    )
    op.create_index("leases_job", "leases", ["job"])
    op.create_table(
        "hosts",
        sa.Column("host", sa.String(253), primary_key=True),
        sa.Column("updated_at", sa.Double, nullable=False),
        sa.Column("facts", _JSON, nullable=False),
        **_MYSQL,
    )
    op.create_table(
        "tokens",
        sa.Column("id", sa.String(16), primary_key=True),
        sa.Column("hash", sa.String(64), nullable=False, unique=True),
        sa.Column("jobs", sa.String(200), nullable=False),
        sa.Column("can_write", sa.Boolean, nullable=False),
        sa.Column("note", sa.Text),
        sa.Column("created_at", sa.Double, nullable=False),
        sa.Column("expires_at", sa.Double),
        sa.Column("revoked_at", sa.Double),
        sa.Column("used_at", sa.Double),
        **_MYSQL,
    )
    op.create_table(
        "audit",
        sa.Column("id", _NUMBER, primary_key=True, autoincrement=True),
        sa.Column("at", sa.Double, nullable=False),
        sa.Column("token", sa.String(16)),
        sa.Column("client", sa.String(64)),
        sa.Column("action", sa.String(32), nullable=False),
        sa.Column("subject", sa.String(250), nullable=False),
        **_MYSQL,
    )
    op.create_index("audit_at", "audit", ["at"])
    op.create_table(
        "zeus_jobs",
        sa.Column("job_id", sa.String(200), primary_key=True),
        sa.Column("job", sa.String(100), nullable=False, unique=True),
        sa.Column("settings", _JSON, nullable=False),
        sa.Column("created_at", sa.Double, nullable=False),
        **_MYSQL,
    )


def downgrade() -> None:
    """Nothing is before the first tables; ``migrate.py`` refuses to delete a history."""
