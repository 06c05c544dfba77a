"""The local copy of a shared history: it reads only what has changed, and is there offline."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from typing import TYPE_CHECKING, NamedTuple

from zeusrun.clock import read_clock
from zeusrun.errors import HistoryError
from zeusrun.files.private import check_version, make_folder, open_for_writing
from zeusrun.history import rules
from zeusrun.history.base import NEWEST, Snapshot
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from zeusrun.history.base import Changes

_VERSION = 1
_FRESH_S = 60.0  # how exactly the copy says when it was read
_WAIT_S = 30.0  # for another process, which writes for milliseconds
_TABLES = """
CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, version TEXT, total INTEGER, read_at REAL);
CREATE TABLE IF NOT EXISTS trials (
    job TEXT, recurrence INTEGER, attempt INTEGER, trial TEXT, uuid TEXT, record TEXT,
    PRIMARY KEY (job, recurrence, attempt)
);
CREATE INDEX IF NOT EXISTS trials_trial ON trials (trial);
CREATE INDEX IF NOT EXISTS trials_uuid ON trials (uuid);
"""
_NEWEST_FIRST = "ORDER BY recurrence DESC, attempt DESC"


class CopyError(HistoryError):
    """The local copy cannot be used."""


class CopyState(NamedTuple):
    """What the copy has of a job: the ``copied`` newest of ``total`` trials, as of ``version``.

    ``read_at``: the history was like this then, in Unix seconds, and perhaps for a minute after.
    """

    version: str
    total: int
    copied: int
    read_at: float

    def has(self, last: int | None) -> bool:
        """Whether the copy has the newest ``last`` trials; ``None`` for all."""
        return self.copied >= (self.total if last is None else min(last, self.total))


class LocalCopy:
    """The newest trials of the jobs of one server, in one file; safe for threads and processes.

    A damaged file is removed, because everything can be copied again. A copy that cannot be used is
    none: only ``update`` raises ``CopyError``.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoded: dict[str, tuple[str, Trial]] = {}  # by id, with the record

    def update(
        self, job: str, last: int | None, fetch: Callable[[str | None, int | None], Changes]
    ) -> Snapshot:
        """Fetch what has changed; return the newest ``last`` trials of a job as they are then.

        ``fetch`` takes a version and how many trials to return, as ``Shared.changes`` does.
        """
        count = None if last is None else max(last, NEWEST)
        while True:
            with self._open() as file:
                before = _state(file, job)
            known = before if before is not None and before.has(count) else None
            found = fetch(None if known is None else known.version, count)
            changed, now = known is None or found.version != known.version, read_clock()
            write = changed or known is None or abs(now - known.read_at) > _FRESH_S
            with self._open(write=write) as file:
                if _state(file, job) != before:
                    continue  # another process was faster
                if changed:
                    _store(file, job, found, before)
                if write:
                    file.execute("UPDATE jobs SET read_at = ? WHERE job = ?", (now, job))
                return Snapshot(tuple(self._newest(file, job, last)), found.version)

    def jobs(self) -> list[str]:
        """Return the names of the jobs that have a copy, sorted."""
        with contextlib.suppress(CopyError), self._open() as file:
            rows = file.execute("SELECT job FROM jobs WHERE total > 0 ORDER BY job")
            return [job for (job,) in rows]
        return []

    def snapshot(self, job: str, last: int | None) -> Snapshot | None:
        """Return the newest trials of a job as they were; ``None`` without a copy."""
        with contextlib.suppress(CopyError), self._open() as file:
            state = _state(file, job)
            if state is not None:
                return Snapshot(tuple(self._newest(file, job, last)), state.version, offline=True)
        return None

    def state(self, job: str) -> CopyState | None:
        """Return what the copy has of a job; ``None`` without a copy."""
        with contextlib.suppress(CopyError), self._open() as file:
            return _state(file, job)
        return None

    def find(self, name: str) -> Trial | None:
        """Return a trial by its id or uuid, or by the id that it had offline."""
        where, value = "trial = ?", name
        if rules.is_uuid(name):
            where = "uuid = ?"
        elif rules.offline_job(name) is not None:
            where, value = "uuid >= ? ORDER BY uuid", name[-8:]
        with contextlib.suppress(CopyError), self._open() as file:
            query = f"SELECT trial, record FROM trials WHERE {where} LIMIT 1"  # noqa: S608 - one of three
            for row in file.execute(query, (value,)):
                found = self._decode(*row)
                if name in {found.trial, found.uuid, rules.offline_name(found.job, found.uuid)}:
                    return found
        return None

    def _newest(self, file: sqlite3.Connection, job: str, last: int | None) -> list[Trial]:
        query = f"SELECT trial, record FROM trials WHERE job = ? {_NEWEST_FIRST} LIMIT ?"  # noqa: S608
        rows = file.execute(query, (job, -1 if last is None else last)).fetchall()
        return [self._decode(*row) for row in reversed(rows)]

    def _decode(self, trial: str, record: str) -> Trial:
        known = self._decoded.get(trial)
        if known is None or known[0] != record:
            known = self._decoded[trial] = record, Trial.from_json(json.loads(record))
        return known[1]

    @contextlib.contextmanager
    def _open(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """Open the file in a transaction; raises ``CopyError`` if that is impossible."""
        try:
            make_folder(self._path.parent)
            os.close(open_for_writing(self._path, os.O_RDWR | os.O_CREAT))
            with self._connected(write=write) as file:
                yield file
        except (OSError, sqlite3.OperationalError) as error:  # full, read-only, locked
            raise CopyError(f"{self._path} cannot be used: {error}") from error
        except (sqlite3.DatabaseError, ValueError) as error:
            with contextlib.suppress(OSError):
                self._path.unlink()
            raise CopyError(f"{self._path} was damaged, and is removed: {error}") from error

    @contextlib.contextmanager
    def _connected(self, *, write: bool) -> Iterator[sqlite3.Connection]:
        file = sqlite3.connect(self._path, timeout=_WAIT_S, isolation_level=None)
        with contextlib.closing(file):
            (version,) = file.execute("PRAGMA user_version").fetchone()
            if version == 0:  # a new file
                file.execute("BEGIN EXCLUSIVE")
                for statement in filter(str.strip, _TABLES.split(";")):
                    file.execute(statement)
                file.execute(f"PRAGMA user_version = {_VERSION}")
                file.execute("COMMIT")
            else:
                check_version({"version": version}, _VERSION, self._path, CopyError)
            file.execute("PRAGMA synchronous = NORMAL")
            file.execute("BEGIN IMMEDIATE" if write else "BEGIN")
            yield file
            file.execute("COMMIT")


def _state(file: sqlite3.Connection, job: str) -> CopyState | None:
    query = (
        "SELECT version, total, (SELECT count(*) FROM trials WHERE job = ?1), read_at "
        "FROM jobs WHERE job = ?1"
    )
    row = file.execute(query, (job,)).fetchone()
    return None if row is None else CopyState(*row)


def _store(file: sqlite3.Connection, job: str, found: Changes, before: CopyState | None) -> None:
    """Store what has changed; older trials than the copy has stay out of it."""
    oldest = (0, 0)
    if before is None or found.whole:
        file.execute("DELETE FROM trials WHERE job = ?", (job,))
    elif before.copied < before.total:
        query = f"SELECT recurrence, attempt FROM trials WHERE job = ? {_NEWEST_FIRST}"  # noqa: S608
        oldest = file.execute(f"{query} LIMIT 1 OFFSET ?", (job, before.copied - 1)).fetchone()
    rows = [
        (job, *rules.place_of(trial), trial.trial, trial.uuid, json.dumps(trial.to_json()))
        for trial in found.trials
        if rules.place_of(trial) >= oldest
    ]
    file.executemany("INSERT OR REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?)", rows)
    file.execute(
        "INSERT OR REPLACE INTO jobs VALUES (?, ?, ?, 0)", (job, found.version, found.total)
    )
