"""The trials of a job as one look at the disk finds them: the main file, volumes when needed."""

from __future__ import annotations

import gc
import hashlib
import itertools
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from zeusrun.errors import HistoryError
from zeusrun.files.atomic import replace_file
from zeusrun.history.rules import recurrence_of
from zeusrun.history.schema import (
    DamagedError,
    NewerError,
    Tables,
    decode_tables,
    decode_trials,
    empty_tables,
    encode_tables,
)
from zeusrun.history.tinydb.storage import (
    copy_path,
    explained,
    restore_command,
    stored_volumes,
    volume_path,
    write_volumes,
)
from zeusrun.history.tinydb.volumes import (
    Volume,
    collect,
    count_changes,
    note_change,
    read_header,
    seal,
)
from zeusrun.trial import Trial

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The trials of volumes by record number. A volume that was changed has another key.
Sealed: TypeAlias = dict[tuple[Volume, int], dict[int, Trial]]


class StoredTrials:
    """What a history holds of a job. Volumes keep their trials, so one look sees one moment.

    Args:
        path: The main file.
        job: Whose it is.
        sealed: The volumes of this job that were read before; those read now are added.

    Attributes:
        tables: The main file.
        version: Another one after each change, of a volume too.
        main: Its trials by record number.

    Raises:
        DamagedError: If the main file is damaged. A volume that is raises ``HistoryError``, once it
            is needed.
    """

    def __init__(self, path: Path, job: str, sealed: Sealed) -> None:
        with _collection_paused():
            self.tables, self.version = read_tables(path)
            self.main = _by_number(self.tables, job)
        self._path, self._job = path, job
        self._volumes, _ = read_header(self.tables)
        self._changes = count_changes(self.tables)
        self._sealed = sealed
        self._numbers = {trial.trial: number for number, trial in self.main.items()}
        self._ids = {number: name for name, number in self._numbers.items()}

    def newest(self, last: int | None) -> list[Trial]:
        """Return the newest ``last`` trials, oldest first; ``None`` for all."""
        return collect(self.main, self._volumes, last, self._volume)

    @property
    def count(self) -> int:
        """How many trials there are."""
        return len(self.main) + sum(volume.trials for volume in self._volumes)

    def find(self, trial: str) -> Trial | None:
        """Return the trial with this id, looking first where the newest are."""
        places = itertools.chain([self.main], self._holding(trial))
        return next((t for trials in places for t in trials.values() if t.trial == trial), None)

    def number(self, trial: Trial) -> int:
        """Return the record number of a trial that was found."""
        return self._numbers[trial.trial]

    def update_sealed(self, trial: Trial, fields: dict[str, Any]) -> None:
        """Change fields of a trial that is in a volume.

        The caller holds the lock, and writes ``tables`` afterwards: they count the change, so that
        others read the volume again.

        Raises:
            HistoryError: If the disk refuses; the volume is then as it was.
        """
        number = self.number(trial)
        volume = next(v for v in self._volumes if number in self._volume(v))
        path = volume_path(self._path, volume.number)
        tables = read_volume(path)
        tables["trials"][str(number)] |= fields
        with explained("write", path):
            write_volumes(self._path, {volume.number: encode_tables(tables)})
        del self._sealed[volume, self._changes]
        note_change(self.tables)

    def _holding(self, trial: str) -> Iterator[dict[int, Trial]]:
        recurrence = recurrence_of(trial)
        for volume in reversed(self._volumes):
            if volume.first_recurrence <= recurrence <= volume.last_recurrence:
                yield self._volume(volume)

    def _volume(self, volume: Volume) -> dict[int, Trial]:
        path = volume_path(self._path, volume.number)
        try:
            key = volume, self._changes
            if key not in self._sealed:
                with _collection_paused():
                    self._sealed[key] = _by_number(read_volume(path), self._job)
            trials = self._sealed[key]
            self._check(volume, trials)
        except DamagedError as damage:
            raise HistoryError(
                f"the volume {path} of the history {self._path} is damaged ({damage}); "
                f"{restore_command(self._job)} goes on from the other files and from what the "
                "run directories hold"
            ) from damage
        return trials

    def _check(self, volume: Volume, trials: dict[int, Trial]) -> None:
        if len(trials) != volume.trials:
            raise DamagedError(f"it has {len(trials)} trials and not {volume.trials}")
        for number, trial in trials.items():
            if (
                self._numbers.setdefault(trial.trial, number) != number
                or self._ids.setdefault(number, trial.trial) != trial.trial
            ):
                raise DamagedError(f"trial {trial.trial} or its number is in another file, too")


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Let Python not look for cycles meanwhile: there are none, and it would take half the time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _by_number(tables: Tables, job: str) -> dict[int, Trial]:
    trials = decode_trials(tables["trials"].values(), job)
    return dict(zip(map(int, tables["trials"]), trials, strict=True))


def write_tables(path: Path, tables: Tables, volume_trials: int, *, keep: bool = True) -> None:
    """Write a main file, having sealed what it need not hold any more. The caller holds the lock.

    Args:
        path: The main file.
        tables: Its tables.
        volume_trials: Trials in a volume.
        keep: Whether the content that it replaces is worth a copy.

    Raises:
        DamagedError: If the tables cannot be written as they were read.
        HistoryError: If the disk refuses.
    """
    main, sealed = seal(tables, volume_trials)
    content = encode_tables(main)
    volumes = {number: encode_tables(volume) for number, volume in sealed.items()}
    with explained("write", path):
        write_volumes(path, volumes)  # on disk before the file that does without their trials
        replace_file(path, content, kept=copy_path(path) if keep else None)


def read_tables(path: Path) -> tuple[Tables, str]:
    """Read a main file and its version; one that never was is an empty history.

    The version is a hash of its bytes: a stamp of the file system may be the same for two writes
    in a row, and a counter the same after a file was put back by hand.

    Raises:
        DamagedError: If it is not a history, or is missing while copies or volumes of it are
            there: what was learned is then not known, which is something else than nothing learned.
        HistoryError: If a later version wrote it, or the disk refuses.
    """
    data = _read(path)
    if data is None:
        with explained("read", path):
            left = copy_path(path).exists() or stored_volumes(path)
        if not left:
            return empty_tables(), ""
        # Read again: the first writes of another process may have come in between.
        data = _read(path)
    if data is None:
        raise DamagedError("it is missing")
    tables = _decode(path, data)
    read_header(tables)
    return tables, hashlib.blake2b(data, digest_size=16).hexdigest()


def read_file(path: Path) -> Tables | None:
    """Read any file of a history; ``None`` if there is none.

    Raises:
        DamagedError: If it is not one.
        HistoryError: If a later version wrote it, or the disk refuses.
    """
    data = _read(path)
    return None if data is None else _decode(path, data)


def _read(path: Path) -> bytes | None:
    with explained("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def _decode(path: Path, data: bytes) -> Tables:
    try:
        return decode_tables(data)
    except NewerError as error:
        raise HistoryError(
            f"the history {path} was written by a newer zeusrun ({error}); "
            "upgrade this one: `pip install --upgrade zeusrun`"
        ) from error


def read_volume(path: Path) -> Tables:
    """Read a volume.

    Raises:
        DamagedError: If it is missing or not one.
        HistoryError: If a later version wrote it, or the disk refuses.
    """
    tables = read_file(path)
    if tables is None:
        raise DamagedError("it is missing")
    return tables
