"""The files of a job's history: their names, their lock, and how they are read and written."""

from __future__ import annotations

import re
import shlex
from contextlib import contextmanager
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError, home_advice
from zeusrun.files.atomic import replace_file, sync_directory
from zeusrun.files.lock import SafeLock
from zeusrun.files.private import make_folder
from zeusrun.history.schema import DamagedError, NewerError, Tables, decode_tables, encode_tables
from zeusrun.history.tinydb.volumes import seal

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def copy_path(path: Path) -> Path:
    """Return the last good copy of a main file: its state before the last write."""
    return path.with_name(path.name + ".bak")


def volume_path(path: Path, number: int) -> Path:
    """Return a volume of a main file."""
    return path.with_suffix(".volumes") / f"{number:06d}.json"


def stored_volumes(path: Path) -> list[int]:
    """Return the numbers of all volumes on disk, whether the main file lists them or not."""
    try:
        names = [entry.name for entry in path.with_suffix(".volumes").iterdir()]
    except FileNotFoundError:
        return []
    return [int(name[:-5]) for name in names if re.fullmatch(r"[0-9]{6,18}\.json", name)]


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``HistoryError`` with the path, the reason and what to do."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; {home_advice(error)}"
        raise HistoryError(f"cannot {doing} the history {path}: {reason}") from error


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[None]:
    """Be the only writer of a main file among all processes.

    Raises:
        HistoryError: If the lock is not free in time, or cannot be taken here.
    """
    lock = SafeLock(path.with_name(path.name + ".lock"))  # writes replace the main file itself
    if not lock.acquire(timeout_s):
        name = shlex.quote(str(lock.path))
        raise HistoryError(
            f"another process has held the lock {name} for {timeout_s:g} s; it is probably "
            f"stopped: `fuser -v {name}` names it; end or resume it, and try again"
        )
    try:
        yield
    finally:
        with explained("unlock", path):
            lock.release()


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file; ``None`` if there is none."""
    with explained("read", path):
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None


def read_tables(path: Path, data: bytes | None) -> Tables:
    """Decode the content of a main file, a copy or a volume.

    Raises:
        DamagedError: If it is missing, or not the content of a history.
        HistoryError: If a later version wrote it.
    """
    if data is None:
        raise DamagedError("it is missing")
    try:
        return decode_tables(data)
    except NewerError as error:
        raise HistoryError(
            f"the history {path} was written by a newer zeusrun ({error}); "
            "upgrade this one: `pip install --upgrade zeusrun`"
        ) from error


def write_main(path: Path, tables: Tables, volume_trials: int, *, kept: Path | None) -> None:
    """Write a main file and the volumes that its oldest trials fill. The caller holds the lock.

    Args:
        path: The main file.
        tables: Its tables. Trials that move into volumes are removed from them.
        volume_trials: Trials in a volume.
        kept: Where to keep the content that it replaces; ``None`` to keep it nowhere.

    Raises:
        DamagedError: If the tables cannot be written as they were read.
        HistoryError: If the disk refuses.
    """
    volumes = {number: encode_tables(each) for number, each in seal(tables, volume_trials).items()}
    content = encode_tables(tables)
    with explained("write", path):
        for number, volume in volumes.items():  # on disk before the main file without their trials
            write_volume(path, number, volume)
        replace_file(path, content, kept=kept)


def write_volume(path: Path, number: int, content: bytes) -> None:
    """Write a volume of a main file.

    Raises:
        OSError: If a step fails.
    """
    volume = volume_path(path, number)
    make_folder(volume.parent)
    sync_directory(path.parent)
    replace_file(volume, content)
