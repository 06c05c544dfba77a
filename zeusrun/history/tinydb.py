"""Histories in TinyDB files, one a job. The only module that imports ``tinydb``."""

from __future__ import annotations

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tinydb

from zeusrun.history.recovery import build_refusal, read_tables
from zeusrun.history.rules import (
    check_job_name,
    check_new,
    is_job_name,
    job_of,
    unknown_trial,
)
from zeusrun.history.schema import (
    DamagedError,
    Tables,
    decode_trials,
    encode_tables,
    encode_trial,
)
from zeusrun.history.storage import explained, locked, write_atomically

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tinydb.table import Table

    from zeusrun.trial import Outcome, Trial


class TinyDBHistory:
    """A ``History`` as ``<directory>/<job>.json``, shared by any number of processes.

    Readers take no lock: a file is replaced whole or not at all.

    Args:
        directory: Made with mode 0700 by the first write; the files have mode 0600.
        lock_timeout_s: Seconds to wait for another writer before giving up.
    """

    def __init__(self, directory: Path, *, lock_timeout_s: float = 30.0) -> None:
        # Absolute, because messages hold commands that are typed somewhere else.
        self._directory = Path(directory).absolute()
        self._lock_timeout_s = lock_timeout_s

    def jobs(self) -> list[str]:
        """See ``History.jobs``. A job of which only the copy is left is one, too."""
        with explained("list", self._directory):
            try:
                names = [entry.name for entry in self._directory.iterdir()]
            except FileNotFoundError:
                return []
        files = {name.removesuffix(".bak") for name in names}
        jobs = {name.removesuffix(".json") for name in files if name.endswith(".json")}
        return sorted(filter(is_job_name, jobs))

    def trials(self, job: str) -> list[Trial]:
        """See ``History.trials``; waits only where it has to set a damaged file aside."""
        path = self._path(job)
        try:
            return _read_trials(_open(path), job)
        except DamagedError:
            # Read again under the lock: another process may be setting it aside right now.
            with self._transaction(path, job) as (_, trials):
                return trials

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        job = job_of(trial)
        known = [] if job is None else self.trials(job)
        return next((candidate for candidate in known if candidate.trial == trial), None)

    def begin(self, job: str, dispatch: Callable[[list[Trial]], Trial]) -> Trial:
        """See ``History.begin``."""
        with self._transaction(self._path(job), job) as (table, earlier):
            trial = dispatch(list(earlier))
            check_new(trial, job, earlier)
            table.insert(encode_trial(trial))
            return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        job = job_of(trial)
        if job is None or job not in self.jobs():
            raise unknown_trial(trial)
        with self._transaction(self._path(job), job) as (table, trials):
            for document, known in zip(table.all(), trials, strict=True):
                if known.trial == trial:
                    finished = known.finish(outcome)
                    table.update(encode_trial(finished), doc_ids=[document.doc_id])
                    return finished
        raise unknown_trial(trial)

    def _path(self, job: str) -> Path:
        check_job_name(job)
        return self._directory / f"{job}.json"

    @contextmanager
    def _transaction(self, path: Path, job: str) -> Iterator[tuple[Table, list[Trial]]]:
        with locked(path, self._lock_timeout_s):
            try:
                table = _open(path)
                yield table, _read_trials(table, job)
            except DamagedError as damage:
                raise build_refusal(path, job, damage) from damage


class _FileStorage(tinydb.Storage):
    """What TinyDB reads and writes: the file as it was at first sight, whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tables: Tables | None = None

    def read(self) -> Tables:
        # TinyDB reads again before it writes; under the lock that is the same content.
        if self._tables is None:
            self._tables = read_tables(self._path)
        return self._tables

    def write(self, data: dict[str, dict[str, Any]]) -> None:
        content = encode_tables(data)
        with explained("write", self._path):
            write_atomically(self._path, content)


def _open(path: Path) -> Table:
    # One object for one transaction: TinyDB remembers the next number and queries across calls.
    return tinydb.TinyDB(path, storage=_FileStorage).table("trials")


def _read_trials(table: Table, job: str) -> list[Trial]:
    return decode_trials(table, job)
