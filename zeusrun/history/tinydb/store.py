"""Histories in TinyDB files, one for each job."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
from zeusrun.history import rules
from zeusrun.history.base import Snapshot
from zeusrun.history.schema import DamagedError, encode_trial
from zeusrun.history.tinydb.restore import Restoration, restore
from zeusrun.history.tinydb.storage import explained, locked
from zeusrun.history.tinydb.stored import Cache, StoredTrials
from zeusrun.history.tinydb.volumes import VOLUME_TRIALS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from contextlib import AbstractContextManager

    from zeusrun.trial import Outcome, Trial

_FILE = re.compile(r"(?P<job>.+)(\.json(\.bak)?|\.volumes)")


class TinyDBHistory:
    """A ``History`` as ``<directory>/<job>.json``, shared by any number of processes.

    Readers take no lock: a file is replaced whole or not at all. The oldest trials move into
    ``<directory>/<job>.volumes``, so that a read or a write does not slow down as they accumulate.

    Args:
        directory: Made with mode 0700 by the first write; the files have mode 0600.
        lock_timeout_s: Seconds to wait for other writers.
        volume_trials: Trials in a volume; two volumes' worth of finished ones stay out of them.
    """

    def __init__(
        self, directory: Path, *, lock_timeout_s: float = 60.0, volume_trials: int = VOLUME_TRIALS
    ) -> None:
        # Absolute, because messages contain commands that are typed somewhere else.
        self._directory = Path(directory).absolute()
        self._lock_timeout_s = lock_timeout_s
        self._volume_trials = volume_trials
        self._caches: dict[str, Cache] = {}  # a submit reads the same volumes several times

    def jobs(self) -> list[str]:
        """See ``History.jobs``. A job counts even if only copies or volumes are left of it."""
        with explained("list", self._directory):
            try:
                names = [entry.name for entry in self._directory.iterdir()]
            except FileNotFoundError:
                return []
        jobs = {match["job"] for name in names if (match := _FILE.fullmatch(name))}
        return sorted(filter(rules.is_job_name, jobs))

    def trials(self, job: str, last: int | None = None) -> list[Trial]:
        """See ``History.trials``."""
        return list(self.snapshot(job, last).trials)

    def count(self, job: str) -> int:
        """See ``History.count``."""
        with self._read(job) as stored:
            return stored.count

    def unfinished(self, job: str) -> list[Trial]:
        """See ``History.unfinished``."""
        with self._read(job) as stored:  # only finished trials are in volumes
            return [trial for trial in stored.main.values() if not trial.status.finished]

    def find(self, trial: str) -> Trial | None:
        """See ``History.find``."""
        job = rules.job_of(trial)
        if job is None:
            return None
        with self._read(job) as stored:
            return stored.find(trial)

    def snapshot(self, job: str, last: int | None = None) -> Snapshot:
        """See ``History.snapshot``."""
        with self._read(job) as stored:
            return Snapshot(tuple(stored.newest(last)), stored.version)

    def begin(self, trial: Trial, *, after: str) -> Trial:
        """See ``History.begin``."""
        rules.check_new(trial)
        encode_trial(trial)  # refuse it before the first write makes the directory
        with self._locked(trial.job), self._read(trial.job) as stored:
            if stored.version != after:
                raise rules.changed(trial.job)
            known = stored.find(trial.trial)
            rules.check_id(trial, known)
            stored.store(trial, known, self._volume_trials)
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, lambda known: known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, lambda known: known.forget(forgotten=forgotten))

    def restore(self, job: str, found: Iterable[Trial]) -> Restoration:
        """Rebuild a job's history; see ``zeusrun.history.tinydb.restore.restore``."""
        with self._locked(job):
            return restore(self._path(job), job, found, self._volume_trials)

    def _path(self, job: str) -> Path:
        rules.check_job_name(job)
        return self._directory / f"{job}.json"

    def _locked(self, job: str) -> AbstractContextManager[None]:
        return locked(self._path(job), self._lock_timeout_s)

    @contextmanager
    def _read(self, job: str) -> Iterator[StoredTrials]:
        path = self._path(job)
        try:
            yield StoredTrials(path, job, self._caches.setdefault(job, {}))
        except DamagedError as damage:
            raise HistoryError(
                f"the history {path} is damaged: {damage}; `zeusrun repair --restore "
                f"{shlex.quote(job)}` sets aside what is damaged and rebuilds the history from its "
                "last good copy and the run directories"
            ) from damage

    def _change(self, trial: str, change: Callable[[Trial], Trial]) -> Trial:
        job = rules.job_of(trial)
        if job is None or job not in self.jobs():  # before a lock would make the directory
            raise rules.unknown_trial(trial)
        with self._locked(job), self._read(job) as stored:
            known = stored.find(trial)
            if known is None:
                raise rules.unknown_trial(trial)
            changed = change(known)
            stored.store(changed, known, self._volume_trials)
        return changed
