"""The jobs that Zeus's clients have registered, in the database of a shared history."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import sqlalchemy as sa

from zeusrun.history.sql.engine import now_s, reading, write
from zeusrun.history.sql.schema import ZEUS_JOBS

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine


class ZeusJob(NamedTuple):
    """A registered job: its id, the name of its history, and its settings as plain JSON."""

    job_id: str
    job: str
    settings: dict[str, Any]


class ZeusJobs:
    """The table ``zeus_jobs``. Every method raises ``HistoryError`` if the database fails."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def find(self, job_id: str | None = None, *, job: str | None = None) -> ZeusJob | None:
        """Return the job with this id, or whose history has this name; ``None``: there is none."""
        which = ZEUS_JOBS.c.job_id == job_id if job is None else ZEUS_JOBS.c.job == job
        query = sa.select(ZEUS_JOBS.c.job_id, ZEUS_JOBS.c.job, ZEUS_JOBS.c.settings).where(which)
        with reading(self._engine) as connection:
            row = connection.execute(query).first()
        return None if row is None else ZeusJob(row.job_id, row.job, json.loads(row.settings))

    def add(self, new: ZeusJob) -> bool:
        """Register a job durably; ``False`` if its id or the name of its history is taken."""
        values = {"job_id": new.job_id, "job": new.job, "settings": json.dumps(new.settings)}

        def work(connection: Connection) -> bool:
            try:
                with connection.begin_nested():
                    connection.execute(sa.insert(ZEUS_JOBS).values(**values, created_at=now_s()))
            except sa.exc.IntegrityError:
                return False
            return True

        return write(self._engine, work)

    def change(self, job_id: str, settings: dict[str, Any]) -> None:
        """Replace the settings of a job; nothing happens if it is not registered."""
        update = sa.update(ZEUS_JOBS).where(ZEUS_JOBS.c.job_id == job_id)
        changed = update.values(settings=json.dumps(settings))
        write(self._engine, lambda connection: connection.execute(changed))

    def remove(self, job_id: str) -> bool:
        """Remove a job, not its history; ``False`` if it is not registered."""
        delete = sa.delete(ZEUS_JOBS).where(ZEUS_JOBS.c.job_id == job_id)
        return write(self._engine, lambda connection: bool(connection.execute(delete).rowcount))
