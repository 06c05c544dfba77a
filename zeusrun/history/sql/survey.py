"""What a page shows of many jobs and runs: a few queries that read no more than that."""

from __future__ import annotations

import hashlib
import json
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.history.sql.engine import now_s, reading
from zeusrun.history.sql.rows import decode_trial, is_listed
from zeusrun.history.sql.schema import HISTORY, HOSTS, JOBS, LEASES, NEWEST_FIRST, SUMS, TRIALS
from zeusrun.trial import TrialStatus

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from sqlalchemy.engine import Engine

    from zeusrun.trial import Trial

_DIGITS = 18  # the longest number that every database can store
_FINAL = TRIALS.c.status.not_in([each.value for each in TrialStatus if not each.final])


class JobHead(NamedTuple):
    """A job in a list of jobs."""

    job: str
    changes: int  # how often its history has changed
    runs: int
    newest: int  # the number of its newest trial
    started_at: float | None = None  # when that began, in Unix seconds


SORTS = {
    "run": (TRIALS.c.recurrence, TRIALS.c.attempt),
    "when": (TRIALS.c.started_at,),
    "status": (TRIALS.c.status,),
    "batch-size": (TRIALS.c.global_batch_size,),
    "host": (TRIALS.c.host,),
    "gpu": (TRIALS.c.gpu_model,),
    "time": (TRIALS.c.time_s,),
    "energy": (TRIALS.c.energy_j,),
    "cost": (TRIALS.c.cost_j,),
    "carbon": (TRIALS.c.carbon_g,),
}
"""By what runs can be sorted; what is unknown comes last."""


class Wanted(NamedTuple):
    """The runs of a list: the search, the order, and the page."""

    sort: str = "run"  # one of ``SORTS``
    descending: bool = True
    page: int = 1
    words: tuple[str, ...] = ()  # a run must have every word; see ``_has``


def _has(word: str) -> sa.ColumnElement[bool]:
    """Return the condition that a run has a word, in upper or lower case.

    A word is the status of the run, or a part of its name, host or GPU model. A number is its batch
    size, or a part of its host or GPU model.
    """
    columns, status = TRIALS.c, word.upper()
    is_number = word.isdecimal() and len(word) < _DIGITS
    if status == "RUNNING":
        status = TrialStatus.DISPATCHED.value
    names = [columns.host, columns.gpu_model, *([] if is_number else [columns.trial])]
    found = [name.icontains(word, autoescape=True) for name in names]
    exact = columns.global_batch_size == int(word) if is_number else columns.status == status
    return sa.or_(exact, *found)


class RunningTrial(NamedTuple):
    """A trial that has not ended."""

    trial: Trial
    live: dict[str, Any]  # what its launcher sent with its last heartbeat; empty before that
    lease_left_s: float  # negative: its launcher has sent no heartbeat for too long
    cancel: bool = False  # whether somebody has asked to cancel it


class Part(NamedTuple):
    """Sums over those trials of a job that have ended and have the first three in common."""

    currency: str | None
    energy_source: str | None
    status: str
    runs: int
    trained: int  # how many of them took an optimizer step
    sums: Mapping[str, float | None]  # ``None`` if it is unknown of all of them
    known: Mapping[str, int]  # of how many that took a step it is known


class Versions(NamedTuple):
    """What has changed, as texts that are equal only if nothing has."""

    jobs: Mapping[str, str]  # by job: its trials, and the heartbeats of those that run
    hosts: tuple[int, float | None]

    def of(self, job: str) -> str:
        """Return the version of a job."""
        return self.jobs.get(job, "")

    def of_jobs(self, pattern: str) -> str:
        """Return the version of all jobs whose names match; ``*``: also that of the machines.

        Other jobs do not change it, although they also make machines report.
        """
        jobs = sorted(each for each in self.jobs.items() if fnmatchcase(each[0], pattern))
        text = repr((jobs, self.hosts if pattern == "*" else None))
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def count_hosts(engine: Engine) -> int:
    """Return how many machines ``SqlHistory.hosts`` lists."""
    query = sa.select(sa.func.count()).select_from(HOSTS).where(is_listed())
    return int(_read(engine, query)[0][0])


def list_heads(engine: Engine) -> list[JobHead]:
    """Return all jobs, that of the newest trial first."""
    # One look into an index for each job; GROUP BY would read as many entries as there are trials.
    newest = [
        sa.select(column)
        .where(TRIALS.c.job == JOBS.c.name)
        .order_by(*NEWEST_FIRST)
        .limit(1)
        .scalar_subquery()
        for column in (TRIALS.c.number, TRIALS.c.started_at)
    ]
    query = sa.select(JOBS.c.name, JOBS.c.changes, JOBS.c.trials, *newest)
    heads = [JobHead(*row) for row in _read(engine, query.where(JOBS.c.trials > 0))]
    return sorted(heads, key=lambda head: (head.started_at or 0.0, head.newest), reverse=True)


def read_numbers(engine: Engine, numbers: Collection[int]) -> dict[int, Trial]:
    """Return trials by their numbers in the database."""
    query = sa.select(TRIALS.c.number, TRIALS.c.record).where(TRIALS.c.number.in_(numbers))
    return {number: decode_trial(record) for number, record in _read(engine, query)}


def list_running(engine: Engine) -> list[tuple[int, str]]:
    """Return the number and the job of every trial that has not ended, oldest first."""
    query = sa.select(LEASES.c.number, LEASES.c.job).order_by(LEASES.c.number)
    return [(number, job) for number, job in _read(engine, query)]


def read_running(engine: Engine, chosen: Collection[int] | str) -> list[RunningTrial]:
    """Return trials that have not ended, by their numbers or the id of one, oldest first."""
    named = TRIALS.c.trial == chosen if isinstance(chosen, str) else LEASES.c.number.in_(chosen)
    query = sa.select(
        TRIALS.c.record, LEASES.c.live, LEASES.c.expires_at - now_s(), LEASES.c.cancel
    )
    query = query.join(LEASES, LEASES.c.number == TRIALS.c.number).where(named)
    rows = _read(engine, query.order_by(TRIALS.c.number))
    return [
        RunningTrial(decode_trial(record), _read_json(live), left, bool(cancel))
        for record, live, left, cancel in rows
    ]


def list_runs(
    engine: Engine, jobs: Collection[str] | None, wanted: Wanted, count: int
) -> tuple[list[Trial], int]:
    """Return a page of ``count`` trials of some jobs, and how many there are on all pages.

    ``jobs``: ``None`` for all. A page beyond the last one is the last one.
    """
    where = [_has(word) for word in wanted.words]
    if jobs is not None:
        where.append(TRIALS.c.job.in_(jobs))
    order = [each.desc() if wanted.descending else each.asc() for each in SORTS[wanted.sort]]
    order = [each.nulls_last() for each in order]
    order += [*NEWEST_FIRST, TRIALS.c.number.desc()]  # the last one differs for all runs
    found = sa.select(TRIALS.c.number).where(*where).order_by(*order)
    with reading(engine) as connection:
        counted = sa.select(sa.func.count()).select_from(TRIALS).where(*where)
        total = int(connection.scalar(counted) or 0)
        first = min(wanted.page, max(1, -(-total // count))) * count - count
        numbers = connection.scalars(found.limit(count).offset(first)).all() if total else []
    trials = read_numbers(engine, numbers)
    return [trials[number] for number in numbers if number in trials], total


def read_first(engine: Engine, job: str) -> Trial | None:
    """Return the oldest trial of a job."""
    query = sa.select(TRIALS.c.record).where(TRIALS.c.job == job)
    return _read_trial(engine, query.order_by(TRIALS.c.recurrence, TRIALS.c.attempt))


def read_last_ended(engine: Engine, job: str) -> Trial | None:
    """Return the newest trial of a job that has ended."""
    query = sa.select(TRIALS.c.record).where(TRIALS.c.job == job, _FINAL)
    return _read_trial(engine, query.order_by(*NEWEST_FIRST))


def list_traces(engine: Engine, job: str, since: int, count: int) -> dict[str, dict[str, Any]]:
    """Return the power of the newest trials with a trace, from a recurrence on."""
    query = sa.select(TRIALS.c.trial, TRIALS.c.trace).where(
        TRIALS.c.job == job, TRIALS.c.recurrence >= since, TRIALS.c.trace.is_not(None)
    )
    rows = _read(engine, query.order_by(*NEWEST_FIRST).limit(count))
    return {trial: _read_json(trace) for trial, trace in rows[::-1]}


def add_up(engine: Engine, job: str) -> list[Part]:
    """Return sums over all trials of a job that have ended."""
    columns = [TRIALS.c[name] for name in SUMS]
    trained = sa.func.sum(sa.case((TRIALS.c.trained, 1), else_=0))
    known = [
        sa.func.sum(sa.case((TRIALS.c.trained & column.is_not(None), 1), else_=0))
        for column in columns
    ]
    kinds = (TRIALS.c.currency, TRIALS.c.energy_source, TRIALS.c.status)  # as an index has them
    sums = (sa.func.sum(column) for column in columns)
    query = sa.select(*kinds, sa.func.count(), trained, *sums, *known).group_by(*kinds)
    query = query.where(TRIALS.c.job == job, TRIALS.c.status != TrialStatus.DISPATCHED.value)
    return [
        Part(
            *(row[0], row[1], row[2], int(row[3]), int(row[4] or 0)),
            sums=dict(zip(SUMS, row[5:10], strict=True)),
            known={name: int(n or 0) for name, n in zip(SUMS, row[10:], strict=True)},
        )
        for row in map(tuple, _read(engine, query))
    ]


def read_versions(engine: Engine) -> Versions:
    """Return what tells whether anything has changed."""
    leases = sa.select(LEASES.c.job, sa.func.count(), sa.func.sum(LEASES.c.expires_at))
    with reading(engine) as connection:
        incarnation = connection.scalar(sa.select(HISTORY.c.incarnation))
        changes = connection.execute(sa.select(JOBS.c.name, JOBS.c.changes))
        jobs = {name: f"{incarnation}:{count}" for name, count in changes}
        for job, count, until in connection.execute(leases.group_by(LEASES.c.job)):
            jobs[job] = f"{jobs.get(job)}:{count}:{until}"
        hosts = connection.execute(
            sa.select(sa.func.count(), sa.func.sum(HOSTS.c.updated_at))
        ).one()
    return Versions(jobs, (hosts[0], hosts[1]))


def _read(engine: Engine, query: sa.Select[Any]) -> Sequence[Any]:
    with reading(engine) as connection:
        return connection.execute(query).all()


def _read_trial(engine: Engine, query: sa.Select[Any]) -> Trial | None:
    rows = _read(engine, query.limit(1))
    return decode_trial(rows[0].record) if rows else None


def _read_json(text: str | None) -> dict[str, Any]:
    found = json.loads(text) if text else {}
    return found if isinstance(found, dict) else {}
