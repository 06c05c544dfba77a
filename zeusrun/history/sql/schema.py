"""The tables of a shared history. A change here needs a migration in ``migrations/versions``."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Double,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)
from sqlalchemy.dialects.mysql import LONGTEXT

# SQLite numbers rows by itself only in a column of the type INTEGER.
_Number = BigInteger().with_variant(Integer, "sqlite")
# MySQL's TEXT ends at 64 KiB; a trial of 1,000 epochs is longer.
_Json = Text().with_variant(LONGTEXT, "mysql", "mariadb")


def _name(length: int = 200) -> String:
    # The default collations of MySQL take "a" and "A" for the same name.
    bound = String(length, collation="utf8mb4_bin")
    return String(length).with_variant(bound, "mysql", "mariadb")


METADATA = MetaData()

HISTORY = Table(
    "history",
    METADATA,
    Column("id", Integer, primary_key=True),  # always 1
    Column("incarnation", String(32), nullable=False),  # random; another one in a new database
)
JOBS = Table(
    "jobs",
    METADATA,
    Column("name", _name(), primary_key=True),
    Column("changes", BigInteger, nullable=False),  # how often the job's history has changed
    Column("settings", _Json),  # the job file of its newest run, without secrets
)
TRIALS = Table(
    "trials",
    METADATA,
    Column("number", _Number, primary_key=True, autoincrement=True),  # in the order they began
    Column("trial", _name(250), nullable=False, unique=True),
    Column("uuid", String(32), unique=True),
    Column("job", _name(), nullable=False),
    Column("changed", BigInteger, nullable=False),  # ``jobs.changes`` at its last change
    Column("status", String(16), nullable=False),
    Column("lease_until", Double),  # Unix seconds by the database's clock; NULL once finished
    # What is added up over all runs; copies from the record.
    Column("trained", Boolean, nullable=False),  # whether it took an optimizer step
    Column("time_s", Double),
    Column("energy_j", Double),
    Column("energy_source", String(16)),
    Column("cost_j", Double),
    Column("price", Double),
    Column("currency", String(64)),
    Column("carbon_g", Double),
    Column("record", _Json, nullable=False),  # ``Trial.to_json``
    Column("live", _Json),  # what its launcher sent with its last heartbeat
    Column("trace", _Json),  # power over time, reduced
    Index("trials_job_number", "job", "number"),
    Index("trials_job_changed", "job", "changed"),
    Index("trials_status_lease", "status", "lease_until"),
)
HOSTS = Table(
    "hosts",
    METADATA,
    Column("host", _name(), primary_key=True),
    Column("updated_at", Double, nullable=False),  # Unix seconds by the database's clock
    Column("facts", _Json, nullable=False),
)
TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the token
    Column("jobs", _name(), nullable=False),  # a pattern such as team-*
    Column("can_write", Boolean, nullable=False),
    Column("note", Text),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
)
AUDIT = Table(
    "audit",
    METADATA,
    Column("id", _Number, primary_key=True, autoincrement=True),
    Column("at", Double, nullable=False),
    Column("token", String(16)),  # its id; NULL without one
    Column("client", String(64)),  # address of the client
    Column("action", String(32), nullable=False),
    Column("subject", _name(250), nullable=False),  # a job, a trial, a token
)
ZEUS_JOBS = Table(
    "zeus_jobs",
    METADATA,
    Column("job_id", _name(), primary_key=True),
    Column("job", _name(), nullable=False, unique=True),
    Column("settings", _Json, nullable=False),
    Column("created_at", Double, nullable=False),
)
