"""A history in an SQL database, shared by any number of machines and servers."""

from __future__ import annotations

import json
import uuid
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from zeusrun.clock import timestamp
from zeusrun.errors import HistoryError
from zeusrun.history import rules
from zeusrun.history.base import LEASE_EXPIRED, LEASE_S, Changes, Snapshot
from zeusrun.history.sql.engine import now_s, open_engine, parse_url, reading, writing
from zeusrun.history.sql.schema import HISTORY, HOSTS, JOBS, METADATA, TRIALS
from zeusrun.job_name import check_job_name
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from sqlalchemy.engine import Connection, RowMapping

    from zeusrun.trial import Outcome

_DISPATCHED = TrialStatus.DISPATCHED.value
_MOST = 1e30
_SUMMED = ("time_s", "energy_j", "cost_j", "price", "carbon_g")


class SqlHistory:
    """A ``History`` and ``Shared`` over SQLAlchemy; safe for threads, processes and machines.

    Each write is one transaction that first locks the row of its job. So the writes of a job come
    one after the other, and the version that ``begin`` checks cannot change until it has stored the
    trial.
    """

    def __init__(self, url: str) -> None:
        self.engine = open_engine(parse_url(url))

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def create(self) -> None:
        """Create the tables that do not exist, without migrations; for tests."""
        with writing(self.engine) as connection:
            METADATA.create_all(connection)

    def identify(self) -> tuple[str, float]:
        """Return the random id of the database, and the time by its clock in Unix seconds."""
        with reading(self.engine) as connection:
            return _incarnation(connection), float(connection.scalar(sa.select(now_s())) or 0)

    def jobs(self) -> list[str]:
        """See ``History.jobs``."""
        with reading(self.engine) as connection:
            return sorted(connection.scalars(sa.select(JOBS.c.name).where(JOBS.c.changes > 0)))

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        return list(self.snapshot(job, last).trials)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        check_job_name(job)
        with reading(self.engine) as connection:
            return _count(connection, job)

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        check_job_name(job)
        self.expire(job)
        query = sa.select(TRIALS.c.record).where(
            TRIALS.c.job == job, TRIALS.c.status == _DISPATCHED
        )
        with reading(self.engine) as connection:
            return [
                decode_trial(each) for each in connection.scalars(query.order_by(TRIALS.c.number))
            ]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``; a uuid is found, too."""
        with reading(self.engine) as connection:
            row = _find(connection, trial)
        return None if row is None else decode_trial(row["record"])

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        found = self.changes(job, None, last)
        return Snapshot(found.trials, found.version)

    def changes(self, job: str, after: str | None, last: int | None = None) -> Changes:
        """See ``Shared.changes``."""
        check_job_name(job)
        self.expire(job)
        with reading(self.engine) as connection:
            version = _version(connection, job)  # first: later writes are then only read twice
            incarnation = version.partition(":")[0]
            since = _since(after, incarnation)
            query = sa.select(TRIALS.c.number, TRIALS.c.record).where(TRIALS.c.job == job)
            if since is not None:
                query = query.where(TRIALS.c.changed > since)
            query = query.order_by(TRIALS.c.number.desc())
            if last is not None:
                query = query.limit(last)
            rows = list(connection.execute(query))[::-1]
            count = _count(connection, job)
        trials = tuple(decode_trial(row.record) for row in rows)
        return Changes(trials, tuple(row.number for row in rows), version, count, since is None)

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``. The same trial again, as after a lost answer, changes nothing."""
        rules.check_new(trial)
        record = rules.encode_trial(trial)
        with writing(self.engine) as connection:
            changes = _lock_job(connection, trial.job)
            row = _find(connection, trial.uuid or trial.trial)
            known = None if row is None else decode_trial(row["record"])
            if known is not None and known.uuid is not None and known == trial:
                return known
            if after != f"{_incarnation(connection)}:{changes}":
                raise rules.changed(trial.job)
            if row is None and (other := _find(connection, trial.trial)) is not None:
                row, known = other, decode_trial(other["record"])
            rules.check_id(trial, known)
            _store(connection, trial, record, changes + 1, row)
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, lambda known: known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, lambda known: known.forget(forgotten=forgotten))

    def renew(
        self, trial: str, live: dict[str, Any] | None = None, lease_s: float = LEASE_S
    ) -> None:
        """See ``Shared.renew``; a trial that has ended gets no lease."""
        values: dict[str, Any] = {"lease_until": now_s() + lease_s}
        if live is not None:
            values["live"] = json.dumps(live)
        named = (TRIALS.c.trial == trial) | (TRIALS.c.uuid == trial)
        update = sa.update(TRIALS).where(named, TRIALS.c.status == _DISPATCHED).values(values)
        with writing(self.engine) as connection:
            if not connection.execute(update).rowcount and _find(connection, trial) is None:
                raise rules.unknown_trial(trial)

    def lease_held(self, trial: str) -> bool:
        """See ``Shared.lease_held``."""
        with reading(self.engine) as connection:
            row = _find(connection, trial)
            if row is None:
                raise rules.unknown_trial(trial)
            until = row["lease_until"]
            now = connection.scalar(sa.select(now_s()))
        return row["status"] == _DISPATCHED and until is not None and until > (now or 0)

    def expire(self, job: str | None = None) -> list[Trial]:
        """Record trials as LOST whose launchers have not renewed the lease; return them."""
        expired = sa.select(TRIALS.c.trial).where(
            TRIALS.c.status == _DISPATCHED, TRIALS.c.lease_until < now_s()
        )
        if job is not None:
            expired = expired.where(TRIALS.c.job == job)
        with reading(self.engine) as connection:
            names = list(connection.scalars(expired))
        lost: list[Trial] = []
        for name in names:
            with writing(self.engine) as connection:
                changes = _lock_job(connection, rules.job_of(name) or "")
                # Again under the lock: its launcher may have renewed the lease.
                if connection.scalar(expired.where(TRIALS.c.trial == name)) is None:
                    continue
                row = _find(connection, name)
                if row is None:
                    continue
                known = decode_trial(row["record"])
                ended = known.finish(known.ended_as(TrialStatus.LOST, LEASE_EXPIRED, timestamp()))
                _store(connection, ended, rules.encode_trial(ended), changes + 1, row)
                lost.append(ended)
        return lost

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``Shared.add``."""
        stored: list[Trial] = []
        with writing(self.engine) as connection:
            # Always in the same order: two imports would else wait for each other.
            changes = {
                job: _lock_job(connection, job) for job in sorted({each.job for each in trials})
            }
            for trial in trials:
                row = _find(connection, trial.uuid) if trial.uuid else None
                if row is None and not rules.is_offline(trial):
                    row = _find(connection, trial.trial)
                known = None if row is None else decode_trial(row["record"])
                if known is not None and known.uuid != trial.uuid:
                    raise ValueError(f"there is another trial {trial.trial} already")
                if known is None:
                    new = _numbered(connection, trial) if rules.is_offline(trial) else trial
                    rules.check_numbers(new, new.job)
                elif trial.status.finished and known.status in {
                    TrialStatus.DISPATCHED,
                    TrialStatus.LOST,
                }:
                    same = {
                        name: getattr(known, name) for name in ("trial", "recurrence", "attempt")
                    }
                    new = replace(trial, **same)
                else:
                    stored.append(known)
                    continue
                if new != known:
                    changes[trial.job] += 1
                    _store(connection, new, rules.encode_trial(new), changes[trial.job], row)
                stored.append(new)
        return stored

    def report_host(self, host: str, facts: dict[str, Any]) -> None:
        """See ``Shared.report_host``."""
        values = {"updated_at": now_s(), "facts": json.dumps(facts)}
        with writing(self.engine) as connection:
            update = sa.update(HOSTS).where(HOSTS.c.host == host)
            if not connection.execute(update.values(values)).rowcount:
                connection.execute(sa.insert(HOSTS).values(host=host, **values))

    def hosts(self) -> list[tuple[str, float, dict[str, Any]]]:
        """Return each machine, when it last reported (seconds ago), and what."""
        query = sa.select(HOSTS.c.host, now_s() - HOSTS.c.updated_at, HOSTS.c.facts)
        with reading(self.engine) as connection:
            rows = list(connection.execute(query.order_by(HOSTS.c.host)))
        return [(host, age, json.loads(facts)) for host, age, facts in rows]

    def keep_trace(self, trial: str, trace: dict[str, Any]) -> None:
        """See ``Shared.keep_trace``."""
        self._set(trial, trace=json.dumps(trace))

    def trace(self, trial: str) -> dict[str, Any] | None:
        """Return the power over time of a trial; ``None`` if it is unknown."""
        return self._read_json(trial, "trace")

    def live(self, trial: str) -> dict[str, Any] | None:
        """Return what the launcher of a trial sent with its last heartbeat."""
        return self._read_json(trial, "live")

    def keep_settings(self, job: str, settings: str) -> None:
        """See ``Shared.keep_settings``."""
        with writing(self.engine) as connection:
            _lock_job(connection, job)
            connection.execute(sa.update(JOBS).where(JOBS.c.name == job).values(settings=settings))

    def settings(self, job: str) -> str | None:
        """Return the job file of a job, as its newest run used it; ``None`` if unknown."""
        with reading(self.engine) as connection:
            return connection.scalar(sa.select(JOBS.c.settings).where(JOBS.c.name == job))

    def _set(self, trial: str, **values: str) -> None:
        named = (TRIALS.c.trial == trial) | (TRIALS.c.uuid == trial)
        with writing(self.engine) as connection:
            if not connection.execute(sa.update(TRIALS).where(named).values(values)).rowcount:
                raise rules.unknown_trial(trial)

    def _read_json(self, trial: str, column: str) -> dict[str, Any] | None:
        with reading(self.engine) as connection:
            row = _find(connection, trial)
        if row is None:
            raise rules.unknown_trial(trial)
        return None if row[column] is None else dict(json.loads(row[column]))

    def _change(self, trial: str, change: Callable[[Trial], Trial]) -> Trial:
        with writing(self.engine) as connection:
            row = _find(connection, trial)
            if row is None:
                raise rules.unknown_trial(trial)
            changes = _lock_job(connection, row["job"])
            row = _find(connection, trial) or row  # as it is under the lock
            known = decode_trial(row["record"])
            changed = change(known)
            if changed != known:
                _store(connection, changed, rules.encode_trial(changed), changes + 1, row)
        return changed


def _lock_job(connection: Connection, job: str) -> int:
    """Lock the row of a job until the transaction ends; return how often the job has changed."""
    check_job_name(job)
    query = sa.select(JOBS.c.changes).where(JOBS.c.name == job).with_for_update()
    changes = connection.scalar(query)
    if changes is None:
        try:
            with connection.begin_nested():
                connection.execute(sa.insert(JOBS).values(name=job, changes=0))
        except sa.exc.IntegrityError:
            pass  # another transaction was faster
        changes = connection.scalar(query)
    return int(changes or 0)


def _incarnation(connection: Connection) -> str:
    """Return the random id of this database; the first transaction that writes makes it."""
    found = connection.scalar(sa.select(HISTORY.c.incarnation))
    if found is None:
        raise HistoryError("the database has no history yet; run: zeusrun db upgrade")
    return str(found)


def new_incarnation(connection: Connection) -> None:
    """Give a database without a history its random id."""
    if connection.scalar(sa.select(HISTORY.c.incarnation)) is None:
        connection.execute(sa.insert(HISTORY).values(id=1, incarnation=uuid.uuid4().hex))


def _version(connection: Connection, job: str) -> str:
    changes = connection.scalar(sa.select(JOBS.c.changes).where(JOBS.c.name == job))
    return f"{_incarnation(connection)}:{changes or 0}"


def _since(after: str | None, incarnation: str) -> int | None:
    """Return the number of changes of a version; ``None`` if it is of another database."""
    known, _, changes = (after or "").partition(":")
    return int(changes) if known == incarnation and changes.isdecimal() else None


def _count(connection: Connection, job: str) -> int:
    query = sa.select(sa.func.count()).select_from(TRIALS).where(TRIALS.c.job == job)
    return int(connection.scalar(query) or 0)


def _find(connection: Connection, trial: str) -> RowMapping | None:
    column = TRIALS.c.uuid if rules.is_uuid(trial) else TRIALS.c.trial
    return connection.execute(sa.select(TRIALS).where(column == trial)).mappings().first()


def _store(
    connection: Connection,
    trial: Trial,
    record: dict[str, Any],
    changes: int,
    row: RowMapping | None,
) -> None:
    """Write a new or changed trial, whose job is locked."""
    running = not trial.status.finished
    values = {
        "trial": trial.trial,
        "uuid": trial.uuid,
        "job": trial.job,
        "changed": changes,
        "status": trial.status.value,
        "lease_until": now_s() + LEASE_S if running else None,
        "trained": trial.time_s is not None or bool(trial.steps),
        "energy_source": None if trial.energy_source is None else trial.energy_source.value,
        "currency": None if trial.currency is None else trial.currency[:64],
        **{name: _addable(getattr(trial, name)) for name in _SUMMED},
        "record": json.dumps(record),
    }
    if row is None:
        connection.execute(sa.insert(TRIALS).values(values))
    else:
        connection.execute(sa.update(TRIALS).where(TRIALS.c.number == row["number"]).values(values))
    connection.execute(sa.update(JOBS).where(JOBS.c.name == trial.job).values(changes=changes))


def _addable(amount: float | None) -> float | None:
    """Return an amount; ``None`` for one that is damaged and would make a sum overflow."""
    return amount if amount is not None and abs(amount) < _MOST else None


def _numbered(connection: Connection, trial: Trial) -> Trial:
    """Return a trial that began offline with the next number of its job."""
    query = sa.select(TRIALS.c.trial).where(TRIALS.c.job == trial.job)
    last = max((int(name.split("-")[-2]) for name in connection.scalars(query)), default=0)
    name = f"{trial.job}-{last + 1}-1"
    return replace(trial, trial=name, recurrence=last + 1, attempt=1)


def decode_trial(record: str) -> Trial:
    """Return the trial of a row; raises ``HistoryError`` if it is damaged."""
    try:
        return Trial.from_json(json.loads(record))
    except ValueError as error:
        raise HistoryError(f"the database contains a damaged trial: {error}") from error
