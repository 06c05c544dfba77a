"""Reading a history's files and, where one is no history, keeping it and saying how to go on."""

from __future__ import annotations

import hashlib
import itertools
import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from zeusrun.errors import HistoryError
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
    keep_link,
    stored_volumes,
    written_at,
)
from zeusrun.history.tinydb.volumes import read_header

if TYPE_CHECKING:
    from pathlib import Path


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


def restore_command(job: str) -> str:
    """Return what a message about damage tells to type."""
    return f"`zeusrun repair --restore {shlex.quote(job)}`"


def build_refusal(path: Path, job: str, damage: DamagedError) -> HistoryError:
    """Set what is damaged aside and describe the way out. The caller holds the lock.

    Returns:
        The error to raise, naming the damaged file and offering its last good copy.

    Raises:
        HistoryError: If the damaged file cannot be set aside.
    """
    aside = set_aside(path)
    if aside is not None:
        problem = f"the history {path} is damaged ({damage}) and was set aside as {aside}"
    else:
        problem = f"the history {path} is missing"
        with explained("read", path):
            earlier = latest_aside(path)
        if earlier is not None:
            problem += f"; a damaged one was set aside as {earlier}"
    return HistoryError(f"{problem}; {_offer(path, job)}")


def count_trials(tables: Tables, job: str) -> int:
    """Return how many trials a main file and its volumes hold, having read those of the file.

    Raises:
        DamagedError: If they are not trials of this job, or could not be written again.
    """
    volumes, _ = read_header(tables)
    here = len(decode_trials(tables["trials"].values(), job))
    encode_tables(tables)
    return here + sum(volume.trials for volume in volumes)


def set_aside(path: Path) -> Path | None:
    """Rename a damaged file out of the way, over nothing; ``None`` if there is none."""
    with explained("set aside", path):
        target = _unused(path, "corrupt")
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
    return target


def keep_aside(path: Path, why: str) -> Path:
    """Keep a file that is about to be replaced under another name, which it never had before."""
    with explained("set aside", path):
        target = _unused(path, why)
        keep_link(path, target)
    return target


def latest_aside(path: Path) -> Path | None:
    """Return where a file was set aside last for being damaged."""
    return max(path.parent.glob(f"{path.name}.corrupt-*"), default=None)


def _unused(path: Path, why: str) -> Path:
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    names = itertools.chain([stamp], (f"{stamp}-{number}" for number in itertools.count(2)))
    targets = (path.with_name(f"{path.name}.{why}-{name}") for name in names)
    return next(target for target in targets if not target.exists())


def _offer(path: Path, job: str) -> str:
    """Say which copy there is and how to go on; a damaged copy is set aside, too."""
    copy, problem = copy_path(path), "it has no earlier copy"
    try:
        tables = read_file(copy)
        if tables is not None:
            count = count_trials(tables, job)
            with explained("read", copy):
                return _describe(count, written_at(copy), job)
    except DamagedError as damage:
        aside = set_aside(copy)
        problem = f"its copy {copy.name} is damaged, too ({damage}), and was set aside as {aside}"
    except HistoryError as error:
        problem = f"its copy is {copy}: {error}"
    with explained("read", path):
        left = copy.exists() or stored_volumes(path)
    if left:
        end = f"{restore_command(job)} goes on from what its volumes and run directories hold"
    else:
        end = (
            "the next run starts a fresh history, and "
            f"{restore_command(job)} adds what the run directories hold"
        )
    return f"{problem}; {end}"


def _describe(count: int, written: datetime, job: str) -> str:
    return (
        f"its last good copy has {count} trial{'' if count == 1 else 's'} and is of "
        f"{written:%Y-%m-%d %H:%M:%S} UTC; {restore_command(job)} goes on from it and from what "
        "the run directories hold"
    )
