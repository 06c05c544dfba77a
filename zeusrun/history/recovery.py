"""Reading a history file and, if it is not one, keeping it and saying how to go on."""

from __future__ import annotations

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
)
from zeusrun.history.storage import copy_path, explained

if TYPE_CHECKING:
    from pathlib import Path

_FRESH = "the next run starts a fresh history"


def read_tables(path: Path) -> Tables:
    """Read a history file; one that never was is an empty history.

    Raises:
        DamagedError: If it is not a history, or is missing while its copy is there: what was
            learned is then not known, which is something else than nothing learned.
        HistoryError: If a later version wrote it, or the disk refuses.
    """
    with explained("read", path):
        # Asked first: a writer makes the file before the copy, so "a copy but no file" is true
        # even if other processes write in between.
        has_copy = copy_path(path).exists()
    tables = _read(path)
    if tables is not None:
        return tables
    if has_copy:
        raise DamagedError("it is missing")
    return empty_tables()


def build_refusal(path: Path, job: str, damage: DamagedError) -> HistoryError:
    """Set what is damaged aside and describe the way out. The caller holds the lock.

    Returns:
        The error to raise, naming the damaged file and offering its last good copy.

    Raises:
        HistoryError: If the damaged file cannot be set aside.
    """
    aside = _set_aside(path)
    if aside is not None:
        problem = f"the history {path} is damaged ({damage}) and was set aside as {aside}"
    else:
        earlier = max(path.parent.glob(f"{path.name}.corrupt-*"), default=None)
        problem = f"the history {path} is missing"
        if earlier is not None:
            problem += f"; a damaged one was set aside as {earlier}"
    return HistoryError(f"{problem}; {_offer(copy_path(path), path, job)}")


def _read(path: Path) -> Tables | None:
    with explained("read", path):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        return decode_tables(data)
    except NewerError as error:
        raise HistoryError(
            f"the history {path} was written by a newer zeusrun ({error}); "
            "upgrade this one: `pip install --upgrade zeusrun`"
        ) from error


def _offer(copy: Path, path: Path, job: str) -> str:
    try:
        tables = _read(copy)
        if tables is None:
            return f"it has no earlier copy, so {_FRESH}"
        count = len(decode_trials(tables["trials"].values(), job))
        with explained("read", copy):
            written_at = datetime.fromtimestamp(copy.stat().st_mtime, timezone.utc)
    except DamagedError as damage:
        aside = _set_aside(copy)
        return f"its last copy is damaged too ({damage}) and was set aside as {aside}, so {_FRESH}"
    except HistoryError as error:
        return f"its last copy is {copy}: {error}"
    restore = f"mv {shlex.quote(str(copy))} {shlex.quote(str(path))}"
    return (
        f"its last good copy has {count} trial{'' if count == 1 else 's'} and is of "
        f"{written_at:%Y-%m-%d %H:%M:%S} UTC; restore it with `{restore}`, "
        f"or start afresh with `rm {shlex.quote(str(copy))}`"
    )


def _set_aside(path: Path) -> Path | None:
    """Rename a file out of the way, over nothing; ``None`` if there is none."""
    stamp = f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}"
    with explained("set aside", path):
        for number in itertools.count(1):
            suffix = stamp if number == 1 else f"{stamp}-{number}"
            target = path.with_name(f"{path.name}.corrupt-{suffix}")
            if not target.exists():
                break
        try:
            path.rename(target)
        except FileNotFoundError:
            return None
    return target
