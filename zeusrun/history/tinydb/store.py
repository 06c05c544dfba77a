"""Histories in TinyDB files, one a job. The only module that imports ``tinydb``."""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tinydb

from zeusrun.history.base import Snapshot
from zeusrun.history.rules import (
    changed,
    check_id,
    check_last,
    check_new,
    job_of,
    unknown_trial,
)
from zeusrun.history.schema import DamagedError, Tables, encode_trial
from zeusrun.history.tinydb.restore import Restoration, build_refusal, plan_restore
from zeusrun.history.tinydb.storage import explained, keep_aside, locked, set_aside
from zeusrun.history.tinydb.stored import StoredTrials, write_tables
from zeusrun.history.tinydb.volumes import VOLUME_TRIALS
from zeusrun.job_name import check_job_name, is_job_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from tinydb.table import Table

    from zeusrun.history.tinydb.stored import Sealed
    from zeusrun.trial import Outcome, Trial

_FILE = re.compile(r"(?P<job>.+)(\.json(\.bak)?|\.volumes)")


class TinyDBHistory:
    """A ``History`` as ``<directory>/<job>.json``, shared by any number of processes.

    Readers take no lock: a file is replaced whole or not at all. The oldest trials move into
    ``<directory>/<job>.volumes``, and what a read or a write takes does not grow with their number.

    Args:
        directory: Made with mode 0700 by the first write; the files have mode 0600.
        lock_timeout_s: Seconds to wait for another writer before giving up.
        volume_trials: Trials in a volume; two volumes' worth of finished ones stay out of them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lock_timeout_s: float = 30.0,
        volume_trials: int = VOLUME_TRIALS,
    ) -> None:
        # Absolute, because messages hold commands that are typed somewhere else.
        self._directory = Path(directory).absolute()
        self._lock_timeout_s = lock_timeout_s
        self._volume_trials = volume_trials
        self._sealed: dict[str, Sealed] = {}  # a submit reads the same volumes several times

    def jobs(self) -> list[str]:
        """See ``History.jobs``. A job of which only copies or volumes are left is one, too."""
        with explained("list", self._directory):
            try:
                names = [entry.name for entry in self._directory.iterdir()]
            except FileNotFoundError:
                return []
        jobs = {match["job"] for name in names if (match := _FILE.fullmatch(name))}
        return sorted(filter(is_job_name, jobs))

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``; waits only where it has to set a damaged file aside."""
        check_last(last)
        return self._look(job).newest(last)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        return self._look(job).count

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``; only what has ended is ever in a volume."""
        return [trial for trial in self._look(job).main.values() if not trial.status.finished]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        job = job_of(trial)
        return None if job is None else self._look(job).find(trial)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``; waits only where it has to set a damaged file aside."""
        check_last(last)
        stored = self._look(job)
        return Snapshot(tuple(stored.newest(last)), stored.version)

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``."""
        check_new(trial)
        record = encode_trial(trial)
        with self._transaction(trial.job) as (stored, table):
            if stored.version != after:
                raise changed(trial.job)
            known = stored.find(trial.trial)
            check_id(trial, known)
            if known is None:
                table.insert(record)
            else:
                table.update(record, doc_ids=[stored.number(known)])
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        with self._known(trial) as (known, stored, table):
            finished = known.finish(outcome)
            table.update(encode_trial(finished), doc_ids=[stored.number(known)])
            return finished

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``; the volume that a trial may be in is written again."""
        with self._known(trial) as (known, stored, table):
            marked, number = known.forget(forgotten=forgotten), stored.number(known)
            if number in stored.main:
                table.update({"forgotten": forgotten}, doc_ids=[number])
            else:
                stored.update_sealed(known, {"forgotten": forgotten})
            return marked

    def restore(self, job: str, found: Iterable[Trial]) -> Restoration:
        """Rebuild a job's history from the newest state that reads, its volumes and its runs.

        The history that is there is kept beside it, whether it reads or not.

        Args:
            job: The job's name.
            found: The trials that the run directories hold. Of two records of a trial, the one
                that knows how it ended holds.

        Raises:
            HistoryError: If the history is of a later version, or the disk refuses. The history is
                then as it was, or restored already.
        """
        path = self._path(job)
        with locked(path, self._lock_timeout_s), explained("restore", path):
            plan = plan_restore(path, job, found)
            aside = plan.restoration.aside
            if plan.worth_keeping is not None:
                aside = keep_aside(path, "replaced" if plan.worth_keeping else "corrupt")
            write_tables(path, plan.tables, self._volume_trials, keep=bool(plan.worth_keeping))
            for volume in plan.damaged:
                set_aside(volume)
        return replace(plan.restoration, aside=aside)

    def _path(self, job: str) -> Path:
        check_job_name(job)
        return self._directory / f"{job}.json"

    def _look(self, job: str) -> StoredTrials:
        path = self._path(job)
        try:
            return self._read(path, job)
        except DamagedError:
            # Read again under the lock: another process may be setting it aside right now.
            with self._locked(path, job):
                return self._read(path, job)

    def _read(self, path: Path, job: str) -> StoredTrials:
        return StoredTrials(path, job, self._sealed.setdefault(job, {}))

    @contextmanager
    def _transaction(self, job: str) -> Iterator[tuple[StoredTrials, Table]]:
        """Read the history, and write what has become of its table, as one step."""
        path = self._path(job)
        with self._locked(path, job):
            stored = self._read(path, job)
            memory = _Memory(stored.tables)
            yield stored, tinydb.TinyDB(storage=lambda: memory).table("trials")
            write_tables(path, memory.tables, self._volume_trials)

    @contextmanager
    def _known(self, trial: str) -> Iterator[tuple[Trial, StoredTrials, Table]]:
        """Read the history of a trial that there is, as ``_transaction`` does."""
        job = job_of(trial)
        if job is None or job not in self.jobs():
            raise unknown_trial(trial)
        with self._transaction(job) as (stored, table):
            known = stored.find(trial)
            if known is None:
                raise unknown_trial(trial)
            yield known, stored, table

    @contextmanager
    def _locked(self, path: Path, job: str) -> Iterator[None]:
        with locked(path, self._lock_timeout_s):
            try:
                yield
            except DamagedError as damage:
                raise build_refusal(path, job, damage) from damage


class _Memory(tinydb.Storage):
    """What TinyDB reads and writes within a transaction, which writes it to disk as one."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    def read(self) -> Tables:
        return self.tables

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        self.tables = data
