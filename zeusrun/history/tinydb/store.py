"""Histories in TinyDB files, one for each job."""

from __future__ import annotations

import hashlib
import re
import shlex
from contextlib import contextmanager, suppress
from itertools import chain, groupby
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import tinydb
from tinydb.storages import MemoryStorage

from zeusrun.clock import read_clock
from zeusrun.errors import HistoryError
from zeusrun.files.private import replace_file
from zeusrun.history import rules
from zeusrun.history.base import History, Snapshot
from zeusrun.history.tinydb import storage
from zeusrun.history.turns import Turns
from zeusrun.job_name import check_job_name, is_job_name
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from zeusrun.history.base import Restoration
    from zeusrun.history.turns import Turn
    from zeusrun.trial import Outcome

_LEAVE_S = 1.0  # to give a turn back; else it expires
_FILE = re.compile(r"(?P<job>.+)(\.json(\.bak)?|\.volumes)")

# Trials by record number, of the main file in one version and of volumes after so many changes.
Cache: TypeAlias = dict[str | tuple[storage.Volume, int], dict[int, Trial]]


def open_in(home: Path) -> TinyDBHistory:
    """Open the history in the files of a home."""
    return TinyDBHistory(home / "history")


class TinyDBHistory(History):
    """A ``History`` as ``<directory>/<job>.json``, shared by any number of processes.

    Readers take no lock: a file is replaced whole or not at all. The oldest trials move into
    ``<directory>/<job>.volumes``, in files of ``volume_trials`` each. The first write makes the
    directory. A writer waits up to ``lock_timeout_s`` for other writers.
    """

    def __init__(
        self,
        directory: Path,
        *,
        lock_timeout_s: float = 60.0,
        volume_trials: int = storage.VOLUME_TRIALS,
    ) -> None:
        # Absolute, because messages contain commands that are typed somewhere else.
        self._directory = Path(directory).absolute()
        self._lock_timeout_s = lock_timeout_s
        self._volume_trials = volume_trials
        self._caches: dict[str, Cache] = {}  # a command reads the same files several times

    def jobs(self) -> list[str]:
        """See ``History.jobs``. A job counts even if only copies or volumes are left of it."""
        with storage.explained("list", self._directory):
            try:
                names = [entry.name for entry in self._directory.iterdir()]
            except FileNotFoundError:
                return []
        jobs = {match["job"] for name in names if (match := _FILE.fullmatch(name))}
        return sorted(filter(is_job_name, jobs))

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

    def ask_turn(self, job: str, number: int = 0) -> Turn:
        """See ``History.ask_turn``."""
        turn = self._read_turns(job).find(number)
        if turn is None:
            with self._locked(job), self._changed_turns(job) as turns:
                turn = turns.ask(number)
        return turn

    def leave_turn(self, job: str, number: int) -> None:
        """See ``History.leave_turn``."""
        with storage.locked(self._path(job), _LEAVE_S), self._changed_turns(job) as turns:
            turns.use(number)

    def begin(self, trial: Trial, *, after: str, turn: int = 0) -> Trial:
        """See ``History.begin``."""
        rules.check_new(trial)
        rules.encode_trial(trial)  # refuse it before the first write makes the directory
        job = trial.job
        with self._locked(job), self._read(job) as stored:
            turns = self._read_turns(job)
            if turn and not turns.use(turn):
                raise rules.not_its_turn(job, turn)
            if stored.is_stale(after):
                raise rules.changed(job)
            known = stored.find(trial.trial)
            rules.check_id(trial, known)
            stored.store([(trial, known)], self._volume_trials)
            if turn:
                with suppress(HistoryError):  # the trial is stored, and the turn expires
                    self._write_turns(job, turns)
        return trial

    def finish(self, trial: str, outcome: Outcome) -> Trial:
        """See ``History.finish``."""
        return self._change(trial, lambda known: known.finish(outcome))

    def forget(self, trial: str, *, forgotten: bool) -> Trial:
        """See ``History.forget``."""
        return self._change(trial, lambda known: known.forget(forgotten=forgotten))

    def add(self, trials: Sequence[Trial]) -> list[Trial]:
        """See ``History.add``."""
        for trial in trials:
            rules.check_numbers(trial, trial.job)
            rules.encode_trial(trial)
        added = []
        for job, of_job in groupby(trials, key=lambda trial: trial.job):
            with self._locked(job), self._read(job) as stored:
                pairs = [(trial, stored.find(trial.trial)) for trial in of_job]
                new = [pair for pair in pairs if rules.is_superseded(pair[1], pair[0])]
                stored.store(new, self._volume_trials)
                written = {trial.trial: trial for trial, _ in new}
                added += [written.get(trial.trial) or known or trial for trial, known in pairs]
        return added

    def restore(self, job: str, found: Sequence[Trial]) -> Restoration:
        """See ``History.restore``, and ``zeusrun.history.tinydb.restore``."""
        from zeusrun.history.tinydb.restore import restore  # noqa: PLC0415 - few need it

        with self._locked(job):
            return restore(self._path(job), job, found, self._volume_trials)

    def _path(self, job: str) -> Path:
        check_job_name(job)
        return self._directory / f"{job}.json"

    def _read_turns(self, job: str) -> Turns:
        try:
            content = storage.read_bytes(storage.turns_path(self._path(job)))
        except storage.DamagedError:  # no file: the next write replaces it
            content = None
        return Turns(content, read_clock())

    @contextmanager
    def _changed_turns(self, job: str) -> Iterator[Turns]:
        """Change the turns of a job, whose lock is held; an error in between changes nothing."""
        turns = self._read_turns(job)
        yield turns
        self._write_turns(job, turns)

    def _write_turns(self, job: str, turns: Turns) -> None:
        path = storage.turns_path(self._path(job))
        with storage.explained("write", path):
            replace_file(path, turns.text.encode(), durable=False)

    def _locked(self, job: str) -> AbstractContextManager[None]:
        return storage.locked(self._path(job), self._lock_timeout_s)

    @contextmanager
    def _read(self, job: str) -> Iterator[StoredTrials]:
        path = self._path(job)
        try:
            yield StoredTrials(path, job, self._caches.setdefault(job, {}))
        except storage.DamagedError as damage:
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
            stored.store([(changed, known)], self._volume_trials)
        return changed


class StoredTrials:
    """The trials of a job. No volume changes its trials, so all reads are of one moment.

    Every method that reads a volume raises ``DamagedError`` if the volume is damaged.

    Attributes:
        version: A hash of the main file, and what choices are based on. A time stamp could be the
            same after two fast writes.
        main: The trials of the main file by record number.
    """

    def __init__(self, path: Path, job: str, cache: Cache) -> None:
        """Read the main file of a job; a history without any file has no trials.

        Raises:
            DamagedError: If the main file is damaged, or missing although other files of the
                history exist: its trials are then unknown, which is not the same as none.
            HistoryError: If a later version wrote it, or the disk refuses.
        """
        with storage.explained("read", path):  # before the main file: others may write meanwhile
            expected = storage.copy_path(path).exists() or bool(storage.stored_volumes(path))
        data = storage.read_bytes(path)
        fresh = data is None and not expected
        self._tables = storage.empty_tables() if fresh else storage.read_tables(path, data)
        content = hashlib.blake2b(data or b"", digest_size=16).hexdigest()
        self.version = f"{content}:{storage.read_basis(self._tables)}"
        self._header = storage.read_header(self._tables)
        main = cache.get(content)  # decoding takes most of a read
        if main is None:
            for old in [key for key in cache if isinstance(key, str)]:
                cache.pop(old, None)
            main = cache[content] = _by_number(self._tables, job)
        self.main = main
        self._path, self._job, self._cache = path, job, cache
        self._numbers = {trial.trial: number for number, trial in self.main.items()}
        self._ids = {number: trial for trial, number in self._numbers.items()}

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self.main) + sum(volume.trials for volume in self._header.volumes)

    def is_stale(self, version: str) -> bool:
        """Whether a choice from a snapshot with this version is stale."""
        return version.partition(":")[2] != storage.read_basis(self._tables)

    def newest(self, last: int | None) -> list[Trial]:
        """Return the newest ``last`` trials, oldest first; ``None`` for all."""
        known = dict(self.main)
        for count in range(len(self._header.volumes), 0, -1):
            unread = self._header.volumes[:count]
            edge = max(volume.last_record for volume in unread)
            if last is not None and sum(number > edge for number in known) >= last:
                break
            known |= self._read_volume(unread[-1])
        trials = [known[number] for number in sorted(known)]
        return trials[0 if last is None else max(0, len(trials) - last) :]

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id; ``None`` if there is none."""
        recurrence = int(trial.split("-")[-2])
        volumes = (
            self._read_volume(volume)
            for volume in reversed(self._header.volumes)
            if volume.first_recurrence <= recurrence <= volume.last_recurrence
        )
        found = (each for trials in chain([self.main], volumes) for each in trials.values())
        return next((each for each in found if each.trial == trial), None)

    def store(self, pairs: Sequence[tuple[Trial, Trial | None]], volume_trials: int) -> None:
        """Write new or changed trials, each with what ``find`` returned for its id.

        The caller holds the lock. Call it once. It raises what ``encode_trial`` and ``write_main``
        raise.
        """
        records = [rules.encode_trial(trial) for trial, _ in pairs]
        if any(rules.makes_stale(trial, known) for trial, known in pairs):
            storage.renew_basis(self._tables)
        memory = MemoryStorage()  # type: ignore[no-untyped-call]
        memory.write(self._tables)  # TinyDB changes the tables in place
        table = tinydb.TinyDB(storage=lambda: memory).table("trials")
        for (trial, known), record in zip(pairs, records, strict=True):
            if known is not None and (number := self._numbers[trial.trial]) in self.main:
                table.update(record, doc_ids=[number])
            elif known is not None:
                self._update_volume(number, record)
        table.insert_multiple(
            record for (_, known), record in zip(pairs, records, strict=True) if known is None
        )
        kept = storage.copy_path(self._path)
        storage.write_main(self._path, self._tables, volume_trials, kept=kept)

    def _update_volume(self, number: int, record: dict[str, object]) -> None:
        volume = next(v for v in self._header.volumes if number in self._read_volume(v)).number
        tables = storage.read_volume(self._path, volume)
        tables["trials"][str(number)] |= record
        content = storage.encode_tables(tables)
        with storage.explained("write", self._path):
            storage.write_volume(self._path, volume, content)
        self._cache.clear()
        # The main file then has another version, and other processes read the volume again.
        storage.set_header(self._tables, self._header._replace(changes=self._header.changes + 1))

    def _read_volume(self, volume: storage.Volume) -> dict[int, Trial]:
        path, key = storage.volume_path(self._path, volume.number), (volume, self._header.changes)
        if key not in self._cache:
            try:
                tables = storage.read_volume(self._path, volume.number)
                self._cache[key] = _by_number(tables, self._job)
            except storage.DamagedError as damage:
                raise storage.DamagedError(f"its volume {path}: {damage}") from damage
        trials = self._cache[key]
        if len(trials) != volume.trials or any(
            self._numbers.setdefault(trial.trial, number) != number
            or self._ids.setdefault(number, trial.trial) != trial.trial
            for number, trial in trials.items()
        ):
            raise storage.DamagedError(
                f"its volume {path} lacks trials, or another file has them, too"
            )
        return trials


def _by_number(tables: storage.Tables, job: str) -> dict[int, Trial]:
    trials = storage.decode_trials(tables["trials"].values(), job)
    return dict(zip(map(int, tables["trials"]), trials, strict=True))
