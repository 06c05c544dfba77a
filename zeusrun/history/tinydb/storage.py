"""The files of a job's history: their names, their content, and how they are read and written.

A file contains the tables ``meta`` and ``trials`` as JSON, one record a line. Each record
ends with its checksum ``crc``, because a disk may return another bit than was written. A reader
ignores and keeps other fields and tables that it does not know; ``files/private.py`` says what
needs a new version.

The main file contains the newest trials and those that can still change. Volumes contain the oldest
ones, so that a write stays fast. The header of the main file lists its volumes; others were left by
a killed writer or a restored history, and are not read. Record numbers order all trials.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import zlib
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeAlias, TypeGuard

from zeusrun.errors import HistoryError, home_advice
from zeusrun.files import private
from zeusrun.files.lock import SafeLock
from zeusrun.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

VERSION = 1

Tables: TypeAlias = dict[str, dict[str, Any]]

_SUM = b',"crc":'  # the last field of a record; within a text, JSON would escape the quotes
_RECORD_NUMBER = re.compile(r"0|[1-9][0-9]{0,17}")

# The main file contains up to two volumes' worth of finished trials. A submit reads and writes it
# twice, in about 0.2 ms for each trial of 20 epochs: benchmarks/long_history.py.
VOLUME_TRIALS = 100

_DISPATCHED = TrialStatus.DISPATCHED.value
_CAN_CHANGE = {_DISPATCHED, TrialStatus.PREEMPTED.value}


Changed: TypeAlias = list[str]
"""Numbers of records that have changed since they were written."""


class DamagedError(Exception):
    """A file is not a history. Callers of this package get a ``HistoryError`` instead."""


def copy_path(path: Path) -> Path:
    """Return the last good copy of a main file: its state before the last write."""
    return path.with_name(path.name + ".bak")


def turns_path(path: Path) -> Path:
    """Return the file with the turns of the job of a main file."""
    return path.with_name(path.name + ".turns")


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


class Volume(NamedTuple):
    """What the header says of a volume. ``number`` is in the file name and never used twice."""

    number: int
    trials: int
    last_record: int
    first_recurrence: int
    last_recurrence: int


class Header(NamedTuple):
    """What a main file says of its volumes."""

    volumes: Sequence[Volume]  # oldest first
    following: int  # the number for the next volume
    changes: int  # how often a trial in a volume was changed


def read_header(tables: Tables) -> Header:
    """Read the header of a main file; raises ``DamagedError`` if it does not fit its volumes."""
    header = _header(tables)
    try:
        volumes = [Volume(*map(int, row)) for row in header.get("volumes", [])]
        following = int(header.get("next_volume", 1))
        changes = int(header.get("volume_changes", 0))
    except (TypeError, ValueError, OverflowError) as error:
        raise DamagedError("its header does not describe its volumes") from error
    numbers = [volume.number for volume in volumes]
    if min(numbers, default=1) < 1 or following <= max(numbers, default=0):
        raise DamagedError("its header would use the number of a volume again")
    return Header(volumes, following, changes)


def set_header(tables: Tables, header: Header) -> None:
    """Replace what the header of a main file says of its volumes."""
    _header(tables).update(
        volumes=[list(volume) for volume in header.volumes],
        next_volume=header.following,
        volume_changes=header.changes,
    )


def read_basis(tables: Tables) -> str:
    """Return what choices are based on: a text that changes when they become stale."""
    return str(_header(tables).get("basis", ""))


def renew_basis(tables: Tables) -> None:
    """Make all choices from before stale."""
    _header(tables)["basis"] = secrets.token_hex(8)


def seal(tables: Tables, size: int) -> dict[int, Tables]:
    """Move the oldest finished trials of a main file into volumes of ``size`` trials.

    It moves nothing until there are more than two volumes' worth of them, so that the newest trials
    stay. ``tables`` are changed. It returns the volumes by number; write them before the main file.
    """
    records = tables["trials"]
    finished = [
        n for n, each in records.items() if each.get("status", _DISPATCHED) not in _CAN_CHANGE
    ]
    finished.sort(key=int)
    volumes, following, changes = read_header(tables)
    sealed = {}
    while len(finished) > 2 * size:
        numbers, finished = finished[:size], finished[size:]
        moved = {number: records.pop(number) for number in numbers}
        recurrences = [record["recurrence"] for record in moved.values()]
        volume = Volume(following, size, int(numbers[-1]), min(recurrences), max(recurrences))
        volumes = [*volumes, volume]
        sealed[following] = {**empty_tables(), "trials": moved}
        following += 1
    if sealed:
        set_header(tables, Header(volumes, following, changes))
    return sealed


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` into a ``HistoryError`` with the path, the reason and what to do."""
    try:
        yield
    except OSError as error:
        reason = f"{error.strerror or error}; {home_advice(error)}"
        raise HistoryError(f"cannot {doing} the history {path}: {reason}") from error


def locked(path: Path, timeout_s: float) -> AbstractContextManager[None]:
    """Be the only writer of a main file; ``HistoryError`` if the lock is not free in time."""
    lock = SafeLock(path.with_name(path.name + ".lock"))  # writes replace the main file itself
    name = shlex.quote(str(lock.path))
    return lock.held(
        timeout_s,
        f"another process has held the lock {name} for {timeout_s:g} s; it is probably "
        f"stopped: `fuser -v {name}` names it; end or resume it, and try again",
    )


def read_bytes(path: Path) -> bytes | None:
    """Return the content of a file, or of the file that a link names; ``None`` if there is none.

    Raises:
        DamagedError: If something else is in its place.
        HistoryError: If the disk refuses.
    """
    with explained("read", path):
        while True:
            try:
                with open(private.open_for_reading(os.path.realpath(path)), "rb") as file:  # noqa: PTH123 - a descriptor
                    return file.read()
            except FileNotFoundError:  # also for what is no regular file
                if not os.path.lexists(path) or is_dangling(path):
                    return None
                if not path.is_file():  # else it has come just now
                    break
            except (IsADirectoryError, NotADirectoryError):
                break
    raise DamagedError("it is not a regular file")


def is_dangling(path: Path) -> bool:
    """Whether a path is a link to a file that does not exist."""
    return path.is_symlink() and not os.path.lexists(os.path.realpath(path))


def empty_tables() -> Tables:
    """Return the tables of a history without trials."""
    return {"meta": {"1": {"version": VERSION}}, "trials": {}}


def encode_tables(tables: Tables) -> bytes:
    """Return the content of a file; ``DamagedError`` if that is impossible."""
    try:
        # A space before the table of a later version: ``find_changed`` must not check its lines.
        texts = (
            f"{'' if _has_records(table) else ' '}{_encode(name)}:{_encode_table(table)}"
            for name, table in tables.items()
        )
        return ("{\n" + ",\n".join(texts) + "}\n").encode()
    except ValueError as error:
        raise DamagedError(str(error)) from error


def _encode_table(table: Mapping[str, Mapping[str, Any]]) -> str:
    if not _has_records(table):
        return _encode(table)
    lines = []
    for number, record in table.items():
        text = f"{_encode(str(number))}:{_encode(record)}"
        if record:
            text = f'{text[:-1]},"crc":{zlib.crc32(text[:-1].encode())}}}'
        lines.append(text)
    return "{\n" + ",\n".join(lines) + "}"


def _encode(value: object) -> str:
    # Without indentation, so that json uses its C encoder.
    return json.dumps(value, allow_nan=False, separators=(",", ":"))


def find_changed(data: bytes) -> list[tuple[str, str]]:
    """Return the table and the number of each record that has changed since it was written.

    Files that another program has written in another form cannot be checked.
    """
    changed, without, table, has_sums = [], [], "", False
    for line in data.splitlines():
        if not line.startswith(b'"'):
            continue
        head, has_sum, rest = line.rpartition(_SUM)
        name = line.split(b'"')[1].decode(errors="replace")
        if line.endswith(b":{"):
            table = name
        elif not has_sum:
            without += [] if line.rstrip(b",}").endswith(b":{") else [(table, name)]
        else:
            has_sums = True
            changed += [] if rest.rstrip(b",}") == b"%d" % zlib.crc32(head) else [(table, name)]
    return [*changed, *without] if has_sums else changed


def read_tables(path: Path, data: bytes | None, changed: Changed | None = None) -> Tables:
    """Decode the content of a main file, a copy or a volume, which ``path`` names in errors.

    It checks that trials are JSON objects and have their checksums, and no more. With a list
    ``changed``, trials that have changed are left out, and the list gets their numbers.

    Raises:
        DamagedError: If it is missing, or not the content of a history.
        HistoryError: If a later version wrote it.
    """
    if data is None:
        raise DamagedError("it is missing")
    if not data.strip():
        raise DamagedError("it is empty")
    try:
        tables = json.loads(data.decode(), parse_constant=_refuse_constant)
    except UnicodeDecodeError as error:
        raise DamagedError("it is not UTF-8") from error
    except (ValueError, RecursionError) as error:
        raise DamagedError(f"it is not JSON: {error}") from error
    if not isinstance(tables, dict):
        raise DamagedError("it contains no tables")
    _check_sums(tables, data, changed)
    headers = [each for each in _records(tables, "meta") if "version" in each]
    try:
        for header in headers or [{}]:
            private.check_version(header, VERSION, path)
    except ValueError as error:
        raise DamagedError("its header names no version") from error
    _records(tables, "trials")
    return tables


def _check_sums(tables: Tables, data: bytes, changed: Changed | None) -> None:
    """Check the checksums of the tables that ``data`` contains, and remove them."""
    for name, number in find_changed(data):
        table = tables.get(name)
        if changed is None or name != "trials" or not _has_records(table):
            raise DamagedError(f"record {number} of {name!r} has changed since it was written")
        changed.append(number)
        table.pop(number, None)
    for table in filter(_has_records, tables.values()):
        for record in table.values():
            record.pop("crc", None)


def _has_records(table: object) -> TypeGuard[dict[str, dict[str, Any]]]:
    return isinstance(table, dict) and all(type(item) is dict for item in table.values())


def decode_trials(records: Iterable[Mapping[str, Any]], job: str) -> list[Trial]:
    """Read a job's trials; ``DamagedError`` if one is of another job, or two have the same id."""
    trials: dict[str, Trial] = {}
    for number, record in enumerate(records, start=1):
        try:
            trial = Trial.from_json(dict(record))
        except ValueError as error:
            raise DamagedError(f"trial number {number}: {error}") from error
        if trial.job != job:
            raise DamagedError(f"trial number {number}: it is of job {trial.job!r}")
        if trials.setdefault(trial.trial, trial) is not trial:
            raise DamagedError(f"trial {trial.trial} is there twice")
    return list(trials.values())


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _records(tables: dict[str, Any], name: str) -> list[dict[str, Any]]:
    table = tables.get(name)
    if not _has_records(table):
        raise DamagedError(f"it has no table {name!r} of records")
    for number in table:
        # TinyDB turns the keys into numbers; "1" and "01" would become one record.
        if not _RECORD_NUMBER.fullmatch(number):
            raise DamagedError(f"table {name!r} has a record {number!r:.40}")
    return list(table.values())


def read_volume(path: Path, number: int) -> Tables:
    """Read a volume of a main file; raises as ``read_tables`` does."""
    volume = volume_path(path, number)
    return read_tables(volume, read_bytes(volume))


def write_main(path: Path, tables: Tables, volume_trials: int, *, kept: Path | None) -> None:
    """Write a main file and the volumes that its oldest trials fill. The caller holds the lock.

    Trials that move into volumes are removed from ``tables``. ``kept`` is where to keep the content
    that is replaced.

    Raises:
        DamagedError: If the tables cannot be written as they were read.
        HistoryError: If the disk refuses.
    """
    volumes = {number: encode_tables(each) for number, each in seal(tables, volume_trials).items()}
    content = encode_tables(tables)
    with explained("write", path):
        for number, volume in volumes.items():  # on disk before the main file without their trials
            write_volume(path, number, volume)
        private.replace_file(Path(os.path.realpath(path)), content, kept=kept)


def write_volume(path: Path, number: int, content: bytes) -> None:
    """Write a volume of a main file."""
    volume = volume_path(path, number)
    private.make_folder(volume.parent)
    private.sync_directory(path.parent)
    private.replace_file(volume, content)


def _header(tables: Tables) -> dict[str, Any]:
    return next(header for header in tables["meta"].values() if "version" in header)
