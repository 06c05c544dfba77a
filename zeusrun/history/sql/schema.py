"""The tables of a shared history. A change here needs another ``REVISION``."""

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

REVISION = 1
"""Of the tables; a database has it in ``history``."""

# SQLite numbers rows by itself only in a column of the type INTEGER.
_Number = BigInteger().with_variant(Integer, "sqlite")
JOB_NAME = 100  # characters
TRIAL_NAME = 150
SUMS = ("time_s", "energy_j", "cost_j", "price", "carbon_g")
"""Columns that are added up over all runs; copies from the record."""
HOST_NAME = 253  # as in DNS

METADATA = MetaData()

HISTORY = Table(
    "history",
    METADATA,
    Column("id", Integer, primary_key=True),  # always 1
    Column("revision", Integer, nullable=False),
    # Random. A new one says that copies of this history are no longer good.
    Column("incarnation", String(32), nullable=False),
)
JOBS = Table(
    "jobs",
    METADATA,
    Column("name", String(JOB_NAME), primary_key=True),
    Column("changes", BigInteger, nullable=False),  # how often the job's history has changed
    Column("trials", BigInteger, nullable=False),  # how many it has
    Column("recurrences", BigInteger, nullable=False),  # the highest number of a recurrence
    Column("settings", Text),  # the job file of its newest run, as a JSON string
)
TRIALS = Table(
    "trials",
    METADATA,
    Column("number", _Number, primary_key=True, autoincrement=True),
    Column("trial", String(TRIAL_NAME), nullable=False, unique=True),
    Column("uuid", String(32), nullable=False, unique=True),
    Column("job", String(JOB_NAME), nullable=False),
    Column("recurrence", BigInteger, nullable=False),
    Column("attempt", BigInteger, nullable=False),
    Column("changed", BigInteger, nullable=False),  # ``jobs.changes`` at its last change
    Column("status", String(16), nullable=False),
    Column("trained", Boolean, nullable=False),  # whether it took an optimizer step
    Column("energy_source", String(16)),
    Column("currency", String(64)),
    *(Column(name, Double) for name in SUMS),
    Column("record", Text, nullable=False),  # ``Trial.to_json``
    Column("live", Text),  # of a LOST trial: the last heartbeat
    Column("trace", Text),  # power over time, reduced
    Index("trials_order", "job", "recurrence", "attempt"),
    Index("trials_job_changed", "job", "changed"),
    # Everything that sums need: they would otherwise read all records.
    Index("trials_sums", "job", "currency", "energy_source", "status", "trained", *SUMS),
)
# Not by their numbers: an import adds trials that are older than those that are there.
NEWEST_FIRST = (TRIALS.c.recurrence.desc(), TRIALS.c.attempt.desc())
# A table of its own: it is small, and heartbeats, most of all writes, touch nothing else.
LEASES = Table(
    "leases",
    METADATA,
    Column("number", _Number, primary_key=True, autoincrement=False),  # of an unfinished trial
    Column("job", String(JOB_NAME), nullable=False),
    Column("expires_at", Double, nullable=False),  # Unix seconds by the database's clock
    Column("live", Text),  # what its launcher sent with its last heartbeat
    Index("leases_job", "job"),
)
HOSTS = Table(
    "hosts",
    METADATA,
    Column("host", String(HOST_NAME), primary_key=True),
    Column("updated_at", Double, nullable=False),  # Unix seconds by the database's clock
    Column("facts", Text, nullable=False),
)
TOKENS = Table(
    "tokens",
    METADATA,
    Column("id", String(16), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256 of the token
    Column("jobs", String(200), nullable=False),  # a pattern such as team-*
    Column("can_write", Boolean, nullable=False),
    Column("note", Text),
    Column("created_at", Double, nullable=False),
    Column("expires_at", Double),
    Column("revoked_at", Double),
    Column("used_at", Double),  # to the minute
)
ZEUS_JOBS = Table(
    "zeus_jobs",
    METADATA,
    Column("job_id", String(200), primary_key=True),
    Column("job", String(JOB_NAME), nullable=False, unique=True),
    Column("settings", Text, nullable=False),
    Column("created_at", Double, nullable=False),
)
