"""The trials of a job at one moment: its main file, and volumes as they are needed."""

from __future__ import annotations

import hashlib
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import tinydb
from tinydb.storages import MemoryStorage

from zeusrun.history.rules import recurrence_of
from zeusrun.history.schema import (
    DamagedError,
    Tables,
    decode_trials,
    empty_tables,
    encode_tables,
    encode_trial,
)
from zeusrun.history.tinydb.storage import (
    copy_path,
    explained,
    read_bytes,
    read_tables,
    stored_volumes,
    volume_path,
    write_main,
    write_volume,
)
from zeusrun.history.tinydb.volumes import Volume, read_header, set_header
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from pathlib import Path

# The trials of volumes by record number. The key changes with each change of a volume.
Cache: TypeAlias = dict[tuple[Volume, int], dict[int, Trial]]


class StoredTrials:
    """The trials of a job. No volume changes its trials, so all reads are of one moment.

    Every method that reads a volume raises ``DamagedError`` if the volume is damaged.

    Attributes:
        version: A hash of the main file. A time stamp can be the same after two fast writes, and a
            counter after somebody put an old file back.
        main: The trials of the main file by record number.
    """

    def __init__(self, path: Path, job: str, cache: Cache) -> None:
        """Read the main file; a history without any file has no trials.

        Args:
            path: The main file.
            job: Whose it is.
            cache: The volumes of this job that were read before; it takes those read now.

        Raises:
            DamagedError: If the main file is damaged, or missing although other files of the
                history exist: what was learned is then unknown, which is not the same as nothing.
            HistoryError: If a later version wrote it, or the disk refuses.
        """
        with explained("read", path):  # first, or another process's first writes could intervene
            expected = copy_path(path).exists() or bool(stored_volumes(path))
        data = read_bytes(path)
        self._tables = read_tables(path, data) if data is not None or expected else empty_tables()
        self.version = hashlib.blake2b(data or b"", digest_size=16).hexdigest()
        self._header = read_header(self._tables)
        self.main = _by_number(self._tables, job)
        self._path, self._job, self._cache = path, job, cache
        self._numbers = {trial.trial: number for number, trial in self.main.items()}
        self._ids = {number: trial for trial, number in self._numbers.items()}

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self.main) + sum(volume.trials for volume in self._header.volumes)

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
        recurrence = recurrence_of(trial) or 0
        volumes = (
            self._read_volume(volume)
            for volume in reversed(self._header.volumes)
            if volume.first_recurrence <= recurrence <= volume.last_recurrence
        )
        found = (each for trials in chain([self.main], volumes) for each in trials.values())
        return next((each for each in found if each.trial == trial), None)

    def store(self, trial: Trial, known: Trial | None, volume_trials: int) -> None:
        """Write a new or changed trial. The caller holds the lock; call it once.

        Args:
            trial: The trial.
            known: The trial that ``find`` returned for its id.
            volume_trials: Trials in a volume.

        Raises:
            DamagedError: If the files cannot be written as they were read.
            HistoryError: If the disk refuses.
            ValueError: If the trial would not read back equal.
        """
        record = encode_trial(trial)
        memory = MemoryStorage()  # type: ignore[no-untyped-call]
        memory.write(self._tables)  # TinyDB changes the tables in place
        table = tinydb.TinyDB(storage=lambda: memory).table("trials")
        if known is None:
            table.insert(record)
        elif self._numbers[trial.trial] in self.main:
            table.update(record, doc_ids=[self._numbers[trial.trial]])
        else:
            self._update_volume(self._numbers[trial.trial], record)
        write_main(self._path, self._tables, volume_trials, kept=copy_path(self._path))

    def _update_volume(self, number: int, record: dict[str, object]) -> None:
        volume = next(v for v in self._header.volumes if number in self._read_volume(v))
        path = volume_path(self._path, volume.number)
        tables = read_tables(path, read_bytes(path))
        tables["trials"][str(number)] |= record
        with explained("write", path):
            write_volume(self._path, volume.number, encode_tables(tables))
        self._cache.clear()
        # The main file then has another version, and other processes read the volume again.
        set_header(self._tables, self._header._replace(changes=self._header.changes + 1))

    def _read_volume(self, volume: Volume) -> dict[int, Trial]:
        path, key = volume_path(self._path, volume.number), (volume, self._header.changes)
        if key not in self._cache:
            try:
                self._cache[key] = _by_number(read_tables(path, read_bytes(path)), self._job)
            except DamagedError as damage:
                raise DamagedError(f"its volume {path}: {damage}") from damage
        trials = self._cache[key]
        if len(trials) != volume.trials or any(
            self._numbers.setdefault(trial.trial, number) != number
            or self._ids.setdefault(number, trial.trial) != trial.trial
            for number, trial in trials.items()
        ):
            raise DamagedError(f"its volume {path} lacks trials, or another file has them, too")
        return trials


def _by_number(tables: Tables, job: str) -> dict[int, Trial]:
    trials = decode_trials(tables["trials"].values(), job)
    return dict(zip(map(int, tables["trials"]), trials, strict=True))
