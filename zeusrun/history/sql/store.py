"""A history in an SQL database, shared by any number of machines and servers."""

from __future__ import annotations

import functools
import json
import math
import time
from typing import TYPE_CHECKING, Any, TypeVar

import sqlalchemy as sa

from zeusrun.history import rules
from zeusrun.history.base import LEASE_S, Changes, Shared, UnreadableTrialError
from zeusrun.history.sql import rows, schema
from zeusrun.history.sql.engine import insert_missing, now_s, open_engine, parse_url, reading, write
from zeusrun.history.sql.rows import LockedJob, decode_trial, encode_json
from zeusrun.history.sql.schema import HOSTS, JOBS, LEASES, NEWEST_FIRST, TRIALS
from zeusrun.history.turns import Turns
from zeusrun.job_name import check_job_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from contextlib import AbstractContextManager

    from sqlalchemy.engine import Connection

    from zeusrun.history.turns import Turn
    from zeusrun.trial import Outcome, Trial

_Result = TypeVar("_Result")

# Built once, as those of rows.py.
_NAME: sa.BindParameter[str] = sa.bindparam("own_name")
_HEAD = sa.select(JOBS.c.changes, JOBS.c.trials).where(JOBS.c.name == _NAME)
_RECORDS = sa.select(TRIALS.c.record).where(TRIALS.c.job == _NAME)
_NEWEST = _RECORDS.order_by(*NEWEST_FIRST)
_CHANGED = _RECORDS.where(TRIALS.c.changed > sa.bindparam("since")).order_by(TRIALS.c.changed)
_TURNS = sa.select(JOBS.c.turns, now_s()).where(JOBS.c.name == _NAME)
_OWN_LEASE = LEASES.c.number == sa.bindparam("own_number")
_IS_CANCELLED = sa.select(LEASES.c.cancel).where(_OWN_LEASE)
_CANCEL = sa.update(LEASES).where(_OWN_LEASE).values(cancel=True)
_EXPIRED = sa.select(LEASES.c.job, LEASES.c.number).where(LEASES.c.expires_at < now_s())
_EXPIRED_OF_JOB = _EXPIRED.where(LEASES.c.job == _NAME)


class SqlHistory(Shared):
    """A ``History`` and ``Shared`` over SQLAlchemy; safe for threads, processes and machines.

    Each write is one transaction that first locks the row of its job. So the writes of a job come
    one after the other, and the version that ``begin`` checks cannot change until it has stored the
    trial. A heartbeat locks its lease alone.

    Attributes:
        engine: The connections; for other tables of the same database.
    """

    def __init__(self, url: str) -> None:
        """Open the database of a URL; it connects with the first use.

        Raises:
            UsageError: If the URL cannot be read, or a driver is missing.
        """
        self.engine = open_engine(parse_url(url))
        self._checked = False  # whether the tables are those of this zeusrun

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def identify(self) -> tuple[str, float]:
        """See ``Shared.identify``; it always looks whether the tables are those of this zeusrun."""
        self._checked = False
        with self._reading() as connection:
            now = connection.scalar(sa.select(now_s()))
            return schema.read_incarnation(connection), float(now or 0)

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        with self._reading() as connection:
            return sorted(connection.scalars(sa.select(JOBS.c.name).where(JOBS.c.trials > 0)))

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        check_job_name(job)
        self.expire(job)
        query = sa.select(TRIALS.c.record).join(LEASES, LEASES.c.number == TRIALS.c.number)
        query = query.where(LEASES.c.job == job).order_by(*NEWEST_FIRST)
        with self._reading() as connection:
            records = list(connection.scalars(query))
        return [decode_trial(record) for record in reversed(records)]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``; a uuid is found, too."""
        with self._reading() as connection:
            found = rows.find(connection, trial)
        return None if found is None else found.trial

    def changes(self, job: str, after: str | None, last: int | None = None) -> Changes:
        """See ``Shared.changes``."""
        check_job_name(job)
        with self._reading() as connection:
            expired = connection.execute(_EXPIRED_OF_JOB, {"own_name": job}).first()
            found = _read_changes(connection, job, after, last)
        if expired is not None:
            self.expire(job)
            with self._reading() as connection:
                found = _read_changes(connection, job, after, last)
        records, version, total, whole = found
        trials = sorted(map(decode_trial, records), key=rules.place_of)
        return Changes(tuple(trials), version, total, whole)

    def start_anew(self) -> None:
        """Give the history of a restored database a new random id.

        Its versions are counted on from those of the backup. With the old id, a client that has
        seen the lost ones would take the new ones for them. Leases last ``LEASE_S`` from now on at
        least: the launchers could not renew them.
        """
        until = now_s() + LEASE_S

        def work(connection: Connection) -> None:
            schema.start_incarnation(connection)
            sooner = sa.update(LEASES).where(LEASES.c.expires_at < until)
            connection.execute(sooner.values(expires_at=until))

        self._write(work)

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """See ``History.ask_turn``."""
        check_job_name(job)
        if number:
            with self._reading() as connection:
                row = connection.execute(_TURNS, {"own_name": job}).one_or_none()
            turn = None if row is None else Turns(*row).find(number)
            if turn is not None:
                return turn
        return self._change_turns(job, lambda turns: turns.ask(number))

    def leave_turn(self, job: str, number: int) -> None:
        """See ``History.leave_turn``."""
        self._change_turns(job, lambda turns: turns.use(number))

    def _change_turns(self, job: str, change: Callable[[Turns], _Result]) -> _Result:
        check_job_name(job)

        def work(connection: Connection) -> _Result:
            locked = LockedJob(connection, job)
            turns = locked.read_turns()
            result = change(turns)
            locked.set_turns(turns)
            locked.write_counts()
            return result

        return self._write(work)

    def begin(
        self,
        trial: Trial,
        *,
        after: str,
        turn: int = 0,
        until_t: float = math.inf,
        live: dict[str, Any] | None = None,
        lease_s: float = LEASE_S,
    ) -> Trial:
        """See ``History.begin``. The same trial again, as after a lost answer, changes nothing.

        Its lease begins again. ``until_t``: later than this by the monotonic clock, as after
        waiting for a lock, it raises ``Conflict``. ``live`` is kept as with a first ``renew``.
        """
        lease = _lease(trial.trial, live, lease_s)
        rules.check_new(trial)

        def work(connection: Connection) -> Trial:
            job = LockedJob(connection, trial.job)
            found = rows.find(connection, trial.uuid)
            if found is not None and found.trial == trial:
                connection.execute(lease, {"own_number": found.number})
                return trial
            if turn:
                turns = job.read_turns()
                if not turns.use(turn):
                    raise rules.not_its_turn(trial.job, turn)
                job.set_turns(turns)
            if job.is_stale(after) or time.monotonic() > until_t:
                raise rules.changed(trial.job)
            found = found or rows.find(connection, trial.trial)
            rules.check_id(trial, None if found is None else found.trial)
            number = job.store(trial, found)
            if live is not None:
                connection.execute(lease, {"own_number": number})
            return trial

        return self._write(work)

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, lambda known: known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, lambda known: known.forget(forgotten=forgotten))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``."""

        def work(connection: Connection) -> list[Trial]:
            # Always in the same order: two imports would otherwise wait for each other.
            names = sorted({trial.job for trial in trials})
            jobs = {name: LockedJob(connection, name) for name in names}
            return [rows.add(connection, jobs[trial.job], trial) for trial in trials]

        return self._write(work) if trials else []

    def renew(
        self, trial: str, live: dict[str, Any] | None = None, lease_s: float = LEASE_S
    ) -> bool:
        """See ``History.renew``; a trial that has ended gets no lease."""
        lease = _lease(trial, live, lease_s)

        def work(connection: Connection) -> bool:
            number = {"own_number": rows.find_number(connection, trial)}
            connection.execute(lease, number)
            return bool(connection.scalar(_IS_CANCELLED, number))

        return self._write(work)

    def ask_to_cancel(self, trial: str) -> bool:
        """See ``History.ask_to_cancel``."""

        def work(connection: Connection) -> bool:
            number = {"own_number": rows.find_number(connection, trial)}
            return bool(connection.execute(_CANCEL, number).rowcount)

        return self._write(work)

    def expire(self, job: str | None = None) -> list[Trial]:
        """Record trials as LOST whose launchers have not renewed the lease; return them."""
        query = _EXPIRED if job is None else _EXPIRED_OF_JOB.params(own_name=job)
        with self._reading() as connection:
            expired = list(connection.execute(query.order_by(LEASES.c.number)))
        ended, unreadable = [], None
        for row in expired:
            try:
                ended.append(
                    self._write(functools.partial(rows.lose, job=row.job, number=row.number))
                )
            except UnreadableTrialError as error:  # the others end nevertheless
                unreadable = error
        if unreadable is not None:
            raise unreadable
        return [trial for trial in ended if trial is not None]

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """See ``History.report_host``."""
        rows.check_host(host)
        values = {"updated_at": now_s(), "facts": encode_json(facts, f"what {host} reports")}

        def work(connection: Connection) -> None:
            insert_missing(connection, HOSTS, host=host, **values)
            connection.execute(sa.update(HOSTS).where(HOSTS.c.host == host).values(values))

        self._write(work)

    def hosts(self) -> list[tuple[str, float, dict[str, Any]]]:
        """Return each machine, when it last reported (seconds ago), and what.

        Machines that have not reported for 30 days are left out, and reports of more than 64 KiB.
        """
        query = sa.select(HOSTS.c.host, now_s() - HOSTS.c.updated_at, HOSTS.c.facts)
        with self._reading() as connection:
            found = list(connection.execute(query.where(rows.is_listed()).order_by(HOSTS.c.host)))
        return [(host, age, json.loads(facts)) for host, age, facts in found]

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """See ``History.keep_trace``."""
        text = encode_json(trace, f"the power of {trial}")

        def work(connection: Connection) -> None:
            number = rows.find_number(connection, trial)
            connection.execute(
                sa.update(TRIALS).where(TRIALS.c.number == number).values(trace=text)
            )

        self._write(work)

    def trace(self, trial: str) -> dict[str, Any] | None:
        """Return the power over time of a trial; ``None`` if it is unknown."""
        return self._read_json(trial, TRIALS.c.trace)

    def live(self, trial: str) -> dict[str, Any] | None:
        """See ``History.live``; ``None`` for a trial that has ended, unless it is LOST."""
        return self._read_json(trial, sa.func.coalesce(LEASES.c.live, TRIALS.c.live))

    def keep_settings(self, job: str, settings: str) -> None:
        """See ``History.keep_settings``."""
        check_job_name(job)
        text = encode_json(settings, f"the job file of {job}")

        of_job = JOBS.c.name == job

        def work(connection: Connection) -> None:
            if connection.scalar(sa.select(JOBS.c.settings).where(of_job)) != text:
                rows.insert_job(connection, job)
                connection.execute(sa.update(JOBS).where(of_job).values(settings=text))

        self._write(work)

    def settings(self, job: str) -> str | None:
        """Return the job file of a job, as its newest run used it; ``None`` if unknown."""
        with self._reading() as connection:
            text = connection.scalar(sa.select(JOBS.c.settings).where(JOBS.c.name == job))
        return None if text is None else str(json.loads(text))

    def _change(self, trial: str, change: Callable[[Trial], Trial]) -> Trial:
        return self._write(lambda connection: rows.change(connection, trial, change))

    def _read_json(self, trial: str, column: sa.ColumnElement[str]) -> dict[str, Any] | None:
        both = TRIALS.outerjoin(LEASES, LEASES.c.number == TRIALS.c.number)
        with self._reading() as connection:
            number = rows.find_number(connection, trial)
            query = sa.select(column).select_from(both).where(TRIALS.c.number == number)
            text = connection.scalar(query)
        return None if text is None else dict(json.loads(text))

    def _reading(self) -> AbstractContextManager[Connection]:
        self._check()
        return reading(self.engine)

    def _write(self, work: Callable[[Connection], _Result]) -> _Result:
        self._check()
        return write(self.engine, work)

    def _check(self) -> None:
        if not self._checked:
            schema.check_tables(self.engine)
            self._checked = True


def _lease(trial: str, live: dict[str, Any] | None, lease_s: float) -> sa.Update:
    """Return the statement that renews the lease of the trial with the number ``own_number``."""
    values: dict[str, Any] = {"expires_at": now_s() + lease_s}
    if live is not None:
        values["live"] = encode_json(live, f"what {trial} reports")
    return sa.update(LEASES).where(_OWN_LEASE).values(values)


def _read_changes(
    connection: Connection, job: str, after: str | None, last: int | None
) -> tuple[list[str], str, int, bool]:
    """Read what ``Shared.changes`` returns, with the records of the trials, in any order.

    A version that is yet to come is unknown: it is of a history before a backup was restored.
    """
    values: dict[str, Any] = {"own_name": job}
    changes, total = connection.execute(_HEAD, values).one_or_none() or (0, 0)
    incarnation = schema.read_incarnation(connection)
    version = f"{incarnation}:{changes}"
    since = rows.parse_version(after, incarnation)
    if since == changes:
        return [], version, total, False
    if since is not None and since < changes:
        newer = _CHANGED.limit(None if last is None else last + 1)
        records = list(connection.scalars(newer, {**values, "since": since}))
        if last is None or len(records) <= last:
            return records, version, total, False
    return list(connection.scalars(_NEWEST.limit(last), values)), version, total, True
